"""A rank of bench/torch_step.py: holds both backends, and measures them in turn.

    python bench/torch_rank.py OPTIONS.json

Torch's usual variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) say which rank this is. Rank 0 writes the report
beside the options, a rank that fails its error.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import collectives
import numpy as np
import progress
import torch
import torch.distributed as dist
from placement import Probe
from tensorflow_processes import machine_seconds
from torch_cases import OURS, THEIRS, Case, make_cases
from torch_report import Report

TIMEOUT = 60.0  # seconds
BLOCK = {"all_reduce": 0.02, "step": 0.4}  # seconds; the placement of virtual cores holds for a second or so
LEAST, MOST = 2, 200  # calls or steps in a block, besides the first
LEAST_ROUNDS = 3


class Rank:
    """What both ranks do together, in the same order.

    Args:
        options: of the command line.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._duration = options["duration"]
        dist.init_process_group(THEIRS)
        groups = {OURS: dist.new_group(backend=OURS), THEIRS: dist.group.WORLD}
        self._cases = make_cases(options["parts"], options["sizes"], options["batch"], groups)
        self.comm = collectives.init()  # the world, which the backend has made
        self._probe = Probe(self.comm, TIMEOUT)
        self._show = options["show"] if self.comm.rank == 0 else ""
        self._hosts = options["hosts"]

    def check(self) -> list[str]:
        """What is wrong, on any rank."""
        problems = []
        for (what, name), case in self._cases.items():
            wrong = case.wrong()
            problems += [
                f"{what}, {name}, rank {rank}: {text}"
                for rank, text in enumerate(self.comm.all_gather_object(wrong))
                if text
            ]
        return problems

    def check_calls(self) -> list[str]:
        """Checks the sums of calls again; the models have gone on training."""
        steps = {key: case for key, case in self._cases.items() if "step" in key[0]}
        calls = {key: case for key, case in self._cases.items() if key not in steps}
        self._cases, kept = calls, self._cases
        problems = self.check()
        self._cases = kept
        return problems

    def measure(self) -> dict[str, Any]:
        """Blocks of all cases in turn."""
        counts = {key: self._count(key[0], case) for key, case in self._cases.items()}
        report = Report(list(self._cases), self._hosts)
        shuffle = random.Random(1).shuffle  # the same order on all ranks
        bar = progress.make(self._show)
        begin, others = time.monotonic(), self._seconds_of_others()
        rounds = 0
        while self._goes_on(rounds < LEAST_ROUNDS or time.monotonic() - begin < self._duration):
            keys = list(self._cases)
            shuffle(keys)
            for key in keys:
                before = self._probe()
                median = self._block(self._cases[key], counts[key])
                report.add(key, median, before, self._probe())
                bar.update(min(1.0, (time.monotonic() - begin) / self._duration))
            rounds += 1
        passed = (time.monotonic() - begin) * (os.cpu_count() or 1)
        part = (self._seconds_of_others() - others) / passed
        bar.close()
        return {"rounds": rounds, "others": max(0.0, part), **report.as_json()}

    def close(self) -> None:
        """Leaves the groups."""
        self._probe.close()
        self._cases.clear()
        dist.destroy_process_group()

    def _count(self, what: str, case: Case) -> int:
        """How many calls or steps make a block, after warming up."""
        self._block(case, LEAST)
        usual = self._block(case, LEAST) / 1e6
        seconds = BLOCK["step" if "step" in what else "all_reduce"]
        return max(LEAST, min(MOST, round(seconds / usual)))

    def _block(self, case: Case, count: int) -> float:
        """The median, in microseconds, of the times of the slower rank. The first call does not count."""
        times = np.array(case.times(count + 1, self.comm.barrier)[1:])
        self.comm.all_reduce(times, "max")
        return float(statistics.median(times))

    def _goes_on(self, mine: bool) -> bool:
        return bool(self.comm.broadcast(np.array([mine]), root=0)[0])

    def _seconds_of_others(self) -> float:
        """Processor seconds of this machine that these ranks did not use; of hosts, those of rank 0 say it."""
        mine = np.array([time.process_time()])
        return machine_seconds() - float(self.comm.all_reduce(mine)[0])


def main() -> int:
    """The main function of a rank."""
    file = Path(sys.argv[1])
    options = json.loads(file.read_text(encoding="utf-8"))
    torch.set_num_threads(1)  # the ranks share the cores
    try:
        rank = Rank(options)
        problems = rank.check()
        report = rank.measure()
        report["wrong"] = problems + rank.check_calls()
        first = rank.comm.rank == 0
        rank.close()
    except BaseException:
        file.with_name(f"error{os.environ['RANK']}").write_text(traceback.format_exc(), encoding="utf-8")
        raise
    if first:
        file.with_name("report.json").write_text(json.dumps(report), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
