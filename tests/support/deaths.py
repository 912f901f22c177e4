"""Ranks that are killed, and what those that survive must see of it."""

from __future__ import annotations

import signal
import time
from typing import Any

from pool import NOTICED, Outcome


def assert_noticed(outcomes: list[Outcome], victim: int, since: float, within: float = NOTICED) -> None:
    """Every survivor has an error that names the victim, within so many seconds, and a communicator that has failed."""
    for rank, outcome in enumerate(outcomes):
        if rank == victim:
            continue
        text = f"rank {rank}: {outcome.error!r} {outcome.value!r}\n{outcome.text}"
        assert type(outcome.error).__name__ == "PeerError", text
        assert outcome.error.peer == victim, text  # type: ignore[union-attr]
        assert f"rank {victim}" in str(outcome.error), text
        assert outcome.error.rank == rank, text  # type: ignore[union-attr]
        assert outcome.ended - since < within, f"{outcome.ended - since} s; {text}"
        assert not outcome.usable


def kill(group: Any, victim: int) -> float:
    """Ends a rank at once. Returns when, on the monotonic clock."""
    now = time.monotonic()
    group.ranks[victim].signal(signal.SIGKILL)
    return now
