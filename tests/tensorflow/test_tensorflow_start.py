"""How workers start when the port of one of them is held by another process, or one dies while they start."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import test_tensorflow_failures as failures
import tiers
from collectives._startup.sockets import listen_anywhere
from collectives._startup.wire import Deadline
from collectives.tensorflow import _private, _start
from collectives.tensorflow._tf_config import TFConfig
from pool import NOTICED
from tf_workers import TASKS, Workers

start = failures.start  # the fixture
TIMEOUT = 6.0  # seconds that a start may take
IMPORT = 30.0  # seconds more, since TensorFlow is imported first
ANSWERS = {"silent": None, "closing": b"", "http": b"HTTP/1.1 400 Bad Request\r\n\r\n"}


@contextlib.contextmanager
def held(port: int, answer: bytes | None = None) -> Iterator[None]:
    """A stranger listens on a port, and says `answer` to all who come, or nothing."""
    listeners = listen_anywhere(port)
    connections: list[socket.socket] = []

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it is shut down at the end
            while True:
                connection, _ = listener.accept()
                connections.append(connection)
                if answer is not None:
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)

    threads = []
    for listener in listeners:
        listener.setblocking(True)
        threads.append(threading.Thread(target=serve, args=(listener,)))
        threads[-1].start()
    try:
        yield
    finally:
        for listener in listeners:
            listener.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for sock in (*listeners, *connections):
            sock.close()


def config_of(workers: Workers, rank: int) -> TFConfig:
    return TFConfig({"worker": [f"localhost:{port}" for port in workers.ports]}, "worker", rank)


def outcomes(workers: Workers) -> tuple[list[Any], float]:
    began = time.monotonic()
    found = workers.outcomes(failures.never, TIMEOUT)
    return found, max(outcome.ended for outcome in found) - began


def test_the_port_of_a_worker_is_held(start: Callable[..., Workers]) -> None:
    """That worker reports it to the first, so both end before the time is over."""
    from tensorflow.errors import UnavailableError

    workers = start()
    with held(workers.ports[1]):
        found, _ = outcomes(workers)
        for outcome in found:
            assert isinstance(outcome.error, UnavailableError), outcome.text
            assert f"worker 1 at localhost:{workers.ports[1]} cannot listen on its port" in outcome.error.message
    assert workers.leave() == [0, 0]


@pytest.mark.parametrize("holder", ANSWERS if tiers.full() else ["http"])
def test_the_port_of_the_first_worker_is_held(start: Callable[..., Workers], holder: str) -> None:
    from tensorflow.errors import DeadlineExceededError, UnavailableError

    workers = start()
    with held(workers.ports[0], ANSWERS[holder]):
        (first, second), took = outcomes(workers)
    assert isinstance(first.error, UnavailableError), first.text
    assert f"worker 0 at localhost:{workers.ports[0]} cannot listen on its port" in first.error.message
    assert isinstance(second.error, DeadlineExceededError), second.text
    text = second.error.message
    assert f"worker 0 at localhost:{workers.ports[0]} has not started the job: the process that" in text, text
    assert took < TIMEOUT + NOTICED + IMPORT
    assert workers.leave() == [0, 0]


@pytest.mark.parametrize("holder", ANSWERS if tiers.full() else ["silent"])
def test_somebody_else_in_the_place_of_a_worker(start: Callable[..., Workers], holder: str) -> None:
    """Worker 1 is not there, but a stranger listens at its address."""
    from tensorflow.errors import DeadlineExceededError

    workers = start(started=TASKS[:1])
    with held(workers.ports[1], ANSWERS[holder]):
        (outcome,), took = outcomes(workers)
    assert isinstance(outcome.error, DeadlineExceededError), outcome.text
    assert f"worker 1 at localhost:{workers.ports[1]} (the process that listens there" in outcome.error.message
    assert took < TIMEOUT + NOTICED + IMPORT
    assert workers.leave() == [0]


@pytest.mark.skipif(not _private.COORDINATION_HAS_BARRIER, reason="this TensorFlow waits for an hour")
def test_a_worker_that_registers_never(start: Callable[..., Workers]) -> None:
    """It has met the first worker, and listens where its server should."""
    from tensorflow.errors import DeadlineExceededError

    workers = start(started=TASKS[:1])
    workers.start(failures.never, TIMEOUT)
    _start.meet(config_of(workers, 1), Deadline(TIMEOUT + IMPORT))
    with held(workers.ports[1]):
        outcome = workers.processes[0].outcome()
    assert isinstance(outcome.error, DeadlineExceededError), outcome.text
    assert "worker 0 at" in outcome.error.message
    assert workers.leave() == [0]


def test_a_worker_that_starts_again(start: Callable[..., Workers]) -> None:
    """The first forgets the one that has gone; one of another job gets an error for it, and strangers do no harm."""
    workers = start()
    first, second = workers.processes
    first.tell((failures.again, ()))
    other = TFConfig({"worker": [*config_of(workers, 0).cluster["worker"], "localhost:1"]}, "worker", 1)
    with pytest.raises(_start.StartError, match=r"is of a job with \{'worker': 2\}, not with \{'worker': 3\}"):
        _start.meet(other, Deadline(IMPORT))
    with socket.create_connection(("localhost", workers.ports[0])) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        second.tell((failures.again, ()))
        for worker in workers.processes:
            outcome = worker.outcome()
            assert outcome.error is None, outcome.text
            assert outcome.value == (3.0, 2)
    assert workers.leave() == [0, 0]
