"""An ssh server for one test: on a port of its own, with keys that were made for it."""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

SSHD = shutil.which("sshd") or shutil.which("/usr/sbin/sshd")


def why_not() -> str | None:
    """Why it cannot be started here, or None."""
    if SSHD is None or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        return "it needs sshd and ssh: apt-get install openssh-server openssh-client"
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", exist_ok=True)  # which sshd wants to be there when root starts it
    return None


REASON = why_not()


class Keys:
    """Keys, and what ssh and sshd are told about them.

    Attributes:
        rsh: the command for ``--rsh``.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        shutil.copy(folder / "user.pub", folder / "authorized")
        (folder / "sshd_config").write_text(
            f"Port {port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\nStrictModes no\nUsePAM no\n"
            "PidFile none\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            "PermitRootLogin prohibit-password\n"
        )
        (folder / "ssh_config").write_text(
            f"Port {port}\nUser {getpass.getuser()}\nIdentityFile {folder}/user\nIdentitiesOnly yes\nBatchMode yes\n"
            f"UserKnownHostsFile {folder}/known\nStrictHostKeyChecking no\nLogLevel ERROR\n"
        )
        self.rsh = f"ssh -F {shlex.quote(str(folder / 'ssh_config'))}"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def listening(keys: Keys, prefix: Sequence[str] = ()) -> Iterator[None]:
    """The server, which listens; ended afterwards."""
    assert SSHD is not None
    with subprocess.Popen(
        [*prefix, SSHD, "-D", "-e", "-f", keys.folder / "sshd_config"], stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        try:
            said = ""
            while "Server listening on" not in said:
                line = server.stderr.readline()
                assert line, f"sshd ended: {said}"
                said += line
            yield
        finally:
            server.terminate()
            server.communicate(timeout=30)
