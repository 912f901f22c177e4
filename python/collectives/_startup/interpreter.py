"""Refuses to be imported where the engine cannot work."""

from __future__ import annotations

import importlib
from typing import Any


def refuse_subinterpreters() -> None:
    """Raises ImportError in a subinterpreter: the engine, like NumPy, has one state for a process."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # since Python 3.13; before
        try:
            interpreters: Any = importlib.import_module(name)
        except ImportError:
            continue
        current, main = interpreters.get_current(), interpreters.get_main()
        # Since Python 3.13 each is a tuple of the number and where it is from.
        if (current[0] if isinstance(current, tuple) else current) != (main[0] if isinstance(main, tuple) else main):
            raise ImportError("collectives cannot be imported in a subinterpreter; import it in the main interpreter")
        return


refuse_subinterpreters()
