"""Ranks as real processes, from the environment to connected descriptors."""

import contextlib
import itertools
import os
import random
import signal
import socket
import subprocess
import sys

import pytest
from collectives._startup.bootstrap import connect
from collectives._startup.environment import Environment
from collectives._startup.numbering import machines, number_ranks, partition, ranks_per_core
from joining import LIMIT, MAPPED, job


@pytest.mark.parametrize("transport", ["auto", "shm"])
@pytest.mark.parametrize("size", [2, 3, 8])
def test_one_host(size, transport):
    with job(size, transport=transport) as ranks:
        reports = [rank.hear() for rank in ranks]
        for rank, report in enumerate(reports):
            assert (report["rank"], report["size"], report["host"]) == (rank, size, [0] * size)
            assert sorted(map(int, report["peers"])) == [other for other in range(size) if other != rank]
            for other, seen in report["peers"].items():
                assert seen["has"] == MAPPED
                assert seen["memory"] == f"memory of rank {other}"
                assert seen["pid"] == ranks[int(other)].process.pid
                assert seen["host_name"] == socket.gethostname()
            # Nothing is open but what was asked for.
            assert report["descriptors"] == len(MAPPED) * (size - 1)
        for rank in ranks:
            rank.tell("close")
            assert rank.hear() == {"left": 0}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("size", [2, 5])
def test_tcp(size, address):
    if ":" in address and not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("no IPv6 in this kernel")
    with job(size, address, transport="tcp") as ranks:
        for rank, report in enumerate([rank.hear() for rank in ranks]):
            assert report["host"] == list(range(size))
            for other, seen in report["peers"].items():
                assert seen["has"] == ["tcp_fd"]
                assert seen["nodelay"]
                assert seen["address"] in ("127.0.0.1", "::1")
                assert seen["pid"] == ranks[int(other)].process.pid
            assert report["descriptors"] == size - 1, rank


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_death_shows(transport):
    with job(3, transport=transport) as ranks:
        for rank in ranks:
            rank.hear()
        ranks[1].process.kill()
        for survivor in (0, 2):
            ranks[survivor].tell("death 1")
            assert ranks[survivor].hear() == {"dead": True}


@pytest.mark.parametrize("files", [10, 14, 16, 17, 18, 19])
def test_a_rank_short_of_descriptors(files):
    """Rank 2 can receive the descriptors of some peers only, so that "shares memory" is not transitive."""
    with job(4, options={2: {"files": files}}, timeout="10") as ranks:
        reports = [rank.hear() for rank in ranks]
    if all("host" in report for report in reports):
        assert len({tuple(report["host"]) for report in reports}) == 1
        host = reports[0]["host"]
        for rank, report in enumerate(reports):
            for other, seen in report["peers"].items():
                expected = MAPPED if host[rank] == host[int(other)] else ["tcp_fd"]
                assert set(seen["has"]) | {"pid_fd"} == set(expected) | {"pid_fd"}
    else:
        # Not even sockets were to be had: an error on every rank, and nothing left open.
        assert all(report["leaked"] == 0 for report in reports)


def test_transports_must_agree():
    with job(3, transport=["auto", "auto", "tcp"]) as ranks:
        for report in [rank.hear() for rank in ranks]:
            assert report["error"] == "MismatchError"
            assert "rank 0 was started with transport 'auto' and rank 2 with 'tcp'" in report["text"]
            assert report["leaked"] == 0


def test_ranks_must_count_with_the_same_network():
    with job(2, network=["1G", "25G,5us"]) as ranks:
        for report in [rank.hear() for rank in ranks]:
            assert report["error"] == "MismatchError"
            assert "rank 0 was started with network '1G' and rank 1 with '25G,5us'" in report["text"]
            assert report["text"].endswith("give every rank the same COLLECTIVES_NETWORK")


@pytest.mark.parametrize(
    ("number", "what", "garbage"),
    [
        *((1, "introductions", garbage) for garbage in (None, [], {"pid": "x", "hostname": 5})),
        *((2, "view of who shares memory", garbage) for garbage in ("x", {"mapped": [7], "reasons": []})),
        *((3, "addresses", garbage) for garbage in ([], [[1]])),
        (4, "word that all", 7),
    ],
)
def test_a_member_that_sends_garbage(number, what, garbage):
    """It knows the token, and is named all the same, on all ranks."""
    with job(3, transport="tcp", options={2: {"garbage": [number, garbage]}}) as ranks:
        reports = [rank.hear() for rank in ranks]
    for report in reports:
        assert (report["error"], report["peer"], report["leaked"]) == ("PeerError", 2, 0), report
        assert f"sent {garbage!r} where its {what}" in report["text"]


def test_a_missing_rank():
    with job(3, timeout="6", told_size="4") as ranks:
        for report in [rank.hear() for rank in ranks]:
            assert report["error"] == "DeadlineError"
            assert "rank 3 did not come" in report["text"]
            assert report["peer"] == 3
            assert report["leaked"] == 0


