"""Access to the recorder from Python, and the signals on which the library writes it out."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import threading
from pathlib import Path
from typing import IO, Any

from .. import _core
from .environment import read_recorder_dir, read_signals

_lock = threading.Lock()
_prepared: list[int] = []  # processes: this one, and those that it was forked from


def machine() -> str:
    """An identity of the machine that all its containers share: the boot id of the kernel."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return os.uname().nodename


def prepare() -> None:
    """Sets the folder for dumps and the signal handlers; called before the first communicator of this process.

    Raises:
        ValueError: a variable is not acceptable.
    """
    handle = read_signals()
    folder = read_recorder_dir()
    if folder:
        with contextlib.suppress(OSError):  # the dump says why it cannot be written
            os.makedirs(folder, exist_ok=True)
    _core._set_recorder_folder(folder)
    with _lock:
        descriptor = _core._open_stack_page(machine())
        if os.getpid() in _prepared:
            return
        _prepared.append(os.getpid())
        number = _core._stack_signal()
        if handle and descriptor >= 0 and _core._signal_is_free(number):
            faulthandler.unregister(number)  # a forked child inherits a registration that does not work here
            # The handler writes the stack of the thread that the signal interrupts, and needs no interpreter lock.
            faulthandler.register(number, file=descriptor, all_threads=False, chain=False)
            _core._take_over_stack_signal()
        if handle and _core._signal_is_free(signal.SIGUSR2):
            _core._dump_on_signal()


def entries(communicator: _core.Communicator) -> list[dict[str, Any]]:
    """What ``Communicator.recorder`` returns."""
    found: list[dict[str, Any]] = json.loads(_core._recorder_json(communicator))["entries"]
    return found


def dump_recorder(file: str | os.PathLike[str] | IO[str]) -> None:
    """Writes what the recorders of this process hold as JSON: a list with one object for each rank.

    The objects are those of the dump files; docs/recorder.md describes them. Can be called at any time, also by one
    thread while others wait in a collective.

    Args:
        file: a path, or a file open for text.

    Raises:
        OSError: the file cannot be written.
    """
    ranks = sorted((json.loads(text) for text in _core._all_recorders_json("dump_recorder")), key=lambda r: r["rank"])
    text = json.dumps(ranks, indent=1) + "\n"
    if isinstance(file, str | os.PathLike):
        Path(file).write_text(text, encoding="utf-8")
    else:
        file.write(text)
