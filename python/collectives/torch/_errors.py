"""The errors of this library as torch.distributed's users expect them: each is also a ``DistBackendError``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.distributed import DistBackendError

from .. import errors

__all__ = ["BackendError", "ClosedError", "DeadlineError", "MismatchError", "PeerError", "WaitTimeoutError", "raised"]


class MismatchError(errors.MismatchError, DistBackendError):
    """See ``collectives.MismatchError``."""


class PeerError(errors.PeerError, DistBackendError):
    """See ``collectives.PeerError``."""


class DeadlineError(errors.DeadlineError, DistBackendError):
    """See ``collectives.DeadlineError``."""


class ClosedError(errors.ClosedError, DistBackendError):
    """See ``collectives.ClosedError``."""


class ForkedError(errors.ForkedError, DistBackendError):
    """See ``collectives.ForkedError``."""


class BackendError(errors.BackendError, DistBackendError):
    """See ``collectives.BackendError``."""


class CollectivesError(errors.CollectivesError, DistBackendError):
    """See ``collectives.CollectivesError``."""


class WaitTimeoutError(TimeoutError, DistBackendError):
    """``work.wait(timeout)`` ended before the call did; the call goes on, and can be waited for again."""


_KINDS: tuple[type[errors.CollectivesError], ...] = (
    MismatchError,
    PeerError,
    DeadlineError,
    ClosedError,
    ForkedError,
    BackendError,
    CollectivesError,
)


def translated(error: errors.CollectivesError) -> errors.CollectivesError:
    """The same error, which is now one of torch's, too."""
    if issubclass(type(error), DistBackendError):
        return error
    kind = next(kind for kind in _KINDS if isinstance(error, kind.__mro__[1]))
    made: Any = kind(str(error))
    made.__dict__.update(error.__dict__)
    if hasattr(error, "__notes__"):
        made.__notes__ = list(error.__notes__)
    result: errors.CollectivesError = made.with_traceback(error.__traceback__)
    return result


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Around calls of the engine."""
    try:
        yield
    except errors.CollectivesError as error:
        raise translated(error) from error.__cause__
