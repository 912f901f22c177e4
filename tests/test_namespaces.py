"""Hosts as network namespaces: ranks of one namespace share memory, ranks of different ones use TCP."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from test_bootstrap import LIMIT, MAPPED, Rank

PORT = 29417


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=LIMIT)


def why_not():
    """Why namespaces cannot be made here, or None."""
    if os.geteuid() != 0:
        return "it needs root to make network namespaces"
    if shutil.which("ip") is None:
        return "it needs the command `ip` (package iproute2)"
    name = f"clv-probe-{os.getpid()}"
    try:
        ip("netns", "add", name)
        ip("netns", "del", name)
    except subprocess.CalledProcessError as error:
        return f"`ip netns add` fails here: {error.stderr.strip()}"
    return None


REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@contextlib.contextmanager
def two_hosts():
    """Two namespaces joined by a veth pair, with IPv4 10.91.0.1/2 and IPv6 fd91::1/2; gone afterwards."""
    names = [f"clv-{os.getpid()}-{index}" for index in range(2)]
    with contextlib.ExitStack() as stack:
        for name in names:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
        # The devices go with the namespaces.
        ip("link", "add", "clv0", "netns", names[0], "type", "veth", "peer", "name", "clv1", "netns", names[1])
        for index, name in enumerate(names):
            device = f"clv{index}"
            ip("-n", name, "addr", "add", f"10.91.0.{index + 1}/24", "dev", device)
            # The same address on both hosts, as the bridges of container runtimes have it; a trap for the mesh.
            ip("-n", name, "addr", "add", "10.92.0.1/24", "dev", "lo")
            with contextlib.suppress(subprocess.CalledProcessError):  # no IPv6 in this kernel
                ip("-n", name, "addr", "add", f"fd91::{index + 1}/64", "dev", device, "nodad")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", device, "up")
        yield names


@pytest.fixture
def hosts():
    """See `two_hosts`."""
    with two_hosts() as names:
        yield names


@contextlib.contextmanager
def job(hosts, places, address, **variables):
    """A rank per entry of `places` (indices of hosts); rank 0 listens at `address`."""
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank, place in enumerate(places):
            own = {
                "COLLECTIVES_RANK": str(rank),
                "COLLECTIVES_SIZE": str(len(places)),
                "COLLECTIVES_RENDEZVOUS": address,
                "COLLECTIVES_TOKEN": "y" * 64,
                "COLLECTIVES_TIMEOUT": str(LIMIT),
                **{f"COLLECTIVES_{name.upper()}": value for name, value in variables.items()},
            }
            ranks.append(Rank(own, prefix=["ip", "netns", "exec", hosts[place]]))
            stack.callback(ranks[-1].close)
        yield ranks


def has_ipv6():
    return os.path.exists("/proc/net/if_inet6")


@pytest.mark.parametrize("address", [f"10.91.0.1:{PORT}", f"[fd91::1]:{PORT}"])
@pytest.mark.parametrize("places", [[0, 1], [0, 0, 1, 1], [0, 1, 1, 0, 1], [0, 0, 0]])
def test_memory_inside_tcp_across(hosts, places, address):
    if "[" in address and not has_ipv6():
        pytest.skip("no IPv6 in this kernel")
    with job(hosts, places, address) as ranks:
        reports = [rank.hear() for rank in ranks]
    for rank, report in enumerate(reports):
        assert report["host"] == places
        for other, seen in report["peers"].items():
            other = int(other)
            assert seen["has"] == (MAPPED if places[rank] == places[other] else ["tcp_fd"])
            if places[rank] != places[other]:
                assert seen["address"].startswith(("10.91.0.", "fd91::"))
            else:
                assert seen["memory"] == f"memory of rank {other}"


def test_tcp_for_all(hosts):
    with job(hosts, [0, 0, 1], f"10.91.0.1:{PORT}", transport="tcp") as ranks:
        for report in [rank.hear() for rank in ranks]:
            assert report["host"] == [0, 1, 2]
            assert all(seen["has"] == ["tcp_fd"] for seen in report["peers"].values())


def test_shm_across_hosts_is_an_error(hosts):
    with job(hosts, [0, 0, 1], f"10.91.0.1:{PORT}", transport="shm") as ranks:
        for report in [rank.hear() for rank in ranks]:
            assert report["error"] == "CollectivesError"
            assert "rank 0 (host " in report["text"]
            assert "rank 2 (host " in report["text"]
            assert report["leaked"] == 0


def test_no_token_across_hosts(hosts):
    with job(hosts, [0, 1], f"10.91.0.1:{PORT}", token="") as ranks:
        for report in [rank.hear() for rank in ranks]:
            assert report["error"] == "ValueError"
            assert "COLLECTIVES_TOKEN" in report["text"]


def test_unreachable(hosts):
    """The other host's link is down: nobody answers, within the timeout."""
    ip("-n", hosts[1], "link", "set", "clv1", "down")
    with job(hosts, [0, 1], f"10.91.0.1:{PORT}", timeout="1.5") as ranks:
        reports = [rank.hear() for rank in ranks]
    assert [report["error"] for report in reports] == ["DeadlineError", "DeadlineError"]
    assert "rank 1 did not come" in reports[0]["text"]
    assert f"10.91.0.1:{PORT}" in reports[1]["text"]


def test_a_name_that_is_loopback_here(hosts, tmp_path):
    """Debian maps a host's own name to 127.0.1.1; rank 0 must still be found by others under its real address."""
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        pytest.skip("it needs unshare and mount")
    own, other = tmp_path / "own", tmp_path / "other"
    own.write_text("127.0.0.1 localhost\n127.0.1.1 clv-node\n")
    other.write_text("127.0.0.1 localhost\n10.91.0.1 clv-node\n")
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank, file in enumerate((own, own, other)):
            script = f'mount --bind {file} /etc/hosts && exec "$@"'
            prefix = ["ip", "netns", "exec", hosts[rank // 2], "unshare", "-m", "sh", "-c", script, "sh"]
            variables = {
                "COLLECTIVES_RANK": str(rank),
                "COLLECTIVES_SIZE": "3",
                "COLLECTIVES_RENDEZVOUS": f"clv-node:{PORT}",
                "COLLECTIVES_TOKEN": "z" * 64,
                "COLLECTIVES_TIMEOUT": str(LIMIT),
            }
            ranks.append(Rank(variables, prefix=prefix))
            stack.callback(ranks[-1].close)
        for report in [rank.hear() for rank in ranks]:
            assert report["host"] == [0, 0, 1]
