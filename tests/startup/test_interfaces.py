"""Which interfaces carry data: the syntax, the race between addresses, and jobs on hosts with several links."""

import contextlib
import json
import re
import socket
import subprocess
import sys

import namespaces
import pytest
from collectives._startup.environment import read_environment
from collectives._startup.interfaces import Interface, choose, interface_addresses, interfaces, is_link_local
from collectives._startup.loop import Loop
from collectives._startup.mesh import Mesh, Reach
from collectives._startup.wire import Deadline
from joining import LIMIT
from namespaces import PORT, REASON, ip, with_hosts_file

needs_namespaces = pytest.mark.skipif(REASON is not None, reason=str(REASON))

FOUND = [
    Interface(name, address, 0)
    for name, address in [
        ("eth0", "10.0.0.1"),
        ("eth1", "10.0.1.1"),
        ("eth10", "10.0.2.1"),
        ("ib0", "10.1.0.1"),
        ("docker0", "172.17.0.1"),
        ("eth0", "fd00::1"),
    ]
]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("", "eth0 eth1 eth10 ib0 docker0 eth0"),
        ("eth", "eth0 eth1 eth10 eth0"),
        ("eth1", "eth1 eth10"),
        ("=eth1", "eth1"),
        ("ib,eth0", "eth0 ib0 eth0"),
        ("=ib0,eth0", "eth0 ib0 eth0"),
        ("^docker", "eth0 eth1 eth10 ib0 eth0"),
        ("^eth,ib", "docker0"),
        ("^=eth1,docker0", "eth0 eth10 ib0 eth0"),
        ("=eth", None),
        ("wlan", None),
        ("^eth,ib,docker", None),
    ],
)
def test_the_syntax_of_nccl(pattern, names):
    if names is not None:
        assert " ".join(entry.name for entry in choose(pattern, FOUND)) == names
        return
    with pytest.raises(ValueError) as caught:
        choose(pattern, FOUND)
    for part in ("COLLECTIVES_SOCKET_IFNAME", repr(pattern), "eth0, eth1, eth10, ib0, docker0"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "pattern", ["^", "=", "^=", ",", "eth,", "eth,^ib", "=eth0,=eth1", "=^eth", "a b", "x" * 16, "é"]
)
def test_bad_syntax(pattern):
    with pytest.raises(ValueError, match="COLLECTIVES_SOCKET_IFNAME is ") as caught:
        read_environment(environ={"COLLECTIVES_SOCKET_IFNAME": pattern})
    assert repr(pattern) in str(caught.value)
    assert "^=docker0" in str(caught.value)


def test_interfaces_are_those_of_the_system():
    """Against what the kernel says in another way."""
    indices = {name: index for index, name in socket.if_nameindex()}
    for entry in interfaces():
        assert entry.name in indices
        if ":" in entry.address:
            assert entry.scope == indices[entry.name]
        with socket.socket(socket.AF_INET6 if ":" in entry.address else socket.AF_INET) as sock:
            sock.bind(entry.sockaddr(0))
    assert not any(is_link_local(address) for _, address in interface_addresses())


def test_a_loopback_address_is_not_tried_between_hosts():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        loop = Loop()
        mesh = Mesh(loop, 1, "job", b"token", accept=[], reach=Reach(False, ""))
        mesh.start({0: [listener.getsockname(), ("::1", listener.getsockname()[1]), ("localhost", 1)]})
        assert not loop.run(mesh.finished, Deadline(0.5))
        assert "rank 0 offers no address that leads from this host to it" in mesh.missing()
        with pytest.raises(BlockingIOError):
            listener.accept()
        # That it would have been tried otherwise:
        mesh.close()
        mesh = Mesh(loop, 1, "job", b"token", accept=[], reach=Reach(True, ""))
        mesh.start({0: [listener.getsockname()]})
        loop.run(mesh.finished, Deadline(0.5))
        listener.accept()[0].close()
        mesh.close()
        loop.close()


LINKS = ("a", "b", "c")


@pytest.fixture
def hosts():
    """Two namespaces with three links: a and b with IPv4 (10.93.0.*, 10.94.0.*), c with link-local IPv6 only."""
    with namespaces.two_empty("i") as names:
        for link in LINKS:
            ends = [f"clv{link}{index}" for index in range(2)]
            ip("link", "add", ends[0], "netns", names[0], "type", "veth", "peer", "name", ends[1], "netns", names[1])
            for index, (name, end) in enumerate(zip(names, ends, strict=True)):
                # No address of the kernel's own making.
                ip("-n", name, "link", "set", end, "addrgenmode", "none")
                if link == "c":
                    ip("-n", name, "addr", "add", f"fe80::9:{index + 1}/64", "dev", end, "nodad")
                else:
                    third = 93 + LINKS.index(link)
                    ip("-n", name, "addr", "add", f"10.{third}.0.{index + 1}/24", "dev", end)
                ip("-n", name, "link", "set", end, "up")
        yield names


@contextlib.contextmanager
def job(hosts, places, rendezvous, folder, **variables):
    """A rank per entry of `places`; `rendezvous` is by host. What they print as errors goes to files in `folder`."""
    prefixes = [["sh", "-c", f'exec "$@" 2>{folder}/errors-{rank}', "sh"] for rank in range(len(places))]
    with namespaces.job(hosts, places, rendezvous, prefixes, **variables) as ranks:
        yield ranks


OVER_A = [f"10.93.0.1:{PORT}"] * 2
NETWORK = {"clva": "10.93.0.", "clvb": "10.94.0.", "clvc": "fe80::9:"}


