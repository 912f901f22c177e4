"""A client of PMIx, the key-value store of Open MPI's launcher, of ``prun`` and of ``srun --mpi=pmix``.

It is a library that the launcher brings along, called through ctypes. An MPI library in this process may use it, too,
before or afterwards, and both must work:

- Where this process has initialized PMIx already, as MPI does, it is used here: PMIx_Init and PMIx_Finalize count.
- Else a child does it, which is the same rank for the launcher. Of Open MPI 5.0 MPI_Init fails in a process in which
  PMIx is initialized ("local rank: not found"), and crashes where it has been finalized.
- The launcher of Open MPI 4 does not stand such a child, but its MPI_Init does stand PMIx. There it is used here, and
  finalized when the process exits, since the launcher takes the end of a process without that for a crash.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

if __package__:
    from .mpi import mapped_files
else:  # run as a program, see broadcast_by_child
    from mpi import mapped_files  # type: ignore[import-not-found,no-redef]

_KEY = b"collectives.rendezvous"
_NAME = "libpmix.so.2"
_GLOBAL = 3  # PMIX_GLOBAL: data for processes of all hosts
_STRING = 3  # PMIX_STRING
_ANCESTORS = 16  # that are looked at
_UNUSABLE = 3  # exit code of the child: PMIx cannot be used


class PmixError(RuntimeError):
    """PMIx did not do what it was asked for."""


class _Process(ctypes.Structure):
    """pmix_proc_t."""

    _fields_ = [("nspace", ctypes.c_char * 256), ("rank", ctypes.c_uint32)]


class _Value(ctypes.Structure):
    """pmix_value_t, whose union is at most 24 bytes long; what is behind is never read."""

    _fields_ = [("type", ctypes.c_uint16), ("string", ctypes.c_char_p), ("rest", ctypes.c_char * 48)]


def broadcast(text: str | None) -> str:
    """What rank 0 passes, on every rank; waits for all of them.

    Args:
        text: on rank 0; else None.

    Raises:
        ValueError: PMIx cannot be found or loaded; the text says what was tried.
        PmixError: the launcher refused, or has gone.
    """
    if "PRTE_LAUNCHED" in os.environ and not any(map(_is_pmix, mapped_files())):
        return _broadcast_by_child(text)
    return Pmix().broadcast(text)


def _broadcast_by_child(text: str | None) -> str:
    command = [sys.executable, "-S", "-E", __file__]
    # The text, which has the token, goes through a pipe: other users can read arguments.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        atexit.register(child.kill)  # where this process ends without its answer
        output, said = child.communicate(text or "")
        atexit.unregister(child.kill)
    if child.returncode == _UNUSABLE:
        raise ValueError(said.strip())
    if child.returncode != 0:
        raise PmixError(said.strip() or f"a child that asked it ended with code {child.returncode}")
    return output


def _is_pmix(file: str) -> bool:
    return Path(file).name.startswith("libpmix.so")


class Pmix:
    """The library, initialized for this process.

    Raises:
        ValueError: it cannot be found or loaded, or the launcher does not answer it; the text says what was tried.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._own = _Process()
        tried = []
        for path in dict.fromkeys(_candidates()):
            try:
                self._library = ctypes.CDLL(path)
                self._library.PMIx_Error_string.restype = ctypes.c_char_p
                status = self._library.PMIx_Init(ctypes.byref(self._own), None, ctypes.c_size_t(0))
            except (OSError, AttributeError) as error:
                tried.append(str(error))
                continue
            if status == 0:
                atexit.register(self._finalize)
                return
            tried.append(f"{path}: PMIx_Init says {self._text(status)}")
        raise ValueError(f"PMIx cannot be used ({'; '.join(tried)})")

    def broadcast(self, text: str | None) -> str:
        """What rank 0 passes, on every rank; waits for all of them.

        Args:
            text: on rank 0; else None.

        Raises:
            PmixError: the launcher refused, or has gone.
        """
        if text is not None:
            value = _Value(type=_STRING, string=text.encode())
            self._check("PMIx_Put", self._library.PMIx_Put(ctypes.c_uint8(_GLOBAL), _KEY, ctypes.byref(value)))
        self._check("PMIx_Commit", self._library.PMIx_Commit())
        none = ctypes.c_size_t(0)
        self._check("PMIx_Fence", self._library.PMIx_Fence(None, none, None, none))
        zero = _Process(self._own.nspace, 0)
        found = ctypes.POINTER(_Value)()
        status = self._library.PMIx_Get(ctypes.byref(zero), _KEY, None, none, ctypes.byref(found))
        self._check("PMIx_Get", status)
        if found.contents.type != _STRING:
            raise PmixError(f"PMIx_Get found a value of type {found.contents.type} where a text was put")
        return (found.contents.string or b"").decode()  # the value, of a few bytes, is left to the end of the process

    def _check(self, what: str, status: int) -> None:
        if status != 0:
            raise PmixError(f"{what} says {self._text(status)}")

    def _text(self, status: int) -> str:
        return (self._library.PMIx_Error_string(ctypes.c_int(status)) or b"").decode(errors="replace") or str(status)

    def _finalize(self) -> None:
        if os.getpid() == self._pid:
            self._library.PMIx_Finalize(None, ctypes.c_size_t(0))


def _candidates() -> Iterator[str]:
    """Where the library may be, the surest first: it has to fit the launcher, and one process can use only one.

    Yields:
        the one that this process has loaded; the one of the launcher, which is among the parents of this process; those
        beside the launcher; the system's.
    """
    loaded = [file for file in mapped_files() if _is_pmix(file)]
    if loaded:
        yield loaded[0]
        return
    process = os.getppid()
    for _ in range(_ANCESTORS):
        if process <= 1:
            break
        yield from (file for file in mapped_files(process) if _is_pmix(file))
        process = _parent(process)
    for variable in ("PMIX_PREFIX", "OPAL_PREFIX"):
        if prefix := os.environ.get(variable):
            yield from (str(path) for path in (Path(prefix, "lib", _NAME), Path(prefix, "lib/openmpi", _NAME)))
    yield _NAME


def _parent(process: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        about = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        return int(about.rpartition(")")[2].split()[1])
    return 0


if __name__ == "__main__":
    try:
        sys.stdout.write(Pmix().broadcast(sys.stdin.read() or None))
    except (ValueError, PmixError) as failure:
        print(failure, file=sys.stderr)
        sys.exit(_UNUSABLE if isinstance(failure, ValueError) else 1)
