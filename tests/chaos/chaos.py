"""Something is done to a rank at a random instant of a random call, again and again: does every job end as it should?

    python tests/chaos/chaos.py --trials 2000                     kills, over local, shm, tcp and mixed groups in turn
    python tests/chaos/chaos.py --fault stop,resume --trials 50   stopped ranks; see --help for the faults
    python tests/chaos/chaos.py --fault kill --seed 7 --only 13   trial 13 of seed 7 again
    python tests/chaos/chaos.py --soak 600                        no fault: memory and descriptors must stay flat

A trial that fails is printed with the command that repeats it. Its calls and its instant are the same then, as far as
the clock lets them be.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[1:1] = [str(TESTS / "support"), str(TESTS.parent / "bench")]  # no pytest has done so here

import chaos_jobs  # noqa: E402
import chaos_soak  # noqa: E402
import leftovers  # noqa: E402
import nursery  # noqa: E402
import progress  # noqa: E402
from chaos_trials import FAULTS, Result, attempt  # noqa: E402


def run(
    faults: list[str], transports: list[str], trials: int, seed: int, only: int | None = None, show: str = ""
) -> list[Result]:
    """So many trials, of the faults and the transports in turn."""
    kinds = [(f, t) for f in faults for t in transports if FAULTS[f].possible(t)]
    if not kinds:
        raise SystemExit(f"none of the faults {', '.join(faults)} can be done to {', '.join(transports)}")
    results = []
    bar = progress.make(show)
    try:
        with chaos_jobs.Jobs() as jobs:
            for number in range(trials) if only is None else [only]:
                fault, transport = kinds[number % len(kinds)]
                result = attempt(jobs, fault, transport, seed, number)
                results.append(result)
                if result.failures:
                    print(f"\r{result.text()}", file=sys.stderr, flush=True)
                bar.update((number + 1) / trials)
                if not show and trials >= 500 and (number + 1) % 100 == 0:
                    print(f"{number + 1} trials", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print(f"interrupted after {len(results)} of {trials} trials", file=sys.stderr)
    finally:
        bar.close()
    return results


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def table(results: list[Result]) -> str:
    """A row for each fault and transport. Times: how long after the fault the survivors had their error."""
    heads = ["fault", "transport", "ranks", "trials", "failed", "errors", "p50 ms", "p99 ms", "max ms", "> 1 s"]
    rows = [heads]
    for fault, transport in dict.fromkeys((r.fault, r.transport) for r in results):
        some = [r for r in results if (r.fault, r.transport) == (fault, transport)]
        late = [t for r in some for t in r.late]
        sizes = [r.size for r in some]
        row = [fault, transport, f"{min(sizes)}-{max(sizes)}", str(len(some)), str(sum(bool(r.failures) for r in some))]
        times = [f"{1000 * quantile(late, q):.0f}" for q in (0.5, 0.99, 1)] if late else ["-"] * 3
        rows.append([*row, str(len(late)), *times, str(sum(t > 1 for t in late))])
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def soak(seconds: float, transports: list[str], seed: int, show: str) -> int:
    """Each transport for its part of the time."""
    wrong: list[str] = []
    with chaos_jobs.Jobs() as jobs:
        for transport in transports:
            bar = progress.make(show)
            faults, line = chaos_soak.soak(jobs, transport, seconds / len(transports), seed, bar.update)
            bar.close()
            print(line, flush=True)
            wrong += faults
    for fault in wrong:
        print(fault, file=sys.stderr)
    return 1 if wrong else 0


def listed(text: str, allowed: list[str]) -> list[str]:
    names = allowed if text == "all" else text.split(",")
    if unknown := [name for name in names if name not in allowed]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is none of {', '.join(allowed)}")
    return names


def main() -> int:
    usable = chaos_jobs.usable_transports()
    faults = "\n".join(f"  {name:8} {fault.does}" for name, fault in FAULTS.items())
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=f"faults:\n{faults}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=100, metavar="N", help="how many in all (default 100)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the random choices; printed")
    parser.add_argument("--fault", type=lambda s: listed(s, list(FAULTS)), default=["kill"], help="a list, or all")
    parser.add_argument("--transport", type=lambda s: listed(s, usable), default=usable, help="a list, or all")
    parser.add_argument("--only", type=int, metavar="K", help="trial K of that seed, alone")
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="run calls for so long instead, without a fault")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every trial there")
    options = parser.parse_args()
    leftovers.begin()
    print(f"seed {options.seed}, {os.cpu_count()} cores", flush=True)
    began = time.monotonic()
    show = "-" if progress.wanted() else ""
    if options.soak:
        return soak(options.soak, [t for t in options.transport if t != "local"], options.seed, show)
    results = run(options.fault, options.transport, options.trials, options.seed, options.only, show)
    print(table(results))
    failed = sum(bool(r.failures) for r in results)
    calls = sum(r.calls for r in results)
    print(f"{len(results)} trials, {failed} failed, {calls} results checked, {time.monotonic() - began:.0f} s")
    nursery.close_all()
    if left := leftovers.descendants():
        print("left over:", *left, sep="\n  ")
        failed += 1
    if options.json:
        options.json.write_text(json.dumps([vars(r) for r in results], indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
