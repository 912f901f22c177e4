"""A stderr that is full and not read: the rank still receives failure reports, warns, explains and closes."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import Any

import collectives
import numpy as np
import pool
import pytest

KINDS = ["pipe", "socket", "terminal"]


def take_stderr(kind: str) -> tuple[int, ...]:
    """Gives this process a stderr that takes no more, and that is not read; the descriptors that must stay open."""
    if kind == "pipe":
        read, write = os.pipe()
    elif kind == "terminal":
        read, write = os.openpty()
    else:
        reader, writer = socket.socketpair()
        read, write = reader.detach(), writer.detach()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, b"x" * 65536)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, b"x")
    os.set_blocking(write, True)
    os.dup2(write, 2)
    return read, write


def fail_unheard(comm: Any, kind: str) -> list[Any]:
    """Warns, fails by a deadline, explains that, dumps the recorder, and closes."""
    comm.barrier()
    if comm.rank == 1:
        pool.say("late")
        pool.hear()
        return []
    kept = os.dup(2)
    held = take_stderr(kind)
    pool.say("late")
    began = time.monotonic()
    try:
        comm.all_reduce(np.ones(10), timeout=2)
        outcome = "no error"
    except collectives.DeadlineError as error:
        outcome = str(error)
    failed = time.monotonic() - began
    comm.close()
    closed = time.monotonic() - began - failed
    blocking = os.get_blocking(2)
    os.dup2(kept, 2)
    for descriptor in (*held, kept):
        os.close(descriptor)
    return [outcome, failed, closed, blocking]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_stderr_that_nobody_reads(groups: Any, transport: str, kind: str) -> None:
    group = groups(2, transport, limits={"warn": 0.3})
    group.start(fail_unheard, kind)
    for rank in group.ranks:
        assert rank.event() == "late"
    outcome = group.ranks[0].outcome(time.monotonic() + 60).value
    group.ranks[1].tell("go on")
    text, failed, closed, blocking = outcome
    assert "timeout" in text and "rank 1" in text, text
    assert failed < 2 + pool.NOTICED and closed < pool.NOTICED, outcome
    assert blocking, "other programs with the same stderr would see it change"
