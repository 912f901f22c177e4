"""A client of PMI-1, the key-value store of MPICH's launcher Hydra and of Intel MPI's: lines of text on a socket.

An MPI library in this process uses the same socket. What keeps both working, whoever comes first:

- No ``init`` is sent, which the server does not need: that of MPI stays the first and only one.
- Requests are answered one by one, so nothing of ours is left on the socket for MPI to read.
- ``finalize`` ends the session for the whole process. It is sent when the process exits, since the launcher takes the
  end of a process without it for a crash and kills the others; and not if MPI is in use then, which sends its own.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import struct

from .mpi import mpi_is_in_use

_KEY = "collectives-rendezvous"
_LONGEST = 1 << 16  # bytes of an answer
_LAST_PATIENCE = 2.0  # seconds for the answer to the last message


class PmiError(RuntimeError):
    """The store did not do what it was asked for."""


class Pmi:
    """The connection that the launcher has given to this process.

    Args:
        descriptor: the value of PMI_FD.
        rank: of this process.

    Raises:
        ValueError: the descriptor is not that connection.
    """

    def __init__(self, descriptor: str, rank: int) -> None:
        self._rank = rank
        self._pid = os.getpid()
        try:
            self._sock = socket.socket(fileno=os.dup(int(descriptor)))
        except (ValueError, OSError) as error:
            raise ValueError(f"PMI_FD is {descriptor!r}, which is no socket here ({error})") from None
        # Whoever starts this process may have closed the descriptor, and its number may be that of anything by now.
        if self._sock.family != socket.AF_UNIX or self._other_side() == self._pid:
            self._sock.close()
            raise ValueError(f"PMI_FD is {descriptor!r}, which is no connection with the launcher")

    def broadcast(self, text: str | None) -> str:
        """What rank 0 passes, on every rank; waits for all of them.

        Args:
            text: on rank 0, of a few hundred letters, digits and signs without spaces and "="; else None.

        Raises:
            PmiError: the launcher refused, or has gone.
        """
        name = self._ask("get_my_kvsname", "my_kvsname")["kvsname"]
        # The end of this process without a last word is a crash for the launcher from here on.
        atexit.register(self._finalize)
        if text is not None:
            self._ask(f"put kvsname={name} key={_KEY} value={text}", "put_result")
        self._ask("barrier_in", "barrier_out")
        return self._ask(f"get kvsname={name} key={_KEY}", "get_result")["value"]

    def _ask(self, request: str, answer: str) -> dict[str, str]:
        line = b""
        try:
            self._sock.sendall(f"cmd={request}\n".encode())
            while not line.endswith(b"\n"):
                part = self._sock.recv(4096)
                line += part
                if not part or len(line) > _LONGEST:
                    raise PmiError(
                        f"the launcher ended the connection and did not answer {request.split(maxsplit=1)[0]}"
                    )
        except OSError as error:
            raise PmiError(f"the connection with the launcher is lost: {error}") from error
        words = dict(word.partition("=")[::2] for word in line.decode(errors="replace").split())
        if words.get("cmd") != answer or words.get("rc", "0") != "0":
            shown = " ".join(f"{name}={words[name]}" for name in ("cmd", "rc", "msg") if name in words)
            raise PmiError(f"the launcher answered {request.split(maxsplit=1)[0]} with {shown!r}")
        return words

    def _other_side(self) -> int:
        """The number of the process that made the connection; 0 where it has none here, as in a container."""
        credentials = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int(struct.unpack("3i", credentials)[0])

    def _finalize(self) -> None:
        if os.getpid() != self._pid or mpi_is_in_use():
            return
        with contextlib.suppress(OSError, PmiError):
            self._sock.settimeout(_LAST_PATIENCE)
            self._ask("finalize", "finalize_ack")
