"""Makes the environment of a peer: a virtual environment with the peer and this package in it.

Drivers are compiled into it when they are first used: C++ files of this folder that make C functions of a peer.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from . import PeerMissingError

ROOT = Path(__file__).resolve().parents[2]


def default_directory(name: str) -> Path:
    """The default folder of the environment of a peer."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "collectives-bench" / name


def driver(environment: Path, source: str, flags: list[str], libraries: list[Path]) -> Path:
    """The C++ file `source` of this folder as a shared library in the environment, compiled unless it is there.

    Raises:
        PeerMissingError: there is no compiler, or it fails.
    """
    path = Path(__file__).parent / source
    compiler = os.environ.get("CXX") or "c++"
    arguments = [*("-O3", "-DNDEBUG", "-fPIC", "-shared", "-w"), *flags, str(path), *map(str, libraries)]
    # The name depends on everything that affects the result.
    stamps = [library.stat().st_mtime_ns for library in libraries if library.exists()]
    key = hashlib.sha256(repr((path.read_bytes(), compiler, arguments, stamps)).encode()).hexdigest()[:16]
    result = environment / "cache" / f"{path.stem}-{key}.so"
    if result.exists():
        return result
    if shutil.which(compiler) is None:
        raise PeerMissingError(
            f"{source} has to be compiled, and there is no C++ compiler {compiler}; install one, or name it by CXX"
        )
    result.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=result.parent) as folder:
        new = Path(folder) / result.name
        run = subprocess.run([compiler, *arguments, "-o", str(new)], check=False, capture_output=True, text=True)
        if run.returncode != 0:
            raise PeerMissingError(f"{source} could not be compiled for {environment}:\n{run.stderr.strip()[-2000:]}")
        new.replace(result)
    return result


def main(name: str, requirements: list[str]) -> int:
    """The command line of a peer file."""
    parser = argparse.ArgumentParser(
        prog=f"bench/peers/{name}.py", description=f"Installs {name} into an environment of its own, for --vs {name}."
    )
    parser.add_argument(
        "--install",
        nargs="?",
        type=Path,
        const=default_directory(name),
        required=True,
        metavar="DIRECTORY",
        help=f"where to (default {default_directory(name)}; another one is named by --vs {name}=DIRECTORY)",
    )
    directory = parser.parse_args().install.expanduser().absolute()
    python = directory / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
    for command in (
        [sys.executable, "-m", "venv", str(directory)],
        [*pip, *requirements, str(ROOT)],
    ):
        print("+ " + " ".join(command), flush=True)
        try:
            status = subprocess.run(command, check=False).returncode
        except OSError as error:
            print(f"{parser.prog}: error: {error}", file=sys.stderr)
            return 1
        if status != 0:
            print(f"{parser.prog}: error: the command above failed with exit code {status}", file=sys.stderr)
            return 1
    default = directory == default_directory(name)
    print(f"installed. Now run: python bench/allreduce.py --vs {name}" + ("" if default else f"={directory}"))
    return 0
