"""A rank of bench/engines.py, under the interpreter of one of the environments that are compared.

    python bench/engine_rank.py RANK ADDRESS TRANSPORT

Says which package it uses, reads a line of JSON for each block that it is to measure, and answers with another.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import collectives
import numpy as np
from cases import PARTS, REDUCING, given_and_gotten
from collectives import _core
from placement import Probe

DTYPE = np.dtype(np.float32)
TIMEOUT = 30.0  # seconds
# That of this tree: older builds do not have it.
_MEMORY = Path(__file__).parents[1] / "python" / "collectives" / "bench" / "memory.py"
on_huge_pages = runpy.run_path(str(_MEMORY))["on_huge_pages"]


def call_arguments(op: str, out: Any) -> tuple[Any, ...]:
    """The last arguments of ``_time_collective``: older builds have no record of options."""
    try:
        from collectives._calls.options import CallOptions
    except ImportError:
        return op, "auto", out
    return out, CallOptions(op=op)


def main() -> int:
    """The main function of a rank."""
    rank, address, transport = sys.argv[1:]
    comm = collectives.init(rank=int(rank), size=2, rendezvous=address, transport=transport, timeout=TIMEOUT)
    probe = Probe(comm, TIMEOUT)
    print(json.dumps({"package": str(collectives.__file__)}), flush=True)
    for line in sys.stdin:
        block = json.loads(line)
        collective, count = block["collective"], block["bytes"] // DTYPE.itemsize
        x, out = on_huge_pages(count, DTYPE), None
        if collective in PARTS:
            given, gotten = given_and_gotten(collective, count, comm.size)
            x, out = x[:given], np.zeros(gotten, DTYPE)
        x.fill(0)
        op = "max" if collective in REDUCING else "sum"  # "max" does not change the values, so nothing overflows
        before = probe()
        times = _core._time_collective(comm, [x], block["rounds"], block["batch"], collective, *call_arguments(op, out))
        placements = {before, probe()}
        answer = {"us": float(np.median(times)) / block["batch"] / 1e3, "placements": sorted(placements)}
        print(json.dumps(answer), flush=True)
    probe.close()
    comm.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
