"""What `algorithm="auto"` takes the network between hosts to be: rate, latency and burst, the same on all ranks.

The rate is that of a host's port, in each direction, which its ranks share. ``COLLECTIVES_NETWORK`` says it; without
that it is the slowest of the speeds that hosts know of their interfaces, which virtual machines often do not. Nothing
is measured, so that the choice of algorithms, and with it the bits of results, stays the same from run to run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .interfaces import choose, interfaces

VARIABLE = "COLLECTIVES_NETWORK"
ACCEPTED = (
    "accepted are the bits per second of a host's port, with K, M, G or T behind the number, after a comma the latency "
    "between two hosts in ns, us or ms if you like, and after another one what the port lets through at once after a "
    "pause, in B, KiB or MiB: 25G or 25G,20us or 10G,20us,128KiB"
)
_SCALE = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_NANOSECONDS = {"ns": 1, "us": 10**3, "ms": 10**6}
_RATE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)(?:bit)?", re.IGNORECASE | re.ASCII)
_LATENCY = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms)", re.ASCII)
_BYTES = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_BURST = re.compile(r"(\d+(?:\.\d+)?)((?:[KMG]i)?)B", re.ASCII)
_LOWEST, _HIGHEST = 10**4, 10**14  # bits per second
_LONGEST = 10**9  # nanoseconds
_MOST_BURST = 2**30  # bytes


class Network(NamedTuple):
    """The port of a host and the way to another one.

    Attributes:
        bytes_per_ms: rate of the port in each direction.
        latency_ns: from one host to another, without the work of their processors.
        burst_bytes: what the port lets through at once after a pause, as the token buckets of clouds do.
    """

    bytes_per_ms: int = 1_250_000  # 10 Gbit/s
    latency_ns: int = 20_000
    burst_bytes: int = 0

    def __str__(self) -> str:
        burst = f", bursts of {self.burst_bytes} bytes" if self.burst_bytes else ""
        return f"{self.bytes_per_ms * 8e3 / 1e9:g} Gbit/s, {self.latency_ns / 1e3:g} us{burst}"


LOOPBACK = Network(12_500_000, 2_000)  # processes of one machine that share no memory: the processor is the limit


def parse(text: str, source: str = VARIABLE) -> Network:
    """
    Raises:
        ValueError: the text says no network; the error quotes it.
    """
    rate_text, *more = text.split(",")
    rate = _RATE.fullmatch(rate_text.strip())
    latency = _LATENCY.fullmatch(more[0].strip()) if more else None
    burst = _BURST.fullmatch(more[1].strip()) if len(more) > 1 else None
    if rate is None or len(more) > 2 or len(more) != sum(found is not None for found in (latency, burst)):
        raise ValueError(f"{source} is {text!r}; {ACCEPTED}")
    bits = float(rate[1]) * _SCALE[rate[2].upper()]
    nanoseconds = round(float(latency[1]) * _NANOSECONDS[latency[2]]) if latency else Network().latency_ns
    if not _LOWEST <= bits <= _HIGHEST:
        raise ValueError(
            f"{source} is {text!r}, a rate of {bits:g} bits per second; from 10K to 100T can be counted with"
        )
    if nanoseconds > _LONGEST:
        raise ValueError(f"{source} is {text!r}, a latency of {nanoseconds} ns; at most 1000ms can be counted with")
    burst_bytes = round(float(burst[1]) * _BYTES[burst[2]]) if burst else 0
    if burst_bytes > _MOST_BURST:
        raise ValueError(f"{source} is {text!r}, bursts of {burst_bytes} bytes; at most 1GiB can be counted with")
    return Network(round(bits / 8e3), nanoseconds, burst_bytes)


def port_speed(pattern: str, folder: Path = Path("/sys/class/net")) -> int:
    """Megabits per second of the fastest interface that data may use; 0 where none says.

    Args:
        pattern: of the interfaces that data may use, see `interfaces`.
    """
    try:
        names = dict.fromkeys(interface.name for interface in choose(pattern, interfaces()))
    except ValueError:  # no interface fits, which matters, and is reported, only where there are connections to make
        return 0
    return max((_speed(folder / name / "speed") for name in names), default=0)


def _speed(file: Path) -> int:
    try:
        return max(0, int(file.read_text()))  # -1: unknown
    except (OSError, ValueError):  # a kind of interface that has no speed
        return 0


def agreed(infos: Sequence[Mapping[str, Any]]) -> Network:
    """The network that all ranks count with.

    Args:
        infos: for each process its "network", the text of the variable, which is the same everywhere, its "machine",
            and its "port_speed" in Mbit/s.
    """
    if infos[0]["network"]:
        return parse(infos[0]["network"])
    if len({info["machine"] for info in infos}) == 1:
        return LOOPBACK
    known = [info["port_speed"] for info in infos if info["port_speed"] > 0]
    return Network(min(known) * 125) if known else Network()
