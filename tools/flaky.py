"""Runs the tests that start processes or wait for something again and again, beside processes that keep all cores busy.

    python tools/flaky.py                        # 10 rounds, an hour on two cores; after an interruption it goes on
    python tools/flaky.py --rounds 3 tests/launch/test_launch.py

A test that fails now and then is a fault of its own: it waits for time to pass instead of for what it needs.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from reports import cases

ROOT = Path(__file__).resolve().parent.parent
BUSY = "while True: pass"
OF_A_ROUND = 3600.0  # seconds; each test has a limit of its own
PROCESSES_OF_A_CORE = 4  # of pytest: more than a core can serve, so that tests keep each other waiting, too
# Tests that import one of these start processes, send signals or wait for others.
WAITING = {"signal", "subprocess", "socket", "threading", "joining", "namespaces", "net", "chaos_jobs", "tf_workers"}
WAITING |= {"replicas", "shrinking", "stderr_of", "threaded"}
# These start processes, too, but only for long computations.
COMPUTING = ("test_bench*", "test_conformance*", "test_cpp", "test_cuda*", "test_examples", "test_model", "test_readme")
COMPUTING += ("test_reducers", "test_sdist", "test_tensorflow_*", "test_programs", "test_mutants", "test_even_parts")
COMPUTING += ("test_arrays", "test_arrays_jax", "test_calls_in_turn", "test_changed_arrays", "test_nccl_collectives")
COMPUTING += ("test_objects", "test_reading", "test_reach", "test_documents", "test_cross_device_ops_threads")
KEPT = ("test_tensorflow_failures",)


def imports(path: Path) -> set[str]:
    """The first words of the modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


def chosen() -> list[str]:
    """The files to run when none are named."""
    files = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        computing = any(path.match(f"{pattern}.py") for pattern in COMPUTING) and path.stem not in KEPT
        if not computing and imports(path) & WAITING:
            files.append(path.relative_to(ROOT).as_posix())
    return files


def one_round(files: list[str], busy: int) -> dict[str, Any]:
    """Runs the files beside busy processes; returns the time, the number of tests, and the failures."""
    began = time.monotonic()
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(busy)]
    try:
        with tempfile.TemporaryDirectory(prefix="clv-flaky-") as folder:
            report = Path(folder) / "report.xml"
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}"]
            command += [f"-n{PROCESSES_OF_A_CORE * len(os.sched_getaffinity(0))}", *files]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=OF_A_ROUND, check=False)
            ran = list(cases(report)) if report.exists() else []
    finally:
        for process in others:
            process.kill()
            process.wait()
    failed = {case.node: text[:300] for case in ran if (text := case.failure()) is not None}
    if bool(failed) != (done.returncode != 0):
        raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return {"seconds": round(time.monotonic() - began), "tests": len(ran), "failed": failed}


def main(arguments: list[str] | None = None) -> int:
    """Runs the rounds that are missing and prints which tests failed in how many."""
    parser = argparse.ArgumentParser(description="tests that wait, beside busy processes, round after round")
    parser.add_argument("files", nargs="*", help="test files (default: those that start processes or wait)")
    parser.add_argument("--rounds", type=int, default=10, help="how often (default: 10)")
    parser.add_argument("--busy", type=int, default=4, help="busy processes beside them (default: 4)")
    parser.add_argument("--minutes", type=float, default=60, help="no round begins later than that (default: 60)")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "flaky.json", help="what was done so far")
    parser.add_argument("--again", action="store_true", help="forget what was done so far")
    options = parser.parse_args(arguments)
    files = options.files or chosen()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    subject = {"commit": commit, "files": files, "busy": options.busy}
    state: dict[str, Any] = {**subject, "rounds": []}
    if options.state.exists() and not options.again:
        before = json.loads(options.state.read_text())
        if {key: before.get(key) for key in subject} == subject:
            state = before
    options.state.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * options.minutes
    while len(state["rounds"]) < options.rounds and time.monotonic() < end:
        result = one_round(files, options.busy)
        state["rounds"].append(result)
        options.state.write_text(json.dumps(state, indent=1))
        print(f"round {len(state['rounds'])}: {result['tests']} tests in {result['seconds']} s,", end=" ")
        print(f"{len(result['failed'])} failed", *(f"\n  {name}: {text}" for name, text in result["failed"].items()))
    times = Counter(name for result in state["rounds"] for name in result["failed"])
    print(
        f"{len(files)} files, {len(state['rounds'])} of {options.rounds} rounds beside {options.busy} processes", end=""
    )
    print(f" on {len(os.sched_getaffinity(0))} cores at {commit}: {len(times)} tests failed")
    for name, count in times.most_common():
        print(f"  {count} times: {name}")
    return 1 if times or len(state["rounds"]) < options.rounds else 0


if __name__ == "__main__":
    sys.exit(main())
