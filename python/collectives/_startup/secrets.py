"""Files with secrets: the token of a job, and private keys."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_LARGEST = 1 << 16  # bytes


def read_token_file(path: str, source: str) -> bytes:
    """The token in a file, without white space around it.

    Args:
        source: the setting that names the file, for errors.

    Raises:
        ValueError: it cannot be read, others may read it, or it has no token. The text does not contain the token.
    """
    token = read_secret(path, source).strip()
    if not token:
        raise ValueError(f"{source} is {path!r}, which is empty; write a token into it: `openssl rand -hex 32`")
    return token


def read_secret(path: str, source: str) -> bytes:
    """The contents of a file that only this user may read.

    As in PostgreSQL for private keys: no other user may have access to a file of this user; a file of root may be
    readable to a group, which is how cluster managers distribute secrets.

    Raises:
        ValueError: the text says what is wrong and what is accepted; it does not contain the secret.
    """
    try:
        # Non-blocking, so that a pipe without a writer is refused instead of waited for.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{source} is {path!r}, which cannot be read: {why}") from None
    try:
        _check(os.fstat(fd), path, source)  # checks the open file, which cannot be replaced any more
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
