"""Whether an MPI library works in this process."""

from __future__ import annotations

import contextlib
import ctypes
import re
from pathlib import Path

_LIBRARY = re.compile(r"libmpi(?:ch|_abi)?(?:-[\w.]+)?\.so(?:\.[\d.]+)?")


def mapped_files(process: int | str = "self") -> list[str]:
    """The files that a process has mapped, libraries among them; empty where they cannot be read."""
    with contextlib.suppress(OSError):
        maps = Path(f"/proc/{process}/maps").read_text(encoding="utf-8", errors="surrogateescape")
        return list(dict.fromkeys(line.split(maxsplit=5)[5] for line in maps.splitlines() if line.count("/") > 0))
    return []


def mpi_is_in_use() -> bool:
    """Whether MPI has been initialized in this process and not been finalized, whoever did that."""
    libraries: list[str | None] = [file for file in mapped_files() if _LIBRARY.fullmatch(Path(file).name)]
    for library in [*libraries, None]:  # None: the program itself, and what it is linked with
        with contextlib.suppress(OSError, AttributeError):
            mpi = ctypes.CDLL(library)
            initialized, finalized = ctypes.c_int(0), ctypes.c_int(0)
            mpi.MPI_Initialized(ctypes.byref(initialized))
            mpi.MPI_Finalized(ctypes.byref(finalized))
            if initialized.value and not finalized.value:
                return True
    return False
