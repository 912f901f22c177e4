"""Files with secrets: the token of a job, and private keys."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_LARGEST = 1 << 16  # bytes


def read_token_file(path: str, source: str) -> bytes:
    """The token in a file, without white space around it.

    Args:
        source: what said so, for errors.

    Raises:
        ValueError: it cannot be read, others may read it, or it has no token. The text never has the contents.
    """
    token = read_secret(path, source).strip()
    if not token:
        raise ValueError(f"{source} is {path!r}, which is empty; write a token into it: `openssl rand -hex 32`")
    return token


def read_secret(path: str, source: str) -> bytes:
    """The contents of a file that is nobody else's business.

    As PostgreSQL has it for private keys: a file of our own must be closed to all others; one of root may be readable
    to a group, which is how cluster managers hand out secrets.

    Raises:
        ValueError: the text says what is wrong and what would be right, and never has the contents.
    """
    try:
        # Non-blocking, so that a pipe without a writer is refused instead of waited for.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{source} is {path!r}, which cannot be read: {why}") from None
    try:
        _check(os.fstat(fd), path, source)  # of what is open, which nobody can exchange any more
        with os.fdopen(fd, "rb", closefd=False) as file:
            data = file.read(_LARGEST + 1)
    finally:
        os.close(fd)
    if len(data) > _LARGEST:
        raise ValueError(f"{source} is {path!r}, which has more than {_LARGEST} bytes")
    return data


def _check(about: os.stat_result, path: str, source: str) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise ValueError(f"{source} is {path!r}, which is no ordinary file")
    mode = stat.S_IMODE(about.st_mode)
    if about.st_uid not in (0, os.geteuid()):
        raise ValueError(
            f"{source} is {path!r}, which belongs to user {about.st_uid}; a secret must belong to user "
            f"{os.geteuid()}, who runs this, or to root"
        )
    allowed = 0o640 if about.st_uid == 0 else 0o600
    if mode & 0o077 & ~allowed:
        raise ValueError(
            f"{source} is {path!r}, whose mode is {mode:04o}, so others can get at it; at most {allowed:04o} is "
            f"accepted: `chmod 600 {Path(path).name}`"
        )
