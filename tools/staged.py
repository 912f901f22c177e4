"""Builds the package incrementally and stages it as links, without pip, for .ci/quick and tools/mutants.py.

A build folder of CMake has the engine, the Python module and the C++ tests. In its folder `stage` lies a package
`collectives` whose Python files are links to python/collectives and whose libraries are links to what was built, with
the metadata and the command `collectives` that an installation has. On PYTHONPATH it wins over an installed one.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = ("libcollectives_core.so", "libcollectives_cuda.so", "_tensorflow.so", "_core*.so")
SCRIPT = """#!{python}
import sys

from collectives.launch.cli import main

sys.exit(main())
"""


@dataclass
class Outcome:
    """The result of a build."""

    good: bool
    seconds: float
    output: str


def tool(name: str) -> str:
    """A program in the folder of this interpreter, or else on the path."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed: pip install '.[test,dev]'")
    return found


class Staged:
    """One build folder and its package.

    Args:
        folder: of the build; made where it is not there.
        root: the working copy whose sources are built.
        cuda: COLLECTIVES_CUDA, see CMakeLists.txt.
        python: the interpreter that imports the package.
    """

    def __init__(self, folder: Path, root: Path = ROOT, cuda: str = "OFF", python: Path = Path(sys.executable)) -> None:
        self.folder = folder.resolve()
        self.root = root.resolve()
        self.cuda = cuda
        self.python = python
        self.path = self.folder / "stage"

    def build(self, jobs: int | None = None) -> Outcome:
        """Compiles what has changed and stages the package."""
        begin = time.monotonic()
        output = ""
        jobs = jobs or os.cpu_count() or 1
        steps = [[tool("cmake"), "--build", str(self.folder), "-j", str(jobs)]]
        if not (self.folder / "build.ninja").exists():
            steps.insert(0, self._configure())
        for step in steps:
            code, said = self._run(step)
            output += said
            if code != 0:
                return Outcome(False, time.monotonic() - begin, output)
        self.stage()
        return Outcome(True, time.monotonic() - begin, output)

    def _run(self, command: list[str]) -> tuple[int, str]:
        """The exit code and the output. If interrupted, it also ends the compilers, which would go on otherwise."""
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env=self._compiling(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.returncode, said

    def environment(self) -> dict[str, str]:
        """For tests of the staged package: no setting of a job, and the package and its command before all others."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
        variables["PYTHONPATH"] = str(self.path)
        folders = [str(self.path / "bin"), str(self.python.parent), variables.get("PATH", "")]
        variables["PATH"] = os.pathsep.join(folders)
        return variables

    def imported(self) -> str:
        """The library that `import collectives` loads with `environment`, and the engine that this one brings along."""
        program = """if True:
            import re
            from collectives import _core
            maps = open("/proc/self/maps").read()
            print(_core.__file__, *sorted(set(re.findall(r"\\S*libcollectives_core\\S*", maps))))
        """
        done = subprocess.run(
            [str(self.python), "-c", program],
            cwd="/",
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        return (done.stdout or done.stderr).strip()

    def check_import(self) -> None:
        """Raises `RuntimeError` when tests would see another package than the one that was built."""
        library, *engines = self.imported().split()
        if not library.startswith(f"{self.path}/") or engines != [str(self.folder / LIBRARIES[0])]:
            raise RuntimeError(
                f"`import collectives` takes {library} with the engine {engines}, not that of {self.path}"
            )

    def _configure(self) -> list[str]:
        options = {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_MAKE_PROGRAM": tool("ninja"),
            "CMAKE_EXPORT_COMPILE_COMMANDS": "ON",
            # Only for the time that linking takes: programs need not be linked anew with a library that is shared, and
            # the module, which calls the engine for all that matters, need not be optimised across its files.
            "CMAKE_LINK_DEPENDS_NO_SHARED": "ON",
            "CMAKE_INTERPROCEDURAL_OPTIMIZATION": "OFF",
            "COLLECTIVES_PYTHON": "ON",
            "COLLECTIVES_TESTS": "ON",
            "COLLECTIVES_CUDA": self.cuda,
            "COLLECTIVES_WERROR": "ON",
            "Python_EXECUTABLE": str(self.python),
            "pybind11_DIR": self.pybind11(),
        }
        if shutil.which("ccache"):
            options |= {f"CMAKE_{language}_COMPILER_LAUNCHER": "ccache" for language in ("CXX", "CUDA")}
        settings = [f"-D{name}={value}" for name, value in options.items()]
        return [tool("cmake"), "-S", str(self.root), "-B", str(self.folder), "-G", "Ninja", *settings]

    def pybind11(self) -> str:
        command = [sys.executable, "-m", "pybind11", "--cmakedir"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise FileNotFoundError("pybind11 is not installed: pip install '.[test,dev]'")
        return done.stdout.strip()

    def _compiling(self) -> dict[str, str]:
        # Paths below the root count from the root, so that working copies share what is compiled.
        return {**os.environ, "CCACHE_BASEDIR": str(self.root), "CCACHE_NOHASHDIR": "1"}

    def stage(self) -> None:
        package = self.path / "collectives"
        wanted = {entry.name: entry for entry in (self.root / "python" / "collectives").iterdir()}
        for pattern in LIBRARIES:
            wanted |= {library.name: library for library in self.folder.glob(pattern)}
            wanted |= {library.name: library for library in (self.folder / "csrc" / "cuda").glob(pattern)}
        wanted = {name: target for name, target in wanted.items() if name != "__pycache__"}
        package.mkdir(parents=True, exist_ok=True)
        for link in package.iterdir():
            if link.is_symlink() and (link.name not in wanted or link.readlink() != wanted[link.name]):
                link.unlink()
        for name, target in wanted.items():
            if not (package / name).is_symlink():
                (package / name).symlink_to(target)
        name, version = self._project("name"), self._project("version")
        metadata = self.path / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(exist_ok=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (metadata.parent / "entry_points.txt").write_text(self._entry_points())
        command = self.path / "bin" / "collectives"
        command.parent.mkdir(exist_ok=True)
        command.write_text(SCRIPT.format(python=self.python))
        command.chmod(0o755)

    def _entry_points(self) -> str:
        """Those of pyproject.toml, which other packages look for in the metadata."""
        lines, group = [], ""
        for line in (self.root / "pyproject.toml").read_text().splitlines():
            if line.startswith("["):
                found = re.match(r'\[project\.entry-points\."?([\w.]+)"?\]', line)
                group = found[1] if found else ""
                lines += [f"[{group}]"] if group else []
            elif group and line.strip():
                lines.append(line.replace('"', ""))
        return "\n".join(lines) + "\n"

    def _project(self, key: str) -> str:
        """The name or the version in pyproject.toml."""
        lines = (self.root / "pyproject.toml").read_text().splitlines()
        return next(line.split('"')[1] for line in lines if line.startswith(f"{key} = "))
