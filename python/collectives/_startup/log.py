"""COLLECTIVES_LOG: what the logger ``collectives`` writes to stderr in programs that do not configure logging."""

from __future__ import annotations

import logging

from .environment import read_log

_handler = logging.StreamHandler()
_handler.setFormatter(logging.Formatter("collectives: %(levelname)s: %(message)s"))


def prepare() -> None:
    """Makes the logger write to stderr from the level on that the variable names; nothing where it is not set.

    Without it the logger does what the program says, and without that Python's default: warnings go to stderr.

    Raises:
        ValueError: the variable names no level.
    """
    level = read_log()
    logger = logging.getLogger("collectives")
    if level and _handler not in logger.handlers:
        logger.addHandler(_handler)
        logger.propagate = False  # once is enough
    if level:
        logger.setLevel(level.upper())


def says_found() -> bool:
    """Whether rank 0 says in a line what started the job: unless the variable asks for warnings or less."""
    return read_log() not in ("error", "warning")
