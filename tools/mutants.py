"""Shows that the short tests are strong: makes 40 lines of the core wrong, one at a time, and checks which test fails.

    python tools/mutants.py                     all of tools/mutant_list.py
    python tools/mutants.py --only flag-of-loop   some of them, also when there is a result already
    python tools/mutants.py --list
    python tools/mutants.py --table             the results as a table for docs/testing.md

Works on a copy of the tree in a folder of its own, which is built once and then file by file. The tests that are named
as likely killers have to pass there first. Then, for each mutant, they run in their order, then the tests that reach
the line (tools/reach.py), each until the first failure; the tests with --full only for what survives that. A test that
hangs has killed nothing until its own time is up and it fails. Results are kept in the folder, so a run that was
broken off goes on; a mutant, or a list of killers, that has changed is tried anew.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import reach
from mutant_list import MUTANTS, Mutant
from reports import cases
from staged import ROOT, Staged, tool

FOLDER = Path(tempfile.gettempdir()) / "mutants-of-the-core"
OF_A_TEST = 60  # seconds
OF_A_KILLER = 300
OF_REACHING = 240
OF_FULL = 900
# These tests need another build than this one, or none.
NEVER = (
    "tests/cpp/test_cpp.py",
    "tests/cuda/test_cuda_build.py",
    "tests/house/test_mutants.py",
    "tests/house/test_reach.py",
)
CTEST = "ctest "


@dataclass
class Result:
    """The result of a mutant.

    Attributes:
        phase: "likely killer", "reaching tests", "full tests", "survived ...", or "error: ...".
        killer: the node id of pytest that failed first, or the name of the program that ctest ran.
        seconds: from the first test to the failure.
        build: seconds of the build.
        how: the first line of the failure.
        key: what the result is about.
    """

    phase: str
    killer: str
    seconds: float
    build: float
    how: str
    key: str


@dataclass
class Failure:
    """The first test that failed."""

    test: str
    how: str


def key_of(mutant: Mutant) -> str:
    return repr((mutant.file, mutant.old, mutant.new, mutant.killers))


class Copy:
    """The copy of the tree, where lines are changed and tests run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tree = folder / "tree"
        self.staged = Staged(self.tree / "build" / "mutants", self.tree)

    def refresh(self) -> None:
        """Updates the copy from the tree. Unchanged files keep their times, so that they are not built again."""
        wanted = reach.files_of(ROOT)
        for name in wanted:
            here, there = ROOT / name, self.tree / name
            if not there.exists() or there.read_bytes() != here.read_bytes():
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(here, there)
        known = set(wanted)
        for there in sorted(self.tree.rglob("*")):
            name = there.relative_to(self.tree).as_posix()
            if there.is_file() and name not in known and not name.startswith("build/"):
                there.unlink()

    def build(self) -> tuple[bool, float, str]:
        outcome = self.staged.build()
        return outcome.good, outcome.seconds, outcome.output

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        path = self.tree / mutant.file
        text = path.read_text()
        if text.count(mutant.old) != 1:
            raise ValueError(f"{mutant.name}: {mutant.file} has its line {text.count(mutant.old)} times")
        path.write_text(text.replace(mutant.old, mutant.new))
        try:
            yield
        finally:
            path.write_text(text)

    def environment(self) -> dict[str, str]:
        variables = self.staged.environment()
        # Python considers a compiled file current when the length and the second of its source are the same.
        return variables | {"PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, command: list[str], limit: float, environment: dict[str, str]) -> tuple[int | None, str]:
        """The exit code, None when it took too long, and the output."""
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            process = subprocess.Popen(
                command,
                cwd=self.tree,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            code: int | None = None
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                pass
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            return code, output.read()

    def ctest(self, names: list[str]) -> Failure | None:
        pattern = f"^({'|'.join(names)})$"
        command = [tool("ctest"), "--test-dir", str(self.staged.folder), "-R", pattern, "--no-tests=error"]
        command += ["--timeout", str(OF_A_TEST), "--stop-on-failure", "--output-on-failure", "-j", "2"]
        code, output = self.run(command, OF_A_TEST * len(names) + 30, self.environment())
        if code == 0:
            return None
        failed = re.search(r"^\s*\d+/\d+ Test +#\d+: (\S+) \.*(\**.*)$", self._not_passed(output), re.MULTILINE)
        if code is None or failed is None:
            return Failure(names[0], "no verdict: " + output.strip().splitlines()[-1]) if code else None
        return Failure(f"ctest {failed[1]}", failed[2].strip("* "))

    @staticmethod
    def _not_passed(output: str) -> str:
        return "\n".join(line for line in output.splitlines() if "Passed" not in line)

    def pytest(
        self, arguments: list[str], limit: float, *, until: float | None = None, workers: int = 0
    ) -> Failure | None:
        """The first test that fails, if any; `until`: seconds after which no test begins."""
        with tempfile.TemporaryDirectory(prefix="mutants.") as folder:
            report = Path(folder) / "report.xml"
            command = [sys.executable, "-m", "pytest", "-x", "-v", "-p", "no:cacheprovider", "--tb=short"]
            command += ["--timeout", str(OF_A_TEST), f"--junit-xml={report}", *arguments]
            environment = self.environment()
            if until is not None:
                environment["PYTHONPATH"] += os.pathsep + str(ROOT / "tools")
                environment["QUICK_TESTS_END"] = str(time.monotonic() + until)
                command += ["-p", "pytest_until"]
            if workers:
                command += ["-n", str(workers)]
            code, output = self.run(command, limit, environment)
            if code in (0, 5):
                return None
            if code is None:
                print(f"  {' '.join(arguments)[:100]}: not over after {limit:g} s, so it proves nothing", flush=True)
                return None
            if code == 4:
                raise ValueError(f"pytest does not know {' '.join(arguments)}: {output.strip().splitlines()[-1]}")
            for case in cases(report) if report.exists() else ():
                if (text := case.failure()) is not None:
                    return Failure(case.node, text.strip().partition("\n")[0][:200])
            begun = re.findall(r"^(tests/\S+::\S.*?)(?: (?:PASSED|SKIPPED|Fatal ).*)?$", output, re.MULTILINE)
            return Failure(begun[-1].strip() if begun else "the start of pytest", f"pytest ended with code {code}")

    def killer(self, text: str, limit: float = OF_A_KILLER) -> Failure | None:
        if text.startswith(CTEST):
            return self.ctest([text.removeprefix(CTEST)])
        return self.pytest(shlex.split(text), limit)


class Trials:
    """The mutants and their results."""

    def __init__(self, folder: Path, full: bool, likely: bool, end: float) -> None:
        self.copy = Copy(folder)
        self.end = end  # on the monotonic clock
        self.likely = likely
        self.file = folder / "results.json"
        self.results: dict[str, Result] = {}
        if self.file.exists():
            self.results = {name: Result(**values) for name, values in json.loads(self.file.read_text()).items()}
        self.full = full

    def keep(self, name: str, result: Result) -> None:
        self.results[name] = result
        self.file.write_text(json.dumps({n: asdict(r) for n, r in self.results.items()}, indent=1) + "\n")

    def is_known(self, mutant: Mutant) -> bool:
        result = self.results.get(mutant.name)
        if result is None or result.key != key_of(mutant):
            return False
        return result.killer != "" or result.phase == "survived"

    def baseline(self, mutants: list[Mutant]) -> list[str]:
        """Likely killers that fail without a mutant."""
        killers = sorted({killer for mutant in mutants for killer in mutant.killers})
        plain = [k for k in killers if not k.startswith(CTEST) and " -k " not in k]
        bad = []
        whole = self.copy.pytest(plain, OF_FULL, workers=os.cpu_count() or 1) if plain else None
        if whole is not None:
            print(f"  {whole.test}: {whole.how}", flush=True)
        for killer in killers:
            if (killer not in plain or whole is not None) and (failure := self.copy.killer(killer)) is not None:
                bad.append(f"{killer}: {failure.test}: {failure.how}")
        return bad

    def attempt(self, mutant: Mutant) -> Result:
        with self.copy.mutated(mutant):
            good, build, output = self.copy.build()
            key = key_of(mutant)
            if not good:
                lines = [line for line in output.splitlines() if "error:" in line] or output.splitlines()[-1:]
                return Result("error: does not compile", "", 0, build, lines[0], key)
            begin = time.monotonic()
            for phase, failure in self._tries(mutant):
                if failure is not None:
                    return Result(phase, failure.test, time.monotonic() - begin, build, failure.how, key)
            survived = "survived the likely killers" if self.likely else "survived"
            return Result(survived, "", time.monotonic() - begin, build, "", key)

    def _tries(self, mutant: Mutant) -> Iterator[tuple[str, Failure | None]]:
        for killer in mutant.killers:
            yield "likely killer", self.copy.killer(killer)
        if self.likely:
            return
        reached = [test for test in reach.Graph().reached([mutant.file]) if test.test not in NEVER]
        programs = [test.name for test in reached if test.is_cxx]
        if programs:
            yield "reaching tests", self.copy.ctest(programs)
        tests = [test.test for test in reached if not test.is_cxx]
        for phase, options, most in (("reaching tests", [], OF_REACHING), ("full tests", ["--full"], OF_FULL)):
            until = min(most, self.end - time.monotonic())
            if tests and until > 0 and (self.full or not options):
                limit = until + 2 * OF_A_TEST
                yield phase, self.copy.pytest([*options, *tests], limit, until=until, workers=os.cpu_count() or 1)


def table(results: dict[str, Result]) -> str:
    rows = ["| mutant | file | what becomes wrong | killed by |", "| --- | --- | --- | --- |"]
    for mutant in MUTANTS:
        result = results.get(mutant.name)
        if result is None:
            killed = "not tried"
        elif result.killer:
            where = "" if result.phase == "likely killer" else f" ({result.phase})"
            killed = f"`{result.killer.replace('|', chr(92) + '|')}`{where}"
        else:
            killed = f"**{result.phase}**"
        rows.append(f"| {mutant.name} | `{mutant.file}` | {mutant.breaks} | {killed} |")
    return "\n".join(rows)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="may be given several times")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--likely", action="store_true", help="run the likely killers alone")
    parser.add_argument("--no-full", action="store_true", help="leave survivors of the short tests alone")
    parser.add_argument("--no-baseline", action="store_true", help="do not look whether the killers pass by themselves")
    parser.add_argument("--minutes", type=float, default=60, help="after which no mutant is begun (60)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"of the copy and the results ({FOLDER})")
    options = parser.parse_args(arguments)
    if options.list:
        for mutant in MUTANTS:
            print(f"{mutant.name:22} {mutant.file}: {mutant.breaks}")
        return 0
    unknown = set(options.only or ()) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"there is no mutant {', '.join(sorted(unknown))}")
    begin = time.monotonic()
    end = begin + 60 * options.minutes
    options.folder.mkdir(parents=True, exist_ok=True)
    trials = Trials(options.folder, not options.no_full, options.likely, end)
    if options.table:
        print(table(trials.results))
        return 0
    chosen = [m for m in MUTANTS if (m.name in options.only if options.only else not trials.is_known(m))]
    trials.copy.refresh()
    good, seconds, output = trials.copy.build()
    print(f"built in {seconds:.0f} s", flush=True)
    if not good:
        print(output)
        return 1
    trials.copy.staged.check_import()
    if not options.no_baseline:
        bad = trials.baseline(chosen)
        print(f"likely killers without a mutant: {len(bad)} fail, {time.monotonic() - begin:.0f} s", flush=True)
        if bad:
            print("\n".join(bad))
            return 1
    late = []
    for mutant in chosen:
        if time.monotonic() > end:
            late.append(mutant.name)
            continue
        result = trials.attempt(mutant)
        trials.keep(mutant.name, result)
        print(
            f"{mutant.name:22} {result.phase}: {result.killer or '-'} in {result.seconds:.0f} s "
            f"(build {result.build:.0f} s) {result.how[:100]}",
            flush=True,
        )
    killed = sum(bool(trials.results[m.name].killer) for m in MUTANTS if m.name in trials.results)
    if late:
        print(f"no time was left for {', '.join(late)}; the next run goes on with them")
    print(f"{killed} of {len(MUTANTS)} killed, {(time.monotonic() - begin) / 60:.1f} minutes")
    return int(killed < len(MUTANTS))


if __name__ == "__main__":
    sys.exit(main())
