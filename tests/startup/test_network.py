"""What the ranks take the network between hosts to be, from a variable or from the speeds of interfaces."""

from __future__ import annotations

import pytest
from collectives._startup import network
from collectives._startup.environment import read_environment
from collectives._startup.interfaces import Interface
from collectives._startup.network import Network, agreed, parse, port_speed


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("1G", (125_000, 20_000, 0)),
        ("25G,20us", (3_125_000, 20_000, 0)),
        ("1gbit,1.5us", (125_000, 1_500, 0)),
        ("2.5g, 100ns", (312_500, 100, 0)),
        ("100000000", (12_500, 20_000, 0)),
        ("10K,1ms", (1, 1_000_000, 0)),
        ("1G,2us,128KiB", (125_000, 2_000, 131_072)),
        ("10G, 20us, 1.5MiB", (1_250_000, 20_000, 1_572_864)),
        ("1G,2us,0B", (125_000, 2_000, 0)),
    ],
)
def test_text(text, network):
    assert parse(text) == network


@pytest.mark.parametrize(
    "text",
    [
        *("0", "0G", "9999", "101T", "G", "-1G", "25 G", "25Q", "25G,", "25G,20", "25G,1s,2us", "25G,1001ms"),
        *(
            "25G,20us,",
            "25G,20us,128",
            "25G,128KiB",
            "25G,,128KiB",
            "25G,20us,128KB",
            "25G,20us,-1B",
            "25G,20us,1025MiB",
        ),
        "25G,20us,1B,1B",
    ],
)
def test_what_says_no_network_is_quoted(text):
    with pytest.raises(ValueError, match="COLLECTIVES_NETWORK is ") as caught:
        read_environment(environ={"COLLECTIVES_NETWORK": text})
    assert repr(text) in str(caught.value)


def test_a_zero_rate_is_told_apart_from_what_cannot_be_read():
    with pytest.raises(ValueError, match=r"a rate of 0 bits per second; from 10K to 100T"):
        parse("0G")


def test_speeds_of_interfaces(tmp_path, monkeypatch):
    monkeypatch.setattr(network, "interfaces", list)
    assert port_speed("", tmp_path) == 0
    names = ("slow", "fast", "virtual", "odd", "gone")
    for name, text in zip(names, ("1000\n", "25000\n", "-1\n", "fast\n"), strict=False):
        (tmp_path / name).mkdir()
        (tmp_path / name / "speed").write_text(text)
    monkeypatch.setattr(network, "interfaces", lambda: [Interface(name, "10.0.0.1", 0) for name in names])
    assert port_speed("", tmp_path) == 25000
    assert port_speed("=slow", tmp_path) == 1000
    assert port_speed("=virtual,odd,gone", tmp_path) == 0
    assert port_speed("=missing", tmp_path) == 0  # the mesh reports it, where it needs connections


def infos(*speeds, text="", machines="abc"):
    return [{"network": text, "port_speed": s, "machine": m} for s, m in zip(speeds, machines, strict=False)]


def test_all_ranks_count_with_the_slowest_port_that_is_known():
    assert agreed(infos(25000, 10000, 0)) == Network(10000 * 125)
    assert agreed(infos(0, 0)) == Network()
    assert agreed(infos(25000, 10000, text="1G,5us")) == Network(125_000, 5_000)


def test_within_one_machine_no_port_is_counted_unless_somebody_says_so():
    assert agreed(infos(1000, 1000, machines="aa")) == network.LOOPBACK
    assert agreed(infos(1000, 1000, machines="aa", text="1G")) == parse("1G")
