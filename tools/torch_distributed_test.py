"""Runs PyTorch's own test of its backends over this library and over Gloo, and compares.

    python tools/torch_distributed_test.py                       # all 285, in ten minutes
    python tools/torch_distributed_test.py --only all_reduce     # those whose names have that in them
    python tools/torch_distributed_test.py --json out.json

``DistributedTest`` comes in PyTorch's wheel and needs the package `expecttest`; the name of the backend stands in the
variable BACKEND. What passes under Gloo must pass under this library, but for what EXPECTED names, with the reason.
Where a test is skipped because of the backend's name, it runs again as a test of Gloo, in which each "gloo" makes a
group of this library instead. Tests that need GPUs are skipped without.

Exit codes: 0, 1 when a test fails that passes under Gloo, or one of EXPECTED passes, 2 when this cannot run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

OURS, THEIRS = "collectives", "gloo"
AS_GLOO = "collectives as gloo"
TEST_TIMEOUT = 60  # seconds of a test
RUN_TIMEOUT = 3600.0

# Tests that pass under Gloo and not here, and why that is right.
_REFUSED = (
    "torch.distributed refuses monitored_barrier for all backends but Gloo; each barrier here names who is missing"
)
EXPECTED = {
    "test_monitored_barrier_gloo": _REFUSED,
    "test_monitored_barrier_gloo_subgroup": _REFUSED,
    "test_monitored_barrier_gloo_rank_0_timeout": "looks for the words of Gloo; the error here has rank, host and pid",
}

Results = dict[str, dict[str, Any]]  # by name: status, text, seconds


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--only", default="", help="run the tests whose names have this in them")
    parser.add_argument("--ranks", type=int, default=4, help="processes of a test (%(default)s)")
    parser.add_argument("--json", type=Path, help="a file for the results")
    parser.add_argument("--child", choices=(OURS, THEIRS, AS_GLOO), help=argparse.SUPPRESS)
    parser.add_argument("--names", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for package in ("torch", "expecttest"):
        if importlib.util.find_spec(package) is None:
            parser.error(f"{package} is not installed: pip install {package}")
    if arguments.child:
        names = json.loads(arguments.names.read_text()) if arguments.names else None
        arguments.json.write_text(json.dumps(run_tests(arguments.child, arguments.only, names)))
        return 0

    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torch_distributed_test_") as name:
        folder = Path(name)
        theirs = in_process(THEIRS, arguments, folder)
        ours = in_process(OURS, arguments, folder)
        again = [name for name, one in ours.items() if one["status"] == "skipped" and passed(theirs, name)]
        if again:
            ours |= in_process(AS_GLOO, arguments, folder, again)
    if arguments.json:
        arguments.json.write_text(json.dumps({OURS: ours, THEIRS: theirs}, indent=1) + "\n")
    wrong = report(ours, theirs, again)
    print(f"{time.monotonic() - begin:.0f} s")
    return int(wrong > 0)


def passed(results: Results, name: str) -> bool:
    return results.get(name, {}).get("status") == "passed"


def report(ours: Results, theirs: Results, again: list[str]) -> int:
    """Prints the comparison; returns the number of tests that are not as they should be."""
    for label, results in ((THEIRS, theirs), (OURS, ours)):
        states = [one["status"] for one in results.values()]
        print(f"{label}: {', '.join(f'{states.count(state)} {state}' for state in sorted(set(states)))}")
    print(f"{len(again)} of {OURS} ran as tests of {THEIRS}")
    wrong = 0
    for name in sorted(ours):
        if passed(theirs, name) and not passed(ours, name):
            if name in EXPECTED:
                print(f"expected: {name}: {EXPECTED[name]}")
                continue
            wrong += 1
            print(f"FAILS HERE: {name} ({ours[name]['status']})\n{indented(ours[name]['text'])}")
        elif name in EXPECTED and passed(ours, name):
            wrong += 1
            print(f"PASSES, although EXPECTED says: {name}: {EXPECTED[name]}")
    print(f"{wrong} not as under {THEIRS}")
    return wrong


def indented(text: str) -> str:
    """The end of an error, which has the traceback of a rank."""
    return "\n".join("    " + line for line in text.strip().splitlines()[-12:])


def in_process(kind: str, arguments: argparse.Namespace, folder: Path, names: list[str] | None = None) -> Results:
    """The results of the tests in a process of their own: the module reads the backend's name when it is imported."""
    out, log = folder / "out.json", folder / "log"
    command = [sys.executable, __file__, "--child", kind, "--only", arguments.only, "--json", str(out)]
    if names is not None:
        (folder / "names.json").write_text(json.dumps(names))
        command += ["--names", str(folder / "names.json")]
    variables = {
        "BACKEND": OURS if kind == OURS else THEIRS,
        "WORLD_SIZE": str(arguments.ranks),
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(TEST_TIMEOUT),
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder),
    }
    with log.open("wb") as output:
        done = subprocess.run(
            command,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=RUN_TIMEOUT,
            check=False,
        )
    if done.returncode:
        sys.exit(f"the tests of {kind} ended with code {done.returncode}:\n{indented(log.read_text(errors='replace'))}")
    results: Results = json.loads(out.read_text())
    return results


class _Result(unittest.TestResult):
    """Keeps the outcome of each test, and says in the log which one runs."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: Results = {}
        self._begin = 0.0

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._begin = time.monotonic()
        print(f"=== {test.id()}", flush=True)

    def _keep(self, test: unittest.TestCase, status: str, text: str = "") -> None:
        seconds = round(time.monotonic() - self._begin, 2)
        self.outcomes[test.id().rpartition(".")[2]] = {"status": status, "text": text, "seconds": seconds}

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._keep(test, "passed")

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._keep(test, "failed", str(err[1]))

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._keep(test, "failed", str(err[1]))

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._keep(test, "skipped", reason)


def run_tests(kind: str, only: str, names: list[str] | None) -> Results:
    """Runs the tests in this process, whose environment has the names; each starts ranks of its own."""
    import torch
    from torch.testing._internal import common_distributed

    features = common_distributed.DistTestCases.backend_feature
    for name in ("ddp", "subgroup", "plugin"):
        features[name].add(OURS)
    from torch.testing._internal.distributed import distributed_test

    if kind == AS_GLOO:
        _replace_gloo(distributed_test.dist)

    class Tests(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):  # type: ignore
        def setUp(self) -> None:
            super().setUp()
            # Forked, unlike those of PyTorch's own runs, which import torch for seconds. Nothing has run here yet.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    torch.set_num_threads(1)
    loader = unittest.TestLoader()
    wanted = [name for name in loader.getTestCaseNames(Tests) if only in name and (names is None or name in names)]
    result = _Result()
    unittest.TestSuite(Tests(name) for name in wanted).run(result)
    return result.outcomes


def _replace_gloo(dist: Any) -> None:
    """Makes groups of this library wherever one of Gloo is asked for."""

    def replaced(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            arguments = tuple(OURS if one == THEIRS else one for one in arguments)
            return function(*arguments, **{k: OURS if v == THEIRS else v for k, v in options.items()})

        return call

    for name in ("init_process_group", "new_group"):
        function = replaced(getattr(dist, name))
        setattr(dist, name, function)
        setattr(dist.distributed_c10d, name, function)


if __name__ == "__main__":
    sys.exit(main())
