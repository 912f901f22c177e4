"""Hosts joined by the relay of relay.py."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from net.hosts import LIMIT, Hosts, command
from net.relay import DEVICE, MTU, Settings


class Relayed(Hosts):
    """Hosts joined by a relay."""

    def join(self) -> None:
        words = [f"{name}={address}" for name, address in zip(self.names, self.addresses, strict=True)]
        self._relay = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("relay.py")), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self.change()  # it has made the devices when it answers
        for name, address in zip(self.names, self.addresses, strict=True):
            command("ip", "-n", name, "link", "set", DEVICE, "mtu", str(MTU), "txqueuelen", "5000", "up")
            command("ip", "-n", name, "addr", "add", f"{address}/24", "dev", DEVICE)

    def change(self, settings: Settings | None = None) -> dict[str, int]:
        """New settings, by default no faults; what was done to packets under the old ones."""
        assert self._relay.stdin is not None
        assert self._relay.stdout is not None
        text = json.dumps(asdict(settings or Settings()))
        self._relay.stdin.write(text.encode() + b"\n")
        if not select.select([self._relay.stdout], [], [], LIMIT)[0]:
            raise RuntimeError("the relay does not answer")
        answer = self._relay.stdout.readline()
        if not answer:
            raise RuntimeError(f"the relay ended with code {self._relay.wait(30)}")
        counts: dict[str, int] = json.loads(answer)
        return counts

    def close(self) -> None:
        if relay := getattr(self, "_relay", None):
            for pipe in (relay.stdin, relay.stdout):
                pipe.close()
            try:
                relay.wait(10)
            except subprocess.TimeoutExpired:
                relay.kill()
                relay.wait()
        super().close()
