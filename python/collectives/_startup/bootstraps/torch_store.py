"""A store of torch.distributed, such as a ``TCPStore`` or ``FileStore``; rank and size have to be given."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ..environment import Environment, read_environment, read_place
from ..launchers import find_job
from . import KEY, meet_by_store


@dataclass(frozen=True)
class Job:
    """The ranks that have a store."""

    RANK_VARIABLE: ClassVar[str] = "rank="
    SIZE_VARIABLE: ClassVar[str] = "size="
    place: ClassVar[str] = "the store of torch.distributed"

    store: Any
    rank: int
    size: int

    @contextlib.contextmanager
    def meet(self, *, token: str | bytes | None, timeout: float | None, **arguments: Any) -> Iterator[Environment]:
        """The launch environment, agreed with the other ranks; a context manager to be left when all have connected."""
        from ...torch import _store

        with (
            _store.timeout_kept(self.store),
            meet_by_store(
                self,
                self.store,
                lambda deadline: _store.address(self.store, KEY, self.rank, self.size, deadline),
                _store.is_lost,
                token,
                timeout,
                arguments,
            ) as environment,
        ):
            yield environment


class _TorchStore:
    NAME: ClassVar[str] = "a store of torch.distributed (with rank= and size=)"

    def accepts(self, value: Any) -> bool:
        return any(
            kind.__module__.startswith("torch.") and kind.__name__ == "Store" for kind in type(value).__mro__
        ) and hasattr(value, "compare_set")

    def job(self, value: Any, rank: int | None, size: int | None) -> Job:
        if rank is None or size is None:
            found = {name: number for name, (number, _) in read_place().items()}
            if not found and (launched := find_job()) is not None:
                found = {"rank": launched.rank, "size": launched.size}
            rank, size = found.get("rank") if rank is None else rank, found.get("size") if size is None else size
        if rank is None or size is None:
            raise ValueError("bootstrap= is a store, which does not say which rank this is: pass rank= and size=, too")
        checked = read_environment(rank=rank, size=size, rendezvous="127.0.0.1:1", token=b"-")
        return Job(value, checked.rank, checked.size)


BOOTSTRAP = _TorchStore()
