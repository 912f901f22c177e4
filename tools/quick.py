"""A verdict on a change in a few minutes: .ci/quick. It prints what it omits; .ci/run omits nothing.

    .ci/quick                 what differs from the upstream branch, or else from the last commit but one
    .ci/quick PATH ...        these files
    .ci/quick --budget 60     no test begins after so many seconds of tests

Formats of the changed files, types, an incremental build (build/quick/; nothing is installed), C++ tests by ctest, then
the tests that the change can reach, the closest first (tools/reach.py), until the time is up. The first build takes as
long as an installation.
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
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import reach
from reports import cases
from staged import ROOT, Staged, tool

FORMATTED = (".cc", ".cu", ".h")
# Compiles the C++ tests once more, against an installation: here ctest runs those of the incremental build.
NEVER = {
    "tests/model/test_model.py": "its models take minutes and do not depend on the sources",
    "tests/cpp/test_cpp.py": "its C++ tests run by ctest, but for the linking of a static libstdc++",
    "tests/cuda/test_cuda_build.py": "the kernels for GPUs are not built here",
}
WHOLE = 150  # seconds after which no test begins, unless the rest took so long that tests had less than LEAST
LEAST = 60
# The part of a long build that does not count, so that a header that many files include gets tests, too.
LONG_BUILD = 30
MOST_BUILD = 300
OF_CXX = 90  # seconds for a program of ctest
# The assumed duration of a file of tests that has not run before, and by how much more than the time there is for work.
GUESS = 10.0
MARGIN = 1.5


class Failed(Exception):
    """A step has failed."""


def output_of(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def changed() -> list[str]:
    """Files that differ from the upstream branch, or without one from the last commit but one, and new files."""
    for upstream in ("@{upstream}", "origin/main", "HEAD~1"):
        found = subprocess.run(
            ["git", "merge-base", "HEAD", upstream], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if found.returncode == 0:
            base = found.stdout.strip()
            break
    else:
        base = "HEAD"
    names = output_of("git", "diff", "--name-only", base).splitlines()
    return sorted({*names, *output_of("git", "ls-files", "--others", "--exclude-standard").splitlines()})


def short(test: str) -> str:
    return Path(test).stem.removeprefix("test_")


class Quick:
    """The steps, and what they omit."""

    def __init__(self, paths: list[str], whole: float, budget: float | None) -> None:
        self.begin = time.monotonic()
        self.whole = whole
        self.budget = budget
        self.graph = reach.Graph()
        self.changed = [self.graph.relative(path) for path in paths]
        self.present = [path for path in self.changed if (ROOT / path).is_file()]
        self.reached = self.graph.reached(self.changed)
        self.staged = Staged(ROOT / "build" / "quick")
        self.left_out: list[str] = []

    def spent(self) -> float:
        return time.monotonic() - self.begin

    def step(self, name: str, work: Callable[[], None]) -> None:
        begin = time.monotonic()
        print(f"=== {name}", flush=True)
        work()
        print(f"=== {name}: {time.monotonic() - begin:.1f} s", flush=True)

    def run(self) -> None:
        self.step("formats", self.formats)
        compiled = any(path.endswith((*FORMATTED, "CMakeLists.txt", ".cmake")) for path in self.changed)
        imported = any(path.startswith("python/") or path == "pyproject.toml" for path in self.changed)
        bound = any(path.startswith("csrc/bindings/") or path.endswith(".pyi") for path in self.changed)
        if imported or bound:
            self.step("types", self.types)
        else:
            self.left_out.append("types: no file of the package has changed")
        if not self.reached and not compiled:
            self.left_out.append("tests: none reaches the change")
            return
        self.step("build", self.build)
        if bound:
            self.step("stub", self.stub)
        if any(test.is_cxx for test in self.reached):
            self.step("C++ tests", self.cxx_tests)
        if any(not test.is_cxx for test in self.reached):
            self.step("tests", self.python_tests)

    def command(self, *command: str, environment: dict[str, str] | None = None) -> None:
        if subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, check=False).returncode != 0:
            raise Failed(" ".join(command[:3]))

    def formats(self) -> None:
        python = [path for path in self.present if path.endswith((".py", ".pyi"))]
        if python:
            self.command(tool("ruff"), "check", "--force-exclude", *python)
            self.command(tool("ruff"), "format", "--check", "--force-exclude", *python)
        sources = [path for path in self.present if path.endswith(FORMATTED) and not path.startswith("bench/peers/")]
        if sources:
            self.command(tool("clang-format"), "--dry-run", "-Werror", *sources)

    def types(self) -> None:
        self.command(tool("mypy"))

    def build(self) -> None:
        if not (self.staged.folder / "build.ninja").exists():
            print("the first build: it takes as long as an installation", flush=True)
        outcome = self.staged.build()
        if not outcome.good:
            print(outcome.output)
            raise Failed("build")
        self.whole += min(outcome.seconds if outcome.seconds > LONG_BUILD else 0, MOST_BUILD)
        self.staged.check_import()

    def stub(self) -> None:
        self.command(sys.executable, "tools/make_stub.py", "--check", environment=self.staged.environment())

    def cxx_tests(self) -> None:
        names = [test.name for test in self.reached if test.is_cxx]
        # Each may take its time, so far from the change they are left to what is left of it.
        near = min(test.distance for test in self.reached if test.is_cxx)
        for distance in sorted({test.distance for test in self.reached if test.is_cxx}):
            batch = [test.name for test in self.reached if test.is_cxx and test.distance == distance]
            if distance > near and self.spent() > self.whole / 2:
                self.left_out.append(f"C++ tests: {', '.join(names)} (no time was left)")
                return
            command = [tool("ctest"), "--test-dir", str(self.staged.folder), "-j", str(os.cpu_count() or 1)]
            command += ["--output-on-failure", "--no-tests=error", "--timeout", str(OF_CXX), "--stop-on-failure"]
            command += ["-R", f"^({'|'.join(batch)})$"]
            done = subprocess.run(
                command, cwd=ROOT, env=self.staged.environment(), capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                print(done.stdout)
                raise Failed("C++ tests")
            print(f"passed: {' '.join(batch)}", flush=True)
            names = [name for name in names if name not in batch]

    def python_tests(self) -> None:
        names = [test.test for test in self.reached if not test.is_cxx]
        for name, why in NEVER.items():
            if name in names and name not in self.changed:
                names.remove(name)
                self.left_out.append(f"{name}: {why}")
        budget = self.budget if self.budget is not None else max(LEAST, self.whole - self.spent())
        reaching = len(names)
        names, farther = self.affordable(names, budget)
        with tempfile.TemporaryDirectory(prefix="quick.") as folder:
            report = Path(folder) / "report.xml"
            workers = os.cpu_count() or 1
            parallel = ["-n", str(workers)]
            if importlib.util.find_spec("xdist") is None:
                self.left_out.append("tests side by side: pytest-xdist is not installed (pip install '.[test]')")
                parallel = []
            variables = self.staged.environment()
            variables["PYTHONPATH"] += os.pathsep + str(ROOT / "tools")
            variables["QUICK_TESTS_END"] = str(time.monotonic() + budget)
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "pytest", "-x", "-qq", "-p", "no:cacheprovider", "-p", "pytest_until"),
                    *("--timeout", "60", f"--junit-xml={report}", "-r", "fE", *parallel, *names),
                ],
                cwd=ROOT,
                env=variables,
                stdin=subprocess.DEVNULL,
                check=False,
            )
            late, ran = self.outcome(report)
            self.remember(report)
        whole = [name for name in names if late[name] and not ran[name]] + farther
        partly = [
            f"{late[name]} of {late[name] + ran[name]} tests of {name}" for name in names if late[name] and ran[name]
        ]
        print(f"ran: {sum(ran.values())} tests of {' '.join(short(name) for name in names if ran[name])}", flush=True)
        if whole:
            self.left_out.append(
                f"{len(whole)} of {reaching} files of tests, the farthest, for which there was no time: "
                + " ".join(short(name) for name in whole)
            )
        if partly:
            self.left_out.append(f"for want of time, {', '.join(partly)}")
        if done.returncode not in (0, 5):
            raise Failed("tests")

    @property
    def _durations(self) -> Path:
        return self.staged.folder / "durations.json"

    def affordable(self, names: list[str], budget: float) -> tuple[list[str], list[str]]:
        """The closest files, as many as there may be time for, and the others, which are not even collected."""
        known = json.loads(self._durations.read_text()) if self._durations.exists() else {}
        left = MARGIN * budget * (os.cpu_count() or 1)
        count = 0
        while count < len(names) and left > 0:
            left -= known.get(names[count], GUESS)
            count += 1
        return names[:count], names[count:]

    def remember(self, report: Path) -> None:
        """The durations of files that took longer than in any earlier run."""
        known = json.loads(self._durations.read_text()) if self._durations.exists() else {}
        now: dict[str, float] = {}
        for case in cases(report) if report.exists() else ():
            now[case.file] = now.get(case.file, 0) + case.seconds
        known |= {name: max(seconds, known.get(name, 0)) for name, seconds in now.items()}
        self._durations.write_text(json.dumps(known, indent=1) + "\n")

    @staticmethod
    def outcome(report: Path) -> tuple[Counter[str], Counter[str]]:
        """For each file, how many tests were skipped for lack of time, and how many ran."""
        late: Counter[str] = Counter()
        ran: Counter[str] = Counter()
        for case in cases(report) if report.exists() else ():
            skipped = case.element.find("skipped")
            too_late = skipped is not None and "no time" in skipped.get("message", "")
            (late if too_late else ran)[case.file] += 1
        return late, ran


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--whole", type=float, default=WHOLE, help="seconds after which no test begins any more")
    parser.add_argument("--budget", type=float, help="seconds for tests of Python, instead of what is left")
    parser.add_argument("paths", nargs="*", metavar="PATH")
    options = parser.parse_args(arguments)
    paths = options.paths or changed()
    if not paths:
        print("nothing has changed")
        return 0
    quick = Quick(paths, options.whole, options.budget)
    print(f"{len(paths)} files: {' '.join(paths[:8])}{' ...' if len(paths) > 8 else ''}", flush=True)
    verdict = "passed"
    try:
        quick.run()
    except Failed as failed:
        verdict = f"FAILED: {failed}"
    except FileNotFoundError as missing:
        verdict = f"FAILED: {missing}"
    for line in quick.left_out:
        print(f"left out: {line}")
    print(f"quick: {verdict}, {quick.spent():.0f} s" + ("" if quick.left_out else ", nothing left out"))
    return int(verdict != "passed")


if __name__ == "__main__":
    sys.exit(main())
