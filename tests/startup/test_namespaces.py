"""How ranks of two hosts find each other: memory inside a host and TCP across."""

import os
import shutil

import pytest
from joining import MAPPED
from namespaces import PORT, REASON, ip, job, with_hosts_file

pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


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
    """The other host's link is down: an error within the timeout."""
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
    prefixes = [with_hosts_file(file) for file in (own, own, other)]
    with job(hosts, [0, 0, 1], f"clv-node:{PORT}", prefixes) as ranks:
        for report in [rank.hear() for rank in ranks]:
            assert report["host"] == [0, 0, 1]
