"""A relay between hosts that delays, reorders, doubles and drops packets, since not every kernel has `netem`.

Each host gets a TUN device, clvt, whose other end is a descriptor of the relay. The relay looks at the destination of
each IPv4 packet and hands it to that host: later, twice, or never. What happens to the k-th packet from a host depends
on the seed, the host and k only.

    python relay.py NAMESPACE=ADDRESS ...

Then each line of its input is a JSON object with new settings (those of `Settings`), to which it answers by a line with
what it has done to packets since the line before. It ends with its input.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import socket
import struct
import sys
import time
from dataclasses import dataclass

MTU = 1500
DEVICE = "clvt"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000
_BURST = 64  # packets of one host before the others get a turn


@dataclass(frozen=True)
class Settings:
    """What happens to packets.

    Attributes:
        delay_ms: each is handed on so much later.
        late: probability that it is handed on `late_ms` later still, so that others overtake it.
        late_ms: see there.
        drop: probability that it is not handed on at all.
        double: probability that it is handed on twice.
        seed: of the chances above.
    """

    delay_ms: float = 0.0
    late: float = 0.0
    late_ms: float = 0.0
    drop: float = 0.0
    double: float = 0.0
    seed: int = 1


def open_tun(namespace: str) -> int:
    """A new TUN device in a namespace; the descriptor at its other end, non-blocking."""
    libc = ctypes.CDLL(None, use_errno=True)
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    other = os.open(f"/run/netns/{namespace}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(other, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespace}")
        try:
            tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
        finally:
            libc.setns(own, _CLONE_NEWNET)
    finally:
        os.close(own)
        os.close(other)
    return tun


class Relay:
    """Carries packets between the given descriptors, by IPv4 address."""

    def __init__(self, hosts: dict[bytes, int]) -> None:
        self._hosts = hosts
        self._waiting: list[tuple[float, int, int, bytes]] = []  # when, a number that keeps their order, where to, what
        self._numbers = itertools.count()
        self.change(Settings())

    def change(self, settings: Settings) -> None:
        self._settings = settings
        self._chances = {tun: random.Random(f"{settings.seed} {address.hex()}") for address, tun in self._hosts.items()}
        self.done = dict.fromkeys(("packets", "late", "doubled", "dropped", "lost"), 0)

    def take(self, tun: int) -> None:
        """Takes what a host has sent."""
        settings, chance = self._settings, self._chances[tun].random
        for _ in range(_BURST):
            try:
                packet = os.read(tun, MTU + 64)
            except (BlockingIOError, OSError):
                return  # no more, or the device is down
            to = self._hosts.get(packet[16:20]) if packet[0] >> 4 == 4 else None
            if to is None:
                continue  # IPv6 that looks for routers
            # Three chances for every packet, whatever comes of them.
            drop, double, late = chance() < settings.drop, chance() < settings.double, chance() < settings.late
            self.done["packets"] += 1
            if drop:
                self.done["dropped"] += 1
                continue
            due = time.monotonic() + (settings.delay_ms + (settings.late_ms if late else 0.0)) / 1000
            self.done["late"] += late
            self.done["doubled"] += double
            for _ in range(1 + double):
                heapq.heappush(self._waiting, (due, next(self._numbers), to, packet))

    def hand_on(self) -> float | None:
        """Hands on what is due; seconds until the next is."""
        while self._waiting:
            rest = self._waiting[0][0] - time.monotonic()
            if rest > 0:
                return rest
            _, _, to, packet = heapq.heappop(self._waiting)
            try:
                os.write(to, packet)
            except OSError:
                self.done["lost"] += 1  # the device is down, or its queue is full
        return None

    def run(self) -> None:
        """Until the input ends."""
        poll = select.poll()
        for descriptor in (0, *self._hosts.values()):
            poll.register(descriptor, select.POLLIN)
        line = b""
        while True:
            rest = self.hand_on()
            for descriptor, _ in poll.poll(None if rest is None else rest * 1000):
                if descriptor != 0:
                    self.take(descriptor)
                    continue
                piece = os.read(0, 4096)
                if not piece:
                    return
                line += piece
                if line.endswith(b"\n"):
                    print(json.dumps(self.done), flush=True)
                    self.change(Settings(**json.loads(line)))
                    line = b""


def main() -> None:
    pairs = [word.split("=") for word in sys.argv[1:]]
    Relay({socket.inet_aton(address): open_tun(name) for name, address in pairs}).run()


if __name__ == "__main__":
    main()
