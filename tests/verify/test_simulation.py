"""Schedules in virtual time: what is expected of each algorithm between hosts, and so which one is chosen."""

from __future__ import annotations

import pytest
from collectives import _core

GBIT = 125_000  # bytes per ms
FREE_BYTES = {"send_byte_ps": 1, "receive_byte_ps": 1}
TWO_LEVEL = [0, 0, 1, 1, 2, 2, 3, 3]  # 4 hosts of 2 ranks


def times(collective, nbytes, hosts, **network):
    """By algorithm, microseconds; those that cannot be used are left out."""
    found = _core._predictions_for(collective, nbytes, hosts=hosts, **network)
    assert found["simulated"]
    assert not any(entry["formula"] for entry in found["candidates"])
    return {entry["algorithm"]: entry["us"] for entry in found["candidates"] if not entry["unsupported"]}


def test_one_port_carries_what_all_ranks_of_its_host_send():
    """Twice as many ranks on a host with the same port: everyone's own message takes twice as long."""
    nbytes = 8 << 20
    ring = times("all_gather", nbytes, [0, 1, 2, 3], bytes_per_ms=GBIT)["ring"]
    wire = nbytes * 3 / 4 / GBIT * 1e3
    assert wire <= ring <= 1.15 * wire
    apart = times("all_to_all", nbytes, [0, 1, 2, 3], bytes_per_ms=GBIT)["one_shot"]
    shared = times("all_to_all", nbytes, [0, 0, 1, 1], bytes_per_ms=GBIT)["one_shot"]
    assert 1.2 <= shared / apart <= 1.45  # half of the bytes leave a rank's host rather than 3/4, of two ranks


def test_the_wire_bounds_every_prediction():
    nbytes = 4 << 20
    for algorithm, us in times("all_reduce", nbytes, TWO_LEVEL, bytes_per_ms=GBIT).items():
        assert us >= 2 * 3 / 4 * nbytes / GBIT * 1e3 * 0.999, algorithm


def test_a_faster_network_takes_less_and_a_slower_one_more():
    slow = times("all_reduce", 1 << 20, TWO_LEVEL, bytes_per_ms=GBIT)
    fast = times("all_reduce", 1 << 20, TWO_LEVEL, bytes_per_ms=25 * GBIT)
    far = times("all_reduce", 1 << 20, TWO_LEVEL, bytes_per_ms=GBIT, latency_ns=10**7)
    for algorithm in slow:
        assert fast[algorithm] < slow[algorithm] < far[algorithm]


def test_what_fits_a_burst_does_not_wait_for_the_rate_of_the_port():
    """One port sends one message: what is beyond the burst takes its time, the rest none."""
    network = {"hosts": [0, 1, 2], "bytes_per_ms": GBIT, "latency_ns": 0, "costs": FREE_BYTES}
    rate = times("broadcast", 256 << 10, **network)["one_shot"]
    burst = times("broadcast", 256 << 10, burst_bytes=128 << 10, **network)["one_shot"]
    assert rate - burst == pytest.approx((128 << 10) / GBIT * 1e3, rel=0.05)
    assert times("broadcast", 256 << 10, burst_bytes=1 << 20, **network)["one_shot"] < 0.1 * rate
    long = times("broadcast", 1 << 30, burst_bytes=128 << 10, **network)["one_shot"]
    assert long == pytest.approx(times("broadcast", 1 << 30, **network)["one_shot"], rel=0.01)


@pytest.mark.parametrize(
    "hosts",
    [
        TWO_LEVEL,
        [0, 0, 1, 1],
        list(range(8)),
        [0, 0, 0, 1, 2],
        [h for h in range(8) for _ in range(4)],
        list(range(32)),
    ],
)
@pytest.mark.parametrize(
    "network",
    [
        {"bytes_per_ms": GBIT, "burst_bytes": 128 << 10},
        {"bytes_per_ms": 100 * GBIT},
        {"bytes_per_ms": 10 * GBIT, "cores": [2]},
    ],
    ids=["slow", "fast", "crowded"],
)
def test_what_is_counted_is_never_more_than_what_is_simulated(hosts, network):
    """By what is counted algorithms are ruled out before they are simulated."""
    place = {"machine": [0] * len(hosts)} if "cores" in network else {}
    seen = 0
    for collective in (
        "all_reduce",
        "reduce",
        "broadcast",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "gather",
        "scatter",
    ):
        for nbytes in (8, 24_000, 3 << 20, 9 << 20, 40 << 20, 1 << 30):
            found = _core._predictions_for(collective, nbytes, hosts=hosts, **place, **network)
            for entry in found["candidates"]:
                if not entry["unsupported"] and not entry["formula"] and not entry["at_least"]:
                    assert 0 < entry["least_us"] <= entry["us"], (collective, nbytes, entry)
                    seen += 1
    assert seen > 64


