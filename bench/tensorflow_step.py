"""Measures a training step under TensorFlow's strategies: our all-reduce against TensorFlow's own.

    python bench/tensorflow_step.py
    python bench/tensorflow_step.py --quick --json out.json

The model is a perceptron 784-700-500-10 with a batch of 128 in all. Measured are the step, and the all-reduce part
alone: a tf.function that holds only the batch-reduce of gradients of the model's shapes. Contenders are, on 2 and on 8
logical CPUs of one process, TensorFlow's ReductionToOneDevice, HierarchicalCopyAllReduce, default and DTensor, and
ours; on two workers, which are processes, TensorFlow's MultiWorkerMirroredStrategy and ours over shared memory and over
TCP, and there the tape of Horovod's API.

All of them take turns, in blocks of some 40 ms and in an order that is drawn anew in each round. The first call of a
block does not count; a call takes as long as on the slowest worker. A time is the median of the medians of blocks, a
ratio one of two such times; the quartiles of a ratio are of the ratios within rounds. "no all-reduce" is the
step, or the function, without one; "net" the ratio when that is taken from both. Gradients are written anew before each
all-reduce, outside the time, as a training does it (--inputs unchanged: not).

Results are checked in the same run: reduced gradients against NumPy, exactly, before and after; losses of the first
steps against a model in NumPy; and by the engine's counters, who moved the bytes. Exit codes: 0, 1 when a process
failed or anything was wrong, 2 when what was asked for is not possible. Targets that are not met leave it at 0.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import collectives
import numpy as np
import plot
import progress
import tensorflow_model as model
from collectives.bench.arguments import number_above
from placement import Probe
from tensorflow_processes import ChildError, Children, machine_seconds
from tensorflow_report import NOTHING, Block, Case, Report, as_text

GROUPS = {"2 replicas": ("2 replicas",), "8 replicas": ("8 replicas",), "2 workers": ("tf", "shm", "tcp")}
STEP_ONLY = "tf dtensor"
THEIRS = ("tf", NOTHING)  # prefixes of names of other contenders
BLOCK = 0.04  # seconds
LEAST, MOST = 4, 60  # calls in a block
LEAST_ROUNDS = 5
TOLERANCE = 1e-4  # of losses, relative
_PROBE_TIMEOUT = 10.0


def main() -> int:
    """The command line."""
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.json and not os.access(arguments.json.absolute().parent, os.W_OK):
        parser.error(f"{arguments.json} cannot be written: no such folder, or no permission")
    if importlib.util.find_spec("tensorflow") is None:
        parser.error("TensorFlow is not installed: pip install '.[tensorflow]'")
    groups = arguments.group or list(GROUPS)
    duration = arguments.duration or (3.0 if arguments.quick else 90.0)
    print(f"# collectives {collectives.__version__} from {Path(collectives.__file__).parent}; {plot.machine()}")
    print(f"# {model.NBYTES} bytes of gradients; measuring for {duration:g} s, after a minute of starting", flush=True)
    holders = []
    try:
        # One after the other: TensorFlow takes seconds of processor time to load.
        for kind in dict.fromkeys(kind for group in groups for kind in GROUPS[group]):
            holders.append(Children(kind))
            holders[-1].contenders()
        run = _Run(holders, arguments.inputs)
        problems = run.check_losses() + run.check_sums(1.0)
        report = run.measure(duration)
        problems += run.check_sums(2.0)
    except ChildError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        ends = [problem for holder in holders for problem in holder.close()]
    problems += ends
    print(as_text(report))
    if arguments.json:
        report["wrong"] = problems
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print("\n" + ("\n".join(f"WRONG: {problem}" for problem in problems) or "checked: nothing wrong"))
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/tensorflow_step.py", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    add = parser.add_argument
    add("--group", choices=tuple(GROUPS), action="append", help="measure only this; may be repeated (default: all)")
    add("--duration", type=number_above(0), help="seconds of measuring (default 90)")
    add("--quick", action="store_true", help="measure for 3 seconds: does it run?")
    add(
        "--inputs",
        choices=("fresh", "unchanged"),
        default="fresh",
        help="whether gradients are written anew before each all-reduce (default: fresh)",
    )
    add("--json", type=Path, metavar="FILE", help="write times and ratios there")
    return parser


class _Run:
    def __init__(self, holders: list[Children], inputs: str) -> None:
        self._inputs = inputs
        self._holders = holders
        self._where: dict[tuple[str, str], Children] = {
            key: holder for holder in holders for key in holder.contenders()
        }
        self._iterations: dict[Case, int] = {}
        parts = ("step", "all-reduce")
        self._cases = [
            Case(group, name, part)
            for group, name in self._where
            for part in parts
            if part == "step" or name != STEP_ONLY
        ]

    def check_losses(self) -> list[str]:
        """The errors in the losses of the first steps."""
        expected = model.losses()
        problems = []
        for (group, name), holder in self._where.items():
            answers = holder.do("losses", (group, name))
            found = np.sum([losses for losses, _ in answers], axis=0)
            if name != NOTHING and not np.allclose(found, expected, rtol=TOLERANCE, atol=0):
                problems.append(f"{group}, {name}: losses {found.tolist()} where NumPy has {expected}")
            for _, moved in answers:
                problems += _wrong_bytes(group, name, moved, model.CHECKED_STEPS)
        return problems

    def check_sums(self, scale: float) -> list[str]:
        """The errors in reduced gradients, and whether the right library reduced them."""
        problems = []
        for (group, name), holder in self._where.items():
            if name in (STEP_ONLY, NOTHING):
                continue
            for index, (wrong, moved) in enumerate(holder.do("check", (group, name), scale)):
                if wrong:
                    problems.append(f"{group}, {name}, process {index}: {wrong} elements are not the sum")
                problems += _wrong_bytes(group, name, moved, 1)
        return problems

    def measure(self, duration: float) -> dict[str, Any]:
        """Blocks of all cases in turn, for at least so many seconds."""
        for case in self._cases:  # warms up, and finds how many calls make a block
            times = self._block(case, LEAST)
            times = self._block(case, LEAST)
            self._iterations[case] = max(LEAST, min(MOST, round(BLOCK * 1e9 / statistics.median(times)))) + 1
        report = Report(self._cases)
        shuffle = random.Random(1).shuffle
        bar = progress.make("-" if progress.wanted() else "")
        probe = _Probe()
        try:
            begin = time.monotonic()
            others = self._seconds_of_others()
            rounds = 0
            while rounds < LEAST_ROUNDS or time.monotonic() - begin < duration:
                cases = list(self._cases)
                shuffle(cases)
                for case in cases:
                    before = probe()
                    times = self._block(case, self._iterations[case])
                    report.add(case, Block(statistics.median(times[1:]) / 1e6, before, probe()))
                    bar.update(min(1.0, (time.monotonic() - begin) / duration))
                rounds += 1
            part = (self._seconds_of_others() - others) / ((time.monotonic() - begin) * (os.cpu_count() or 1))
        finally:
            bar.close()
            probe.close()
        return {"inputs": self._inputs, "rounds": rounds, "others": max(0.0, part), **report.as_json()}

    def _seconds_of_others(self) -> float:
        return machine_seconds() - time.process_time() - sum(holder.seconds() for holder in self._holders)

    def _block(self, case: Case, iterations: int) -> list[int]:
        key = (case.group, case.name)
        answers = self._where[key].do("time", key, case.part, iterations, self._inputs == "fresh")
        return [max(times) for times in zip(*answers, strict=True)]


def _wrong_bytes(group: str, name: str, moved: dict[str, int], times: int) -> list[str]:
    """The errors in the bytes, by kind, that our engine has moved in a process in so many all-reduces."""
    if name.startswith(THEIRS):
        least = {}
    elif group == "2 workers":
        least = {name.split()[0]: model.NBYTES * times}  # any all-reduce of two ranks sends as much as it reduces
        moved = {kind: n for kind, n in moved.items() if kind != "replicas"}
    else:
        least = {"replicas": int(group.split()[0]) * model.NBYTES * times}
    if moved.keys() == least.keys() and all(moved[kind] >= n for kind, n in least.items()):
        return []
    return [f"{group}, {name}: our engine moved {moved or 'nothing'}, and should have {least or 'nothing'}"]


class _Probe:
    """Measures the placement of the cores, while all contenders sleep."""

    def __init__(self) -> None:
        self._comms = collectives.local_group(2, timeout=_PROBE_TIMEOUT)
        self._probes = [Probe(comm, _PROBE_TIMEOUT) for comm in self._comms]

    def __call__(self) -> str:
        thread = threading.Thread(target=self._probes[1])
        thread.start()
        found = self._probes[0]()
        thread.join()
        return found

    def close(self) -> None:
        for probe in self._probes:
            probe.close()
        for comm in self._comms:
            comm.close()


if __name__ == "__main__":
    sys.exit(main())
