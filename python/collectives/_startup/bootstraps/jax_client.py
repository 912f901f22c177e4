"""The distributed client of JAX, after ``jax.distributed.initialize()``: its key-value store, rank and size.

Accepted are ``jax._src.distributed.global_state`` and its ``client``. JAX has no public name for either.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from ..environment import Environment
from ..settings import address
from . import agree, meet_by_store


class _Store:
    """The store, with the names of torch.distributed."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._milliseconds = 1000

    def set(self, key: str, value: str) -> None:
        self._client.key_value_set(key, value, allow_overwrite=True)

    def get(self, key: str) -> bytes:
        return str(self._client.blocking_key_value_get(key, self._milliseconds)).encode()

    def check(self, keys: list[str]) -> bool:
        return bool([self.get(key) for key in keys])

    def compare_set(self, key: str, expected_value: str, desired_value: str) -> bytes:
        # Not atomic, which does not matter: rank 0 alone writes the key, and its calls of init come one by one.
        if self.get(key).decode() == expected_value:
            self.set(key, desired_value)
        return self.get(key)

    def set_timeout(self, timeout: timedelta) -> None:
        self._milliseconds = max(1, min(int(timeout.total_seconds() * 1000), 1 << 30))


@dataclass(frozen=True)
class Job:
    """The processes of JAX."""

    RANK_VARIABLE: ClassVar[str] = "process_id of JAX"
    SIZE_VARIABLE: ClassVar[str] = "num_processes"
    place: ClassVar[str] = "the coordination service of JAX"

    client: Any
    rank: int
    size: int
    coordinator: str

    @contextlib.contextmanager
    def meet(self, *, token: str | bytes | None, timeout: float | None, **arguments: Any) -> Iterator[Environment]:
        """The launch environment, agreed with the other ranks; a context manager to be left when all have connected."""
        with meet_by_store(
            self,
            _Store(self.client),
            lambda _: address(self.coordinator, "the address of JAX's coordinator"),
            lambda error: "DEADLINE_EXCEEDED" not in str(error),
            token,
            timeout,
            arguments,
        ) as environment:
            yield environment


class _JaxClient:
    NAME: ClassVar[str] = "the distributed client of JAX (after jax.distributed.initialize())"

    def accepts(self, value: Any) -> bool:
        state = _state()
        return state is not None and value is not None and (value is state or value is state.client)

    def job(self, value: Any, rank: int | None, size: int | None) -> Job:
        state = _state()
        if state is None or state.client is None:
            raise ValueError("bootstrap= is the distributed state of JAX: call jax.distributed.initialize() before")
        agree("the client", (state.process_id, state.num_processes), rank, size)
        return Job(state.client, state.process_id, state.num_processes, state.coordinator_address)


def _state() -> Any:
    return getattr(sys.modules.get("jax._src.distributed"), "global_state", None)


BOOTSTRAP = _JaxClient()
