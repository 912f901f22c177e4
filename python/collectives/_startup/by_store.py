"""Rendezvous by a key-value store that all ranks can reach, such as that of torchrun or of torch.distributed.

Rank 0 writes its address under one key for the whole job, over that of an earlier start. The key cannot have a number
of the start: a start may fail on some ranks only, and a launcher's own count may differ between nodes. So the others
may find an old address. It leads to no process, or to one that does not know the token; they then ask again until rank
0 has written.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Protocol

from ..errors import CollectivesError, DeadlineError
from .environment import Environment, read_environment
from .published import Lookup, publish, read_published
from .wire import Deadline

_PAUSE = 0.05  # seconds between questions to the store


class Store(Protocol):
    """What is used of a store, with the names of torch.distributed. Its errors are ``RuntimeError``."""

    def set(self, key: str, value: str) -> None:
        """Writes."""

    def get(self, key: str) -> bytes:
        """Reads; waits until the key exists."""

    def check(self, keys: list[str]) -> bool:
        """Whether they exist; waits for an answer, which ``set`` does not."""

    def compare_set(self, key: str, expected_value: str, desired_value: str) -> bytes:
        """Writes where the old value is the expected one."""

    def set_timeout(self, timeout: timedelta) -> None:
        """The limit of each call."""


@dataclass(frozen=True)
class Meeting:
    """The ranks of a job that meet.

    Attributes:
        rank, size: of this process.
        host, port: of the store, or an address of rank 0.
        key: under which the address of rank 0 is written.
        place: the store, in errors.
        caller: what every rank must call, in errors.
        is_lost: whether an error of the store means that the connection broke, not that the time is over.
    """

    rank: int
    size: int
    host: str
    port: int
    key: str
    place: str
    caller: str
    is_lost: Callable[[RuntimeError], bool]

    @contextlib.contextmanager
    def meet(
        self, store: Store, deadline: Deadline, own: bytes, timeout: float | None, arguments: dict[str, Any]
    ) -> Iterator[Environment]:
        """The launch environment, agreed with the other ranks; a context manager to be left when all have connected.

        Args:
            store: whose timeout is changed.
            deadline: of the start.
            own: the token that the user gave, or nothing.
            timeout, arguments: as for `read_environment`.

        Raises:
            CollectivesError: the connection to the store broke.
            DeadlineError: the store does not answer, or rank 0 writes nothing there.
            ValueError: an argument or variable is not acceptable, or rank 0 cannot listen.
        """

        def made(where: str, secret: bytes, **more: Any) -> Environment:
            environment = read_environment(
                rank=self.rank, size=self.size, rendezvous=where, token=secret, timeout=timeout, **arguments
            )
            return replace(environment, deadline=deadline, **more)

        def look() -> Environment | None:
            with self._store_call(store, deadline):
                text = store.get(self.key).decode()  # waits until the key exists
            return made(*read_published(text, own)) if text else None

        if self.rank == 0:
            try:
                listener, where, secret, text = publish(self.host, self.port, own)
            except OSError as error:
                raise ValueError(f"rank 0 cannot listen at the address of {self.place}: {error}") from error
            with listener:
                with self._store_call(store, deadline):
                    store.set(self.key, text)
                    store.check([self.key])
                try:
                    yield made(where, secret, rendezvous_fd=listener.fileno())
                finally:
                    self._erase(store, text)
            return
        while (environment := look()) is None:
            if deadline.remaining() == 0:
                raise self._no_answer(deadline)
            time.sleep(_PAUSE)
        yield replace(environment, lookup=Lookup(look, token_made=not own))

    @contextlib.contextmanager
    def _store_call(self, store: Store, deadline: Deadline) -> Iterator[None]:
        """Around a call of the store: sets its timeout to the time that is left, and translates its errors."""
        store.set_timeout(timedelta(seconds=patience(deadline)))
        try:
            yield
        except RuntimeError as error:
            if not self.is_lost(error):
                raise self._no_answer(deadline) from error
            raise CollectivesError(
                f"rank {self.rank} lost {self.place} while the job was starting. Look at the output of what runs it, "
                "and of rank 0",
                rank=self.rank,
            ) from error

    def _no_answer(self, deadline: Deadline) -> DeadlineError:
        if self.rank == 0:
            return DeadlineError(f"{self.place} did not answer rank 0 within {deadline.seconds:g} s", rank=0)
        return DeadlineError(
            f"rank {self.rank} waited {deadline.seconds:g} s for rank 0 to write its address to {self.place}. Look at "
            f"the output of rank 0: every rank must call {self.caller}. Or allow more time by "
            "COLLECTIVES_START_TIMEOUT (seconds)",
            rank=self.rank,
            peer=0,
        )

    def _erase(self, store: Store, text: str) -> None:
        """Deletes the token from the store when all have connected, unless another start has written since."""
        with contextlib.suppress(RuntimeError):  # the store has ended
            store.compare_set(self.key, text, "")


def patience(deadline: Deadline) -> float:
    """Seconds for one call of a store: above 0, which means no timeout, and small enough for its 64-bit count."""
    return min(max(deadline.remaining(), 0.001), 1e9)
