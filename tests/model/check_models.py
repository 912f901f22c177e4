"""Checks the models of the shared-memory protocol with spin: each holds, and each mutant of it, in which one step of
the handshake is taken out, is found to be wrong. Needs `spin` and `gcc` (Debian packages of these names).

    python tests/model/check_models.py              # a minute on two cores
    python tests/model/check_models.py --long       # larger models as well, in a quarter of an hour
    python tests/model/check_models.py doorbell     # only what has this word in its name
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
LIMIT = 1800  # seconds for one model
DEPTH = 2_000_000
MEMORY = 6000  # MiB, a bound for models that got out of hand


@dataclass(frozen=True)
class Case:
    model: str
    defines: str
    holds: bool
    long: bool = False

    @property
    def name(self) -> str:
        return " ".join((self.model, *self.defines.split()))


# Of collectives.pml.
KINDS = {"inline": 0, "one_shot": 1, "two_shot": 2, "symmetric": 3, "broadcast": 4, "swapped": 5}

HOLD = [
    *(Case("collectives", f"KIND={kind}", True) for kind in KINDS.values()),
    *(Case("collectives", f"KIND={kind} N=3 FLIGHT=1", True) for name, kind in KINDS.items() if name != "swapped"),
    *(Case("collectives", f"KIND={kind} FLIGHT=1 TSO", True) for kind in KINDS.values()),
    Case("collectives", "FLIGHT=1", True),  # any kinds after each other
    Case("collectives", "", True, long=True),
    Case("collectives", "FLIGHT=1 TSO", True, long=True),
    Case("collectives", "KIND=0 N=3", True, long=True),
    Case("collectives", "KIND=2 N=3", True, long=True),
    Case("collectives", "KIND=3 TSO", True, long=True),
    Case("doorbell", "", True),
    Case("doorbell", "THREADS=2", True),
    Case("doorbell", "THREADS=3 WAKERS=1", True),
    Case("doorbell", "TSO FENCE", True),
    Case("doorbell", "TSO BOUNDED", True),
    Case("doorbell", "TSO BOUNDED THREADS=2", True),
    Case("mismatch", "", True),
    Case("mismatch", "N=3 COLLS=1", True),
    Case("mismatch", "N=3 COLLS=1 NO_TELL", True),  # where all ranks share memory, either of the two is enough
    Case("mismatch", "N=3 COLLS=1 NO_LOOK", True),
    Case("mismatch", "N=3", True, long=True),
    Case("fifo", "", True),
    Case("fifo", "TSO", True),
]

# In each of these something is missing, and spin has to find a way in which that does harm.
MUTANTS = [
    # A line, or a slot, is written again before all have completed the collective that used it before.
    Case("collectives", "KIND=0 NO_LINE_GUARD", False),
    Case("collectives", "KIND=1 NO_SLOT_GUARD", False),
    Case("collectives", "KIND=2 NO_SLOT_GUARD", False),
    Case("collectives", "KIND=4 NO_SLOT_GUARD", False),
    Case("collectives", "KIND=5 NO_SLOT_GUARD", False),
    # The header line counts a collective that it only begins; the control page does.
    Case("collectives", "KIND=0 NO_COUNT", False),
    Case("collectives", "KIND=0 NO_COMPLETION", False),
    # The word before the payload; no wait for the header; none for the flag of a later chunk.
    Case("collectives", "KIND=0 NO_ORDER", False),
    Case("collectives", "KIND=0 NO_HEADER_WAIT", False),
    Case("collectives", "KIND=1 NO_FLAG_WAIT", False),
    Case("collectives", "KIND=5 NO_FLAG_WAIT", False),
    Case("collectives", "KIND=2 NO_REDUCED_WAIT", False),
    Case("collectives", "KIND=2 NO_REDUCED_ORDER", False),
    Case("collectives", "KIND=4 NO_READ_WAIT", False),
    Case("collectives", "KIND=3 NO_ENTRY", False),
    Case("collectives", "KIND=3 NO_EXIT", False),
    # Stores that pass each other, and loads that pass each other: what release and acquire rule out.
    *(Case("collectives", f"KIND={kind} FLIGHT=1 TSO NO_RELEASE", False) for kind in KINDS.values()),
    Case("collectives", "KIND=0 NO_ACQUIRE", False),
    Case("doorbell", "NO_FLAG", False),
    Case("doorbell", "NO_SECOND_LOOK", False),
    Case("doorbell", "NO_RING", False),
    Case("doorbell", "NO_WAKE_ORDER", False),
    Case("doorbell", "THREADS=2 NO_ANNOUNCEMENT", False),
    Case("doorbell", "THREADS=2 NO_DEBT", False),
    Case("doorbell", "THREADS=3 WAKERS=1 NO_LAST_LOOK", False),
    Case("doorbell", "TSO", False),  # why sleeps are bounded: Domain::wake has no fence
    Case("doorbell", "TSO FENCE NO_SLEEPER_FENCE", False),
    Case("mismatch", "N=3 COLLS=1 NO_COMPARISON", False),
    Case("mismatch", "N=3 COLLS=1 NO_SYNCHRONISATION", False),
    Case("mismatch", "N=3 COLLS=1 NO_WAIT_BEFORE_SIGNAL", False),
    Case("mismatch", "N=3 COLLS=1 NO_TELL NO_LOOK", False),
    Case("fifo", "NO_ACK", False),
    Case("fifo", "NO_ACK_ORDER", False),
    Case("fifo", "NO_WORD_ORDER", False),
    Case("fifo", "TSO NO_RELEASE", False),
]
CASES = HOLD + MUTANTS


def steps(model: str) -> set[str]:
    """What can be taken out of a model."""
    return set(
        re.findall(r"\bNO_[A-Z_]+\b", re.sub(r"/\*.*?\*/", "", (FOLDER / f"{model}.pml").read_text(), flags=re.S))
    )


def run(command: list[str], folder: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False)
    # pan ends with 0 whether or not it finds anything.
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def check(case: Case) -> tuple[bool, str]:
    """Whether a case came out as it should, and what spin said."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="model-") as folder:
        options = [f"-D{define}" for define in case.defines.split()]
        run(["spin", *options, "-a", str(FOLDER / f"{case.model}.pml")], folder)
        # Small searches take less time than the optimiser.
        flags = [
            "-O2" if case.long or "N=3" in case.defines else "-O0",
            "-DSAFETY",
            "-DCOLLAPSE",
            "-DVECTORSZ=4096",
            f"-DMEMLIM={MEMORY}",
        ]
        run(["gcc", *flags, "-w", "-o", "pan", "pan.c"], folder)
        said = run(["./pan", f"-m{DEPTH}"], folder)
    errors = re.search(r"errors: (\d+)", said)
    states = re.search(r"(\d+) states, stored", said)
    complete = "Search not completed" not in said and "max search depth too small" not in said
    if errors is None or states is None or (case.holds and not complete):
        return False, f"the search did not end:\n{said}"
    what = re.search(r"pan:1: (.*?)(?: \(at depth|$)", said)
    text = what[1] if what else "no error"
    good = (int(errors[1]) == 0) == case.holds
    return good, f"{int(states[1]):10,} states, {time.monotonic() - begin:5.1f} s: {text}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("word", nargs="?", default="", help="only cases with this word in their name")
    parser.add_argument("--long", action="store_true", help="the large models as well")
    arguments = parser.parse_args()
    cases = [case for case in CASES if arguments.word in case.name and (arguments.long or not case.long)]
    bad = 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for case, (good, text) in zip(cases, pool.map(check, cases), strict=True):
            bad += not good
            verdict = ("holds" if case.holds else "fails as it should") if good else "WRONG"
            print(f"{verdict:20} {case.name:45} {text}", flush=True)
    print(f"{len(cases)} models, {sum(case.holds for case in cases)} of them to hold, {bad} came out wrong")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
