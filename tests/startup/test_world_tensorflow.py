"""A strategy, Horovod's API and the program itself in one process: they share its world, whoever comes first."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from pool import census
from served import free_ports
from tf_workers import Workers, make

SIZE = 2


def _reduced(strategy: Any, value: float) -> float:
    import tensorflow as tf

    return float(strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(lambda: tf.constant(value)), axis=None))


def _share(comm: Any, strategy: Any) -> dict[str, Any]:
    """What works in a world that three have: each counts its own collectives, fails alone, and leaves alone."""
    import collectives
    import collectives.tensorflow as hvd
    import tensorflow as tf

    found: dict[str, Any] = {}
    x = np.full(5, comm.rank + 1.0)
    if comm.rank == 0:  # in other orders on the two ranks, as threads of a program would be
        work = comm.all_reduce(x, async_op=True)
        found["sum"] = _reduced(strategy, 1.0)
        found["beside"] = float(work.result()[0])
    else:
        found["sum"] = _reduced(strategy, 1.0)
        found["beside"] = float(comm.all_reduce(x)[0])

    before = census()
    hvd.init()
    found["horovod"] = float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum)), hvd.rank(), hvd.size()
    found["held"] = before == census()
    with pytest.raises(tf.errors.FailedPreconditionError, match="ranks disagree"):
        hvd.allreduce(tf.ones([2 + comm.rank]))
    found["after"] = float(comm.all_reduce(np.ones(3))[0]), _reduced(strategy, 2.0)
    found["groups"] = [group.size for group in (comm.new_group([1, 0]),) if group is not None]
    hvd.shutdown()
    assert collectives.world() is comm
    assert comm.all_reduce(np.ones(3))[0] == SIZE
    comm.close()
    found["goes on"] = _reduced(strategy, 3.0)
    with pytest.raises(collectives.CollectivesError, match="in no world"):
        collectives.world()
    return found


def _init(where: str) -> Any:
    """The world of the two workers, made by the program."""
    import collectives

    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    return collectives.init(rank=rank, size=SIZE, rendezvous=where, token="0123456789abcdef", timeout=60)


def init_first(where: str) -> dict[str, Any]:
    import collectives

    with pytest.raises(ValueError, match="TF_CONFIG"):  # which says that there are others, and nowhere to meet
        collectives.init()
    with collectives.init(size=1), pytest.raises(collectives.CollectivesError) as raised:
        make()
    said = str(raised.value)
    comm = _init(where)
    _, segments, _ = census()
    strategy = make()
    assert collectives.world() is comm and census()[1] == segments
    return {"said": said, **_share(comm, strategy)}


def strategy_first(where: str) -> dict[str, Any]:
    import collectives

    strategy = make()
    before = census()
    comm = collectives.init()
    assert comm is collectives.world() and census() == before
    with pytest.raises(collectives.CollectivesError) as raised:
        collectives.init(size=1)
    return {"said": str(raised.value), **_share(comm, strategy)}


def one_has_left(where: str) -> str:
    import tensorflow as tf

    with _init(where) as comm:
        if comm.rank == 1:
            comm.close()
        with pytest.raises((RuntimeError, tf.errors.UnavailableError)) as raised:
            make()
    return f"{type(raised.value).__name__}: {raised.value}"


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(variables={"COLLECTIVES_TIMEOUT": "60"})
    try:
        yield made
        assert made.leave() == [0] * SIZE
    finally:
        made.destroy()


@pytest.mark.parametrize("program", [init_first, strategy_first])
def test_a_strategy_and_init_in_one_process(workers: Workers, program: Callable[[str], Any]) -> None:
    [port] = free_ports(1)
    found = workers.run(program, f"127.0.0.1:{port}")
    for rank, one in enumerate(found):
        said = one.pop("said")
        if program is init_first:
            assert "rank 0 of 1, by collectives.init() at test_world_tensorflow.py:" in said
            assert f"is to be rank {rank} of 2" in said
        else:
            assert f"rank {rank} of 2, by a strategy of collectives.tensorflow at " in said
            assert "size=1 was asked for" in said
        assert one == {
            "sum": 2.0,
            "beside": 3.0,
            "horovod": (2.0, rank, 2),
            "held": True,
            "after": (2.0, 4.0),
            "groups": [2],
            "goes on": 6.0,
        }


def test_workers_of_which_only_some_have_a_world(workers: Workers) -> None:
    [port] = free_ports(1)
    chief, other = workers.run(one_has_left, f"127.0.0.1:{port}")
    assert chief.startswith("UnavailableError") and "rank 1" in chief
    assert other.startswith("RuntimeError")
    assert "worker 0 at " in other and "has made its world before its strategy" in other and "worker 1 at " in other