@pytest.mark.parametrize("rate", [1, GBIT, 800 * GBIT])
def test_no_time_is_beyond_what_a_number_holds(rate):
    """`explain` takes any length that a call can have; the longest on the slowest network counts as 53 days."""
    last = {}
    for nbytes in (1 << 30, 1 << 40, 1 << 50):
        found = _core._predictions_for("all_reduce", nbytes, hosts=list(range(8)), bytes_per_ms=rate)
        us = {entry["algorithm"]: entry["us"] for entry in found["candidates"] if not entry["unsupported"]}
        for entry in found["candidates"]:
            if not entry["unsupported"]:
                assert last.get(entry["algorithm"], 0) <= entry["us"] <= 2**62 / 1e6
                assert 0 < entry["least_us"] <= entry["us"]
        last = us


def test_ranks_that_share_cores_take_longer():
    apart = times("all_reduce", 4 << 20, TWO_LEVEL, bytes_per_ms=100 * GBIT)
    together = times("all_reduce", 4 << 20, TWO_LEVEL, machine=[0] * 8, cores=[2], bytes_per_ms=100 * GBIT)
    for algorithm in apart:
        assert together[algorithm] > 1.15 * apart[algorithm]


def test_times_grow_with_the_size_and_are_drawn_out_beyond_what_is_simulated():
    last = dict.fromkeys(times("all_reduce", 0, TWO_LEVEL), 0.0)
    for nbytes in (8, 1 << 10, 1 << 16, 1 << 20, 1 << 23, 1 << 24, 1 << 30):
        now = times("all_reduce", nbytes, TWO_LEVEL, bytes_per_ms=GBIT)
        assert all(now[algorithm] >= last[algorithm] for algorithm in now), nbytes
        last = now
    wire = 2 * 3 / 4 * 2**30 / GBIT * 1e3
    assert min(last.values()) <= 1.25 * wire


def test_between_hosts_with_one_port_the_two_level_form_is_chosen_for_long_arrays():
    """The case in which counting a port for each rank chose two_shot, which takes twice as long."""
    found = times("all_reduce", 16 << 20, TWO_LEVEL, bytes_per_ms=GBIT)
    assert found["two_shot"] > 1.5 * found["hierarchical"]
    assert min(found, key=found.get) != "two_shot"


@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "reduce", "all_gather", "barrier", "scan"])
def test_every_schedule_ends(collective):
    for hosts in ([0, 0, 1], [0, 1, 0, 1, 2], list(range(7))):
        for nbytes in (0, 4, 100, 70_000, 1_000_000):
            found = times(collective, nbytes, hosts)
            assert found
            assert all(us > 0 for us in found.values())


def test_on_one_host_formulas_are_asked_and_for_two_ranks_too():
    assert not _core._predictions_for("all_reduce", 8, hosts=[0, 0])["simulated"]
    assert not _core._predictions_for("all_reduce", 8, hosts=[0, 1])["simulated"]


@pytest.mark.parametrize("nbytes", [8, 65_536, 1_000_000])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"])
def test_one_host_stands_for_all_as_if_all_were_simulated(collective, nbytes):
    """The machines of the other job are numbered in another order, by which it is not taken for one of equal hosts."""
    hosts = [r // 4 for r in range(32)]
    folded = times(collective, nbytes, hosts, bytes_per_ms=GBIT)
    whole = times(collective, nbytes, hosts, machine=[7 - host for host in hosts], bytes_per_ms=GBIT)
    assert folded.keys() == whole.keys()
    best = min(whole, key=whole.get)
    assert folded[best] == pytest.approx(whole[best], rel=0.1)
    assert min(folded.values()) == pytest.approx(whole[best], rel=0.1)


def test_large_jobs_are_folded():
    hosts = [r // 8 for r in range(512)]
    found = _core._predictions_for("all_reduce", 64 << 20, hosts=hosts, bytes_per_ms=25 * GBIT)
    assert found["simulated"]
    best = found["candidates"][0]
    wire = 2 * 63 / 64 * (64 << 20) / (25 * GBIT) * 1e3
    assert wire <= best["us"] <= 1.5 * wire
    assert best["algorithm"] in {"hierarchical", "ring", "halving_doubling"}


def test_a_root_that_does_not_exist():
    with pytest.raises(ValueError, match="root 2 is out of range: the group has ranks 0 to 1"):
        _core._predictions_for("reduce", 8, root=2, hosts=[0, 1])


def test_in_a_large_job_a_formula_counts_only_where_nothing_was_simulated():
    """It does not know the network: where that is very slow, its microseconds would look like the fastest way."""
    hosts = [h for h in range(64) for _ in range(8)]
    found = _core._predictions_for("reduce", 1 << 20, hosts=hosts, bytes_per_ms=GBIT // 1000)
    usable = [entry for entry in found["candidates"] if not entry["unsupported"]]
    kinds = [entry["formula"] for entry in usable]
    assert set(kinds) == {False, True}
    assert kinds == sorted(kinds)
    guessed = min(entry["us"] for entry in usable if entry["formula"])
    assert guessed < usable[0]["us"]  # else the order by time alone would be the same
