"""One world for a process: whoever comes second gets that of the first, or an error that names the first."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import collectives
import numpy as np
import pytest
import threaded
import tiers
from collectives import CollectivesError, _world
from collectives.launch._process import listen_for_ranks
from pool import Pools, census

LIMIT = 120.0
TIMES = 100


@pytest.fixture
def alone() -> Iterator[collectives.Communicator]:
    with collectives.init(timeout=50) as comm:
        yield comm


def _again_and_again(comm: Any) -> tuple[Any, Any]:
    with contextlib.ExitStack() as stack:
        where = None
        if comm.rank == 0:
            listener = stack.enter_context(listen_for_ranks())
            where = f"127.0.0.1:{listener.getsockname()[1]}"
            os.environ["COLLECTIVES_RENDEZVOUS_FD"] = str(listener.fileno())
            stack.callback(os.environ.pop, "COLLECTIVES_RENDEZVOUS_FD")
        os.environ["COLLECTIVES_RENDEZVOUS"] = comm.broadcast_object(where)
        comm.close()
        held = []
        for turn in range(TIMES):
            made = collectives.init()
            group = made.dup()
            work = group.all_reduce(np.ones(100), async_op=True)
            assert made.all_reduce(np.ones(100))[0] == work.result()[0] == 2
            if turn % 2:
                group.close()
            assert collectives.world() is made
            made.close()
            del made, group, work
            held.append(census())
        return held[2], held[-1]


@pytest.mark.parametrize("transport", ["shm", *["tcp"] * tiers.full()])
def test_a_hundred_worlds_one_after_another_leave_nothing(pools: Pools, transport: str) -> None:
    for before, after in pools.get(2, transport).run(_again_and_again, limit=LIMIT):
        assert after == before


def test_the_second_gets_the_world_of_the_first(alone: collectives.Communicator) -> None:
    before = census()
    assert collectives.world() is alone
    assert collectives.init() is alone
    assert collectives.init(rank=0, size=1, transport="auto", timeout=50, compare_shapes=True) is alone
    assert _world.take("a door") == (alone, False)
    assert _world.existing(0, 1) is alone
    assert census() == before


def test_a_world_is_kept_until_it_is_closed() -> None:
    collectives.init()
    gc.collect()
    first = collectives.world()
    assert first.all_reduce(np.ones(3))[0] == 1
    group = first.dup()
    first.close()
    with pytest.raises(CollectivesError, match=r"in no world: .*collectives\.init\(\) makes one"):
        collectives.world()
    assert group.all_reduce(np.ones(3))[0] == 1  # a door's, which goes on
    second = collectives.init()
    assert second is not first and collectives.world() is second
    first.close()  # a second time, which must not concern the world that there is now
    assert collectives.world() is second
    group.close()
    second.close()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"size": 2, "rank": 1}, "rank=1 was asked for"),
        ({"size": 3}, "size=3 was asked for"),
        ({"transport": "tcp"}, "transport='tcp' was asked for"),
        ({"timeout": 7}, "timeout=7 was asked for"),
        ({"compare_shapes": False}, "compare_shapes=False was asked for"),
        ({"replicas": 2}, "replicas=2 was asked for"),
    ],
)
def test_one_who_wants_another_world_hears_of_the_first(
    alone: collectives.Communicator, arguments: Any, text: str
) -> None:
    first = r"this process is rank 0 of 1, by collectives\.init\(\) at test_world\.py:\d+ with transport='auto', and "
    with pytest.raises(CollectivesError, match=f"{first}{text}; use .*world.*close") as raised:
        collectives.init(**arguments)
    assert raised.value.rank == 0
    assert collectives.init() is alone


def test_a_wrong_argument_is_wrong_whether_or_not_there_is_a_world(alone: collectives.Communicator) -> None:
    with pytest.raises(TypeError, match="compare_shapes= is 0"):
        collectives.init(compare_shapes=0)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="transport= is 'sm'"):
        collectives.init(transport="sm")


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"COLLECTIVES_SIZE": "4"}, "COLLECTIVES_SIZE is 4"),
        ({"COLLECTIVES_RANK": "1", "COLLECTIVES_SIZE": "1"}, "COLLECTIVES_RANK is 1"),
        (
            {
                "TORCHELASTIC_RUN_ID": "job",
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "RANK": "0",
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": "1",
            },
            "WORLD_SIZE is 2",
        ),
    ],
)
def test_one_whose_launcher_means_another_world(
    alone: collectives.Communicator, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], text: str
) -> None:
    """A library that calls init() in a process that has said init(size=1): it would train alone, without a word."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CollectivesError, match=f"rank 0 of 1, by .*, and {text}; "):
        collectives.init()
    assert collectives.init(size=1) is alone  # the arguments say otherwise
    assert collectives.world() is alone


