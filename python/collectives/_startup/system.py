"""Linux system calls that some builds of Python lack (conda's, older ones of uv), because the C library on which they
were built had no header for them."""

from __future__ import annotations

import ctypes
import errno
import os

_PIDFD_OPEN = 434  # the same number on every architecture
_EFD_CLOEXEC, _EFD_NONBLOCK = 0o2000000, 0o4000
_MFD_CLOEXEC = 1

# Loaded at import: a launcher uses it between fork and exec, where importing is not safe.
libc = ctypes.CDLL(None, use_errno=True)


def pidfd_open(pid: int) -> int:
    """A descriptor of a process that becomes readable when the process ends, closed on exec. Raises OSError."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return _checked(libc.syscall(ctypes.c_long(_PIDFD_OPEN), ctypes.c_long(pid), ctypes.c_long(0)), "pidfd_open")


def eventfd() -> int:
    """A new eventfd that counts from 0, does not block and is closed on exec. Raises OSError."""
    if hasattr(os, "eventfd"):
        return os.eventfd(0, _EFD_CLOEXEC | _EFD_NONBLOCK)
    return _checked(libc.eventfd(0, _EFD_CLOEXEC | _EFD_NONBLOCK), "eventfd")


def memfd_create(name: str) -> int:
    """New memory without a name in the file system, closed on exec. Raises OSError."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    return _checked(libc.memfd_create(name.encode(), _MFD_CLOEXEC), "memfd_create")


def memfd_refusal() -> str:
    """Why this process cannot make memory to share, empty where it can: a system call filter (of a sandbox, a
    container) or vm.memfd_noexec may refuse it, or the kernel may be older than 3.17."""
    try:
        os.close(memfd_create("collectives-probe"))
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS):
            return f"memfd_create: {error.strerror}"
    return ""  # other errors, such as no descriptors left, are raised when memory is made


def _checked(descriptor: int, what: str) -> int:
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return descriptor
