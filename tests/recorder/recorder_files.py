"""The files that ranks dump their recorders to."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

LIMIT = 60.0  # seconds


def await_file(folder: Path, rank: int) -> dict[str, Any]:
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        for path in folder.glob(f"collectives-recorder-rank{rank}-pid*.json"):
            found: dict[str, Any] = json.loads(path.read_text())
            return found
        time.sleep(0.01)  # a poll: what another process writes cannot be waited for
    raise AssertionError(f"no dump of rank {rank} in {os.listdir(folder)}")
