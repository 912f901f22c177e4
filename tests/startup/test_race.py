"""Reaching a peer at several addresses, and the sockets on which it may be reached."""

import os
import resource
import socket
import sys

import pytest
from collectives._startup import sockets, wire
from collectives._startup.interfaces import Interface
from collectives._startup.loop import Loop
from collectives._startup.race import Race, Target
from collectives._startup.wire import Deadline

LIMIT = 30.0  # seconds that nothing here may reach


@pytest.mark.parametrize("family", [socket.AF_INET, 12345])
def test_more_addresses_that_fail_at_once_than_python_calls_deep(family):
    """The network says no to a broadcast address, and the kernel to a family that there is none of."""
    count = sys.getrecursionlimit()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        targets = [Target(family, ("255.255.255.255", 1), str(number)) for number in range(count)]
        targets.append(Target(socket.AF_INET, listener.getsockname(), "good"))
        loop, won = Loop(), []
        race = Race(loop, lambda: targets, nothing, won.append, pauses=(0.01, 0.01))
        race.start()
        assert loop.run(lambda: bool(won), Deadline(LIMIT))
        race.stop()
        assert len(race.failures) == count
        won[0].close()
        loop.close()


def nothing(sock):
    yield from wire.send_bytes(sock, b"")


def test_rounds_follow_one_another():
    """Each begins once, when the one before has failed, also when several addresses fail at once."""
    begun = []

    def find():
        begun.append(race._begun)
        return [Target(socket.AF_INET, ("255.255.255.255", 1), str(number)) for number in range(5)]

    loop = Loop()
    race = Race(loop, find, nothing, lambda sock: None, pauses=(0.01, 0.01))
    race.start()
    assert loop.run(lambda: len(begun) == 10, Deadline(LIMIT))
    assert begun == list(range(0, 50, 5))
    race.stop()
    loop.close()


@pytest.mark.parametrize("where", ["interfaces", "anywhere"])
def test_listening_without_descriptors(where):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    interfaces = [Interface("lo", "127.0.0.1", 0)] * 4
    before = os.listdir("/proc/self/fd")
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))  # which leaves one
    try:
        with pytest.raises(OSError) as caught:
            sockets.listen_on_interfaces(interfaces) if where == "interfaces" else sockets.listen_anywhere(0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert sockets.out_of_files(caught.value)
    assert os.listdir("/proc/self/fd") == before