def test_a_stopped_rank_ends_at_the_deadline():
    with job(3, timeout="5") as ranks:
        # It may be stopped before or after it joined; either way it is named.
        ranks[2].process.send_signal(signal.SIGSTOP)
        reports = [ranks[0].hear(), ranks[1].hear()]
        ranks[2].process.send_signal(signal.SIGCONT)
    for report in reports:
        if "error" in report:  # it can also have been through before the signal
            assert report["error"] == "DeadlineError"
            assert "rank 2" in report["text"]


def test_a_world_of_one():
    sizes = []
    world = connect(Environment(), lambda size, room: (sizes.append(size) or -1, -1))
    assert (world.ranks, world.host, world.sockets, sizes) == ([0], [0], [{}], [1])
    assert [process.ranks for process in world.processes] == [[0]]


def test_start_and_start_again():
    """Rank 0's descriptor stays usable; used by a launcher's job that closes and starts anew."""
    program = (
        "import os\nfrom collectives._startup.bootstrap import connect\n"
        "from collectives._startup.environment import read_environment\n"
        "fd, bell = os.memfd_create('a'), os.memfd_create('b')\n"
        "for _ in range(20):\n    connect(read_environment(), lambda size, room: (fd, bell)).close()\n"
    )
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        processes = []
        for rank in range(3):
            variables = {
                "COLLECTIVES_RANK": str(rank),
                "COLLECTIVES_SIZE": "3",
                "COLLECTIVES_RENDEZVOUS": f"127.0.0.1:{listener.getsockname()[1]}",
                "COLLECTIVES_TOKEN": "one token for all",
                "COLLECTIVES_TIMEOUT": str(LIMIT),
                "COLLECTIVES_RENDEZVOUS_FD": str(listener.fileno()),
            }
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", program],
                    env={**os.environ, **variables},
                    pass_fds=[listener.fileno()] if rank == 0 else [],
                )
            )
            stack.callback(processes[-1].kill)
        assert [process.wait(LIMIT) for process in processes] == [0, 0, 0]


def test_no_listening_socket_is_left():
    with job(3, transport="auto") as ranks:
        inodes = set()
        for rank in ranks:
            rank.hear()
            folder = f"/proc/{rank.process.pid}/fd"
            links = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]
            inodes |= {link[8:-1] for link in links if link.startswith("socket:[")}
        with open("/proc/net/unix") as file:
            entries = [line.split() for line in file][1:]
    ours = [entry for entry in entries if entry[6] in inodes]
    assert len(ours) == 6  # both ends of three pairs
    assert not [entry for entry in ours if int(entry[3], 16) & 0x10000]  # __SO_ACCEPTCON


class TestPartition:
    """The partition into hosts."""

    def test_proper_classes_come_out_as_they_are(self):
        groups = [[0, 3, 4], [1], [2, 5]]
        pairs = [pair for group in groups for pair in itertools.combinations(group, 2)]
        assert partition(6, pairs) == [0, 1, 2, 0, 0, 2]

    def test_not_transitive(self):
        # 0-1 and 1-2 but not 0-2
        assert partition(3, [(0, 1), (1, 2)]) == [0, 0, 1]

    def test_order_and_direction_do_not_matter(self):
        assert partition(3, [(2, 0), (0, 2)]) == [0, 1, 0]

    @pytest.mark.parametrize("seed", range(20))
    def test_members_of_a_group_all_have_each_other(self, seed):
        generator = random.Random(seed)
        pairs = [pair for pair in itertools.combinations(range(9), 2) if generator.random() < 0.7]
        host = partition(9, pairs)
        for a, b in itertools.combinations(range(9), 2):
            assert host[a] != host[b] or (a, b) in pairs
        firsts = [host.index(index) for index in range(max(host) + 1)]
        assert firsts == sorted(firsts)


class TestNumbers:
    """The numbers of the ranks."""

    def test_without_replicas_processes_keep_theirs(self):
        assert number_ranks([0, 1, 0], [None, None, None]) == [[0], [1], [2]]

    def test_one_replica_each_is_host_by_host(self):
        assert number_ranks([0, 1, 0], [1, 1, 1]) == [[0], [2], [1]]

    def test_host_then_process_then_replica(self):
        assert number_ranks([0, 1, 0, 1], [2, None, 3, 1]) == [[0, 1], [5], [2, 3, 4], [6]]


def test_a_crowd_is_more_ranks_than_cores_on_some_machine():
    a, b = {"machine": "a"}, {"machine": "b"}
    bound = [a | {"cores": [0]}, a | {"cores": [1]}]
    assert machines(bound, [[0], [1]]) == ([0, 0], [2])
    assert ranks_per_core(*machines(bound, [[0], [1]])) == 1
    assert ranks_per_core(*machines([*bound, a | {"cores": [0, 1]}], [[0], [1], [2]])) == 2
    assert ranks_per_core(*machines([*bound, a | {"cores": [0, 1]}], [[0], [1], [2, 3, 4]])) == 3
    assert machines([b | {"cores": [1, 3]}, *bound], [[1], [0], [2]]) == ([1, 0, 1], [2, 2])
    assert ranks_per_core(*machines([*bound, b | {"cores": [1]}], [[0], [1], [2]])) == 1
    assert ranks_per_core(*machines([*bound, b | {"cores": [1]}], [[0], [1], [2, 3]])) == 2