@needs_namespaces
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", "clva"),  # all would do; the one of the rendezvous is known to work
        ("clvb", "clvb"),
        ("^clva,clvc", "clvb"),
        ("=clvb0,clvb1", "clvb"),
        ("clvc", "clvc"),
    ],
)
def test_data_go_over_the_interface_that_was_asked_for(hosts, tmp_path, pattern, expected):
    places = [0, 0, 1, 1]
    with job(hosts, places, OVER_A, tmp_path, socket_ifname=pattern) as ranks:
        reports = [rank.hear() for rank in ranks]
    for rank, report in enumerate(reports):
        assert report["host"] == places
        for other, seen in report["peers"].items():
            if places[rank] != places[int(other)]:
                assert seen["address"].startswith(NETWORK[expected])
    # The choice is printed once, by rank 0.
    printed = [(tmp_path / f"errors-{rank}").read_text() for rank in range(4)]
    assert re.fullmatch(
        rf"collectives: 4 ranks, TCP between hosts over \S+ {expected}0 {NETWORK[expected]}1, "
        rf"\S+ {expected}1 {NETWORK[expected]}2\n",
        printed[0],
    ), printed[0]
    assert printed[1:] == ["", "", ""]


@needs_namespaces
def test_an_interface_that_is_not_there(hosts, tmp_path):
    with job(hosts, [0, 1], OVER_A, tmp_path, socket_ifname="ib") as ranks:
        reports = [rank.hear() for rank in ranks]
    for report in reports:
        assert report["error"] in ("ValueError", "PeerError")  # its own, or that of the other
        assert "COLLECTIVES_SOCKET_IFNAME is 'ib'" in report["text"]
        assert "clva" in report["text"]
        assert report["leaked"] == 0


@needs_namespaces
def test_link_local_addresses_with_their_scope(hosts, tmp_path):
    """The rendezvous too; each host spells the interface as it calls it. Data follow, without being told."""
    rendezvous = [f"[fe80::9:1%clvc{index}]:{PORT}" for index in range(2)]
    with job(hosts, [0, 1, 1], rendezvous, tmp_path) as ranks:
        reports = [rank.hear() for rank in ranks]
    for rank, report in enumerate(reports):
        assert report["host"] == [0, 1, 1]
        for other, seen in report["peers"].items():
            if (rank == 0) != (other == "0"):
                assert seen["address"].startswith("fe80::9:")


@needs_namespaces
def test_a_name_with_an_address_that_swallows_packets(hosts, tmp_path):
    """The rendezvous at a name with two addresses, of which the first leads nowhere."""
    swallow(hosts)
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 localhost\n10.94.0.1 clv-node\n10.93.0.1 clv-node\n")
    prefixes = [with_hosts_file(file)] * 2
    with namespaces.job(hosts, [0, 1], f"clv-node:{PORT}", prefixes) as ranks:
        for report in [rank.hear() for rank in ranks]:
            assert report["host"] == [0, 1]


def swallow(hosts):
    """Link b stays up, but what goes from the second host to the first gets lost without a word."""
    ip("-n", hosts[1], "neigh", "add", "10.94.0.1", "lladdr", "02:00:00:00:00:99", "dev", "clvb1", "nud", "permanent")


MESH = """
import json, sys, time
from collectives._startup.loop import Loop
from collectives._startup.mesh import Mesh, Reach
from collectives._startup.wire import Deadline

rank, local = int(sys.argv[1]), sys.argv[2]
loop = Loop()
mesh = Mesh(loop, rank, "job", b"token", accept=[1] if rank == 0 else [], reach=Reach(False, local))
print(json.dumps(mesh.offered), flush=True)
offers = [(host, port) for host, port in json.loads(sys.stdin.readline())]
begin = time.monotonic()
mesh.start({0: offers} if rank else {})
done = loop.run(mesh.finished, Deadline(60))
print(json.dumps([done, time.monotonic() - begin, mesh.used(), mesh.missing()]), flush=True)
"""


@needs_namespaces
@pytest.mark.parametrize("how", ["swallowed", "down", "gone"])
def test_of_two_interfaces_one_is_cut(hosts, how):
    """It is tried first, and the other is taken before the attempt is given up."""
    if how == "swallowed":
        swallow(hosts)
    elif how == "down":
        ip("-n", hosts[1], "link", "set", "clvb1", "down")
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in range(2):
            command = ["ip", "netns", "exec", hosts[rank], sys.executable, "-c", MESH, str(rank), f"10.94.0.{rank + 1}"]
            ranks.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            stack.callback(ranks[-1].wait, LIMIT)
            stack.callback(ranks[-1].kill)
            stack.callback(ranks[-1].stdout.close)
            stack.callback(ranks[-1].stdin.close)
        offered, nothing = (json.loads(rank.stdout.readline()) for rank in ranks)
        assert nothing == []
        assert [host for host, _ in offered] == ["10.94.0.1", "10.93.0.1"]
        if how == "gone":
            ip("-n", hosts[0], "link", "del", "clvb0")
        for rank in ranks:
            print(json.dumps(offered), file=rank.stdin, flush=True)
        reports = [json.loads(rank.stdout.readline()) for rank in ranks]
    for rank, (done, seconds, used, missing) in enumerate(reports):
        assert done, missing
        assert used == [f"clva{rank} 10.93.0.{rank + 1}"]
        assert seconds < 9, "it waited until the attempt over the cut link was given up, which takes 10 s"
