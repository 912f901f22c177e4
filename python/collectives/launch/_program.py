"""Which command a program stands for."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence


def command_of(
    program: str, arguments: Sequence[str], module: bool, environ: Mapping[str, str] | None = None
) -> list[str]:
    """What to execute: a .py file or (`module`) a module by this Python, anything else as it is.

    Args:
        environ: whose PATH is searched, ``os.environ`` by default.

    Raises:
        OSError: there is no such file or command, or it is not executable.
    """
    if module:
        return [sys.executable, "-m", program, *arguments]
    if program.endswith((".py", ".pyz")):
        if not os.path.exists(program):
            raise FileNotFoundError(2, "no such file")
        return [sys.executable, program, *arguments]
    found = shutil.which(program, path=(os.environ if environ is None else environ).get("PATH"))
    if found is None:
        reason = "it is not executable" if os.path.exists(program) else "no such file, and no such command in PATH"
        raise (PermissionError if os.path.exists(program) else FileNotFoundError)(2, reason)
    return [found, *arguments]


def exit_code_of(error: OSError) -> int:
    """As of a shell: 127 for a command that is not there, 126 for one that cannot be started."""
    return 127 if isinstance(error, FileNotFoundError) else 126
