"""The tests of completion in a Python whose `_core` and engine are built with sanitizers.

    python tools/sanitized_python.py                    builds both, then runs both
    python tools/sanitized_python.py --preset tsan      one of them
    python tools/sanitized_python.py --python PATH      in a free-threaded Python that was built with ThreadSanitizer
    python tools/sanitized_python.py FILE ...           other tests; arguments that begin with - go to pytest

Python itself is the ordinary one: the runtime of the sanitizer is preloaded, so that it sees the memory, the threads
and the locks of everybody, but only accesses of what is compiled here. Each process of a test writes what it finds into
a file, and one file makes the run fail, as does a process that UndefinedBehaviorSanitizer ends. To know that a run
without one means something, each begins with libraries that are wrong on purpose, in processes of the same settings.

With --python, ThreadSanitizer sees the accesses of Python too, and no global lock puts them in an order. Before the
tests come the ranks and the 8 threads of tools/check_ranks.py. docs/testing.md says how to make such a Python.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from staged import Staged, tool

ROOT = Path(__file__).resolve().parent.parent
TESTS = ["tests/calls/test_completion.py"]
FREE_TESTS = [*TESTS, "tests/calls/test_threads.py"]
SUPPRESSIONS = ROOT / "tools" / "sanitized_python.supp"
LIMIT = 580  # seconds for the tests of one preset
FREE_LIMIT = 1800  # and where Python itself has the sanitizer

RACE = """
static volatile long shared;
long race(void) { for (int i = 0; i < 10000000; ++i) ++shared; return shared; }
"""
WRONG = """
#include <stdlib.h>
int race(void) { char* p = malloc(8); free(p); return p[argument()]; }
"""
OVERFLOW = """
int race(void) { return 2147483647 + argument(); }
"""
CALL = """
import ctypes, sys, threading
library = getattr(ctypes, sys.argv[2])(sys.argv[1])
threads = [threading.Thread(target=library.race) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


class Preset:
    """One preset of CMakePresets.json.

    Attributes:
        name: of the preset.
        flags: by which the compiler builds in the sanitizers.
        runtimes: libraries of the compiler to preload.
        wrong: for each library that is wrong on purpose, its text and a word of what the sanitizer says of it.
        left_out: tests that the sanitizer cannot run, each with the reason.
        python: the interpreter of the tests.
        free: whether that is free-threaded, and was built with the sanitizer.
    """

    def __init__(
        self,
        name: str,
        flags: str,
        runtimes: list[str],
        wrong: list[tuple[str, str]],
        left_out: dict[str, str] | None = None,
        python: Path = Path(sys.executable),
        free: bool = False,
    ) -> None:
        self.name = name
        self.flags = [f"-fsanitize={flags}", "-g1", "-O1"]
        self.runtimes = runtimes
        self.wrong = wrong
        self.left_out = left_out or {}
        self.python = python
        self.free = free

    @property
    def title(self) -> str:
        return f"{self.name}, free-threaded" if self.free else self.name

    @property
    def seconds(self) -> int:
        """For a program, and for all tests."""
        return FREE_LIMIT if self.free else LIMIT

    @property
    def caller(self) -> str:
        """The class of ctypes whose functions run beside each other, so that a race shows that threads do.

        Those of CDLL run without Python's lock. Those of PyDLL run with it, so of the two only these show that it is
        not there.
        """
        return "PyDLL" if self.free else "CDLL"


PRESETS = [
    Preset(
        "asan+ubsan",
        "address,undefined",
        ["libasan.so", "libubsan.so"],
        [(WRONG, "heap-use-after-free"), (OVERFLOW, "signed integer overflow")],
    ),
    Preset(
        "tsan",
        "thread",
        ["libtsan.so"],
        [(RACE, "data race")],
        {
            "tests/calls/test_completion.py::test_a_forked_child_has_no_callbacks": "ThreadSanitizer ends a child of a "
            "process with threads that starts one itself (dup thread with used id)"
        },
    ),
]


TSAN = PRESETS[-1]


def free_threaded(python: Path) -> Preset:
    """The preset for an interpreter of one's own. Ends this program where that is another kind of Python."""
    asked = "print(sysconfig.get_config_var('Py_GIL_DISABLED'), sysconfig.get_config_var('CONFIG_ARGS'))"
    said = subprocess.check_output([python, "-c", f"import sysconfig; {asked}"], text=True)
    if not said.startswith("1 ") or "--with-thread-sanitizer" not in said:
        sys.exit(f"{python} was not configured with --disable-gil --with-thread-sanitizer, but: {said}")
    return Preset(TSAN.name, "thread", [], TSAN.wrong, TSAN.left_out, python.absolute(), free=True)


def compiler() -> str:
    return os.environ.get("CXX", "g++")


def environment(preset: Preset, reports: Path, variables: dict[str, str]) -> dict[str, str]:
    """For Python with the sanitizer in it; what it finds goes to files in the folder `reports`."""
    # Each object of Python is an allocation of its own. A free-threaded Python has no allocator but its own, which was
    # compiled with the sanitizer.
    own = {} if preset.free else {"PYTHONMALLOC": "malloc"}
    paths = [subprocess.check_output([compiler(), f"-print-file-name={name}"], text=True) for name in preset.runtimes]
    common = f"log_path={reports}/found"
    return {
        **variables,
        "LD_PRELOAD": " ".join(path.strip() for path in paths),
        # Python frees little when it ends; and exceptions of C++ need the real function, which is loaded after Python.
        "ASAN_OPTIONS": f"{common}:detect_leaks=0:allocator_may_return_null=1",
        # Beside AddressSanitizer it writes to stderr and to no file, so it ends the process.
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "TSAN_OPTIONS": f"{common}:suppressions={SUPPRESSIONS}:die_after_fork=0",
        **own,
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def found(reports: Path) -> list[str]:
    return [path.read_text(errors="replace") for path in sorted(reports.iterdir())]


def build(preset: Preset, folder: Path, jobs: int) -> Staged:
    staged = Staged(folder, python=preset.python)
    options = [
        "-DCOLLECTIVES_PYTHON=ON",
        "-DCOLLECTIVES_TESTS=OFF",
        "-DCMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF",
        f"-DPython_EXECUTABLE={preset.python}",
        f"-Dpybind11_DIR={staged.pybind11()}",
    ]
    if not (folder / "build.ninja").exists():
        subprocess.run([tool("cmake"), "--preset", preset.name, "-B", str(folder), *options], cwd=ROOT, check=True)
    command = [tool("cmake"), "--build", str(folder), "-j", str(jobs), "--target", "collectives_core", "_core"]
    subprocess.run(command, cwd=ROOT, check=True)
    staged.stage()
    return staged


def check_that_it_sees(preset: Preset, variables: dict[str, str]) -> None:
    for text, word in preset.wrong:
        with tempfile.TemporaryDirectory() as folder:
            reports = Path(folder) / "reports"
            reports.mkdir()
            source, library = Path(folder) / "wrong.c", Path(folder) / "wrong.so"
            source.write_text("static volatile int zero = 1;\nstatic int argument(void) { return zero; }\n" + text)
            command = [compiler(), "-x", "c", *preset.flags, "-w", "-fPIC", "-shared", str(source), "-o", str(library)]
            subprocess.run(command, check=True)
            env = environment(preset, reports, variables)
            call = [str(preset.python), "-c", CALL, str(library), preset.caller]
            done = subprocess.run(call, env=env, stderr=subprocess.PIPE, text=True, check=False, timeout=LIMIT)
            if done.returncode == 0 or not any(word in text for text in (done.stderr, *found(reports))):
                raise RuntimeError(f"{preset.name} does not report what is wrong on purpose: {word}")


def observed(preset: Preset, arguments: list[str], variables: dict[str, str]) -> bool:
    """Whether Python ends well with these arguments, and nothing was found."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [str(preset.python), *arguments],
            cwd=ROOT,
            env=environment(preset, Path(folder), variables),
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=preset.seconds,
        )
        texts = found(Path(folder))
    print(*texts, sep="\n")
    name = next(word for word in arguments if not word.startswith("-"))
    print(f"{preset.title}: {name} ended with {done.returncode}; {len(texts)} processes wrote reports", flush=True)
    return done.returncode == 0 and not texts


def run(preset: Preset, staged: Staged, arguments: list[str]) -> bool:
    """Whether all passes and nothing was found."""
    variables = staged.environment()
    check_that_it_sees(preset, variables)
    passed = not preset.free or observed(preset, ["tools/check_ranks.py"], variables)
    command = ["-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "-q", *arguments]
    for test, reason in preset.left_out.items():
        print(f"{preset.title}: left out: {test}: {reason}", flush=True)
        command += ["--deselect", test]
    return observed(preset, command, variables) and passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=[preset.name for preset in PRESETS], help="this one alone")
    parser.add_argument("--python", type=Path, metavar="PATH", help="a free-threaded Python with ThreadSanitizer")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "sanitized", help="where to build")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time")
    options, arguments = parser.parse_known_args()
    if not any(not argument.startswith("-") for argument in arguments):
        arguments = [*(FREE_TESTS if options.python else TESTS), *arguments]
    if options.python:
        chosen = [free_threaded(options.python)]
    else:
        chosen = [preset for preset in PRESETS if options.preset in (None, preset.name)]
    passed = True
    for preset in chosen:
        folder = options.folder / (f"{preset.name}-free" if preset.free else preset.name)
        passed = run(preset, build(preset, folder, options.jobs), arguments) and passed
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
