"""Makes the environment of a peer: a virtual environment with the peer and this package in it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def default_directory(name: str) -> Path:
    """Where the environment of a peer lies unless somebody says otherwise."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "collectives-bench" / name


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
