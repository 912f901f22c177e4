"""What the package is called where it is installed: on PyPI ``collectives`` is somebody else's.

The import name is ``collectives``. pyproject.toml and csrc/core/distribution.h have the same name, and
tests/house/test_packaging.py compares them.
"""

from __future__ import annotations

import importlib.metadata

NAME = "collectives-comm"


def install_command(extra: str) -> str:
    """The command that installs the package with one of its extras.

    Args:
        extra: one of ``[project.optional-dependencies]`` of pyproject.toml.

    Example:
        >>> install_command("torch")
        "pip install 'collectives-comm[torch]'"
    """
    return f"pip install '{NAME}[{extra}]'"


def library_version() -> str:
    """The version of the installed package, ``"unknown"`` when it runs from its sources."""
    try:
        return importlib.metadata.version(NAME)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