def test_variables_that_only_the_first_start_needs_do_not_matter(
    alone: collectives.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("COLLECTIVES_TRANSPORT", "tcp")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")  # and nothing else that torchrun sets
    assert collectives.init() is alone


def test_a_door_whose_rank_is_another_hears_of_the_first(alone: collectives.Communicator) -> None:
    with pytest.raises(CollectivesError, match=r"rank 0 of 1, by .*, and is to be rank 1 of 2; "):
        _world.existing(1, 2)


def test_threads_that_come_at_once_get_one_world() -> None:
    found = threaded.in_threads([functools.partial(collectives.init)] * 8)
    assert len(set(map(id, found))) == 1
    found[0].close()


def _names_of_the_first(comm: Any) -> dict[str, str]:
    said = {}
    for name, arguments in {
        "rank": {"rank": 1 - comm.rank},
        "rendezvous": {"rendezvous": "127.0.0.1:1"},
        "token": {"token": "another one, which no error shows"},
    }.items():
        try:
            collectives.init(**arguments)
        except CollectivesError as error:
            said[name] = str(error)
    assert collectives.init() is comm and collectives.world() is comm  # by the variables, which are true
    return said


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_ranks_of_a_job(pools: Pools, transport: str) -> None:
    for rank, said in enumerate(pools.get(2, transport).run(_names_of_the_first)):
        assert all(f"is rank {rank} of 2, by collectives.init()" in text for text in said.values())
        assert all(f"transport='{transport}'" in text for text in said.values())
        assert f"and rank={1 - rank} was asked for" in said["rank"]
        assert "and rendezvous='127.0.0.1:1' was asked for" in said["rendezvous"]
        assert "and another token= was asked for" in said["token"] and "which no error" not in said["token"]


def _fails(comm: Any) -> list[str]:
    said = []
    calls = [lambda: comm.all_reduce(np.ones(2 + comm.rank)), collectives.init, lambda: _world.existing(comm.rank, 2)]
    for call in calls:
        with pytest.raises(CollectivesError) as raised:
            call()
        said.append(str(raised.value))
    assert collectives.world() is comm
    with comm.shrink() as smaller:
        assert smaller.all_reduce(np.ones(2))[0] == 2
    comm.close()
    with pytest.raises(CollectivesError, match="in no world"):
        collectives.world()
    return said


def test_a_world_that_has_failed_is_given_to_nobody(pools: Pools) -> None:
    for mismatch, second, door in pools.get(2, "shm").run(_fails):
        assert "ranks disagree" in mismatch
        assert second == door and re.search(r"that world has failed; close\(\) it", second)


FORKED = """if True:
    import os, sys
    import collectives, numpy as np

    collectives.init()
    child = os.fork()
    if child == 0:
        try:
            collectives.world()
            sys.exit("the world of the parent")
        except collectives.ForkedError as error:
            assert "forked from rank 0 of 1" in str(error), error
        own = collectives.init()
        assert collectives.world() is own and own.all_reduce(np.ones(3))[0] == 1
        own.close()
        try:
            collectives.world()
            sys.exit("the world of the parent again")
        except collectives.CollectivesError as error:
            assert "in no world" in str(error), error
        sys.exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert collectives.world().all_reduce(np.ones(3))[0] == 1
    sys.exit(code)
"""


def test_a_forked_child_has_no_world_until_it_makes_one() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_of_several_replicas() -> None:
    pair = collectives.init(replicas=2)
    with pytest.raises(CollectivesError, match=r"ranks 0, 1 of 2, .* and is to be rank 0 of 2"):
        _world.existing(0, 2)
    with pytest.raises(CollectivesError, match="replicas=None was asked for"):
        _world.take("a door")
    for comm in pair:
        comm.close()
    [only] = collectives.init(replicas=1)
    assert collectives.world() is only
    only.close()
