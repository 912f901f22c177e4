"""Measures torch.distributed over this library against Gloo: calls of all_reduce, and steps under DDP and FSDP2.

    python bench/torch_step.py
    python bench/torch_step.py --quick --json out.json
    python bench/torch_step.py --namespaces A,B --address 10.91.0.1

Two processes hold both backends, each with a group of its own, and measure them in turn: in blocks of some 20 ms for
calls and of half a second for steps, in an order that is drawn anew in each round. The first call of a block does not
count; a call takes as long as on the slower rank. Below 8 KiB 50 calls are timed back to back; above, the tensor is
written anew before each. The step is that of a perceptron of 10 million parameters, with SGD; "no communication" is the
step of a rank that trains for itself, and shows what part of Gloo's step is communication.

A time is a median of medians of blocks; a ratio is one of two times with the cores in the same placement, which is
probed before and after each block. --namespaces runs each rank in a network namespace that exists (as
tests/support/namespaces.py makes them), that is between two hosts, for which the bytes go over TCP.

Sums and losses are checked in the same run. Exit codes: 0, 1 when a process failed or anything was wrong, 2 when what
was asked for is not possible. Targets that are not met leave it at 0.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import collectives
import plot
import progress
from collectives.bench.arguments import number_above, whole_number
from collectives.bench.sizes import parse_size

PARTS = ("calls", "ddp", "fsdp")
SIZES = "8,1K,8K,64K,512K,1M,4M,16M"
_POLL = 0.1  # seconds
_GRACE = 30.0  # seconds for processes to end, of which a busy machine takes ten
_STARTING = 300.0  # seconds for importing torch and warming up
_PORT = 29418  # between namespaces, where no other program is


class RankError(Exception):
    """A rank failed."""


def main() -> int:
    """The command line."""
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.json and not os.access(arguments.json.absolute().parent, os.W_OK):
        parser.error(f"{arguments.json} cannot be written: no such folder, or no permission")
    if importlib.util.find_spec("torch") is None:
        parser.error("PyTorch is not installed: pip install torch")
    if (arguments.namespaces is None) != (arguments.address is None):
        parser.error("--namespaces and --address belong together")
    if arguments.address and ":" in arguments.address:
        parser.error(f"--address {arguments.address}: an IPv4 address of the first namespace")
    options = {
        "parts": arguments.part or list(PARTS),
        "sizes": arguments.sizes,
        "batch": arguments.batch,
        "duration": arguments.duration or (1.0 if arguments.quick else 60.0),
        "hosts": 2 if arguments.namespaces else 1,
    }
    print(f"# collectives {collectives.__version__} from {Path(collectives.__file__).parent}; {plot.machine()}")
    print(f"# 2 ranks on {options['hosts']} host{'s' if arguments.namespaces else ''}", flush=True)
    try:
        report = _run(options, arguments.namespaces, arguments.address)
    except RankError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    from torch_report import as_text  # imports torch

    print(as_text(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    problems = report["wrong"]
    print("\n" + ("\n".join(f"WRONG: {problem}" for problem in problems) or "checked: nothing wrong"))
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench/torch_step.py", description=(__doc__ or "").split("\n", maxsplit=1)[0])
    add = parser.add_argument
    add("--part", choices=PARTS, action="append", help="measure only this; may be repeated (default: all)")
    add("--sizes", type=sizes_of_floats, default=SIZES, help="bytes of the calls, with commas (%(default)s)")
    add("--batch", type=whole_number(1), default=128, help="samples of a step, on each rank (%(default)s)")
    add("--duration", type=number_above(0), help="seconds of measuring (default 60)")
    add("--quick", action="store_true", help="measure for one second: does it run?")
    add("--json", type=Path, metavar="FILE", help="write times and ratios there")
    add("--namespaces", type=_two, metavar="A,B", help="run the ranks in these two network namespaces; needs root")
    add("--address", help="IPv4 address of the first namespace, where the ranks meet")
    return parser


def sizes_of_floats(text: str) -> list[int]:
    """Bytes of arrays of float32, from sizes with commas between them."""
    try:
        sizes = [parse_size(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    wrong = [size for size in sizes if size < 4 or size % 4]
    if wrong:
        raise argparse.ArgumentTypeError(f"{wrong[0]} bytes; positive multiples of 4 are accepted")
    return sizes


def _two(text: str) -> list[str]:
    names = text.split(",")
    if len(names) != 2 or not all(names):
        raise argparse.ArgumentTypeError(f"{text!r}; two names are accepted, with a comma")
    return names


def _run(options: dict[str, Any], namespaces: list[str] | None, address: str | None) -> dict[str, Any]:
    """The report of rank 0."""
    with contextlib.ExitStack() as stack:
        # Not named after the package: its tests take what bears that name for something left behind.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="torch_step_")))
        fraction = folder / "progress"
        file = folder / "options.json"
        wanted = progress.wanted()
        file.write_text(json.dumps({**options, "show": str(fraction) if wanted else ""}), encoding="utf-8")
        bar = progress.make("-" if wanted else "")
        stack.callback(bar.close)
        port = _PORT if namespaces else _free_port()
        ranks = []
        for rank in range(2):
            variables = {
                "RANK": str(rank),
                "LOCAL_RANK": "0" if namespaces else str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": address or "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            }
            prefix = []
            if namespaces:
                prefix = ["ip", "netns", "exec", namespaces[rank]]
                variables["GLOO_SOCKET_IFNAME"] = _interface(namespaces[rank])
            output = stack.enter_context((folder / f"output{rank}").open("wb"))
            try:
                process = subprocess.Popen(
                    [*prefix, sys.executable, str(Path(__file__).with_name("torch_rank.py")), str(file)],
                    env=os.environ | variables,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            except OSError as error:
                raise RankError(f"{(*prefix, sys.executable)[0]}: {error.strerror}") from None
            ranks.append(process)
            stack.callback(_end, process)
        end = time.monotonic() + _STARTING + options["duration"]
        while any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in ranks) or time.monotonic() > end:
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                ranks[0].wait(_POLL)
            with contextlib.suppress(OSError, ValueError):
                bar.update(float(fraction.read_text()))
        return _outcome(folder, ranks)


def _outcome(folder: Path, ranks: list[subprocess.Popen[bytes]]) -> dict[str, Any]:
    for rank, process in enumerate(ranks):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)  # where the other one has failed, this one notices
        if process.returncode != 0:
            error = folder / f"error{rank}"
            said = error if error.exists() else folder / f"output{rank}"
            words = said.read_text(errors="replace").strip()
            state = "does not end" if process.returncode is None else f"ended with exit code {process.returncode}"
            raise RankError(f"rank {rank} {state}:\n{words}")
    return dict(json.loads((folder / "report.json").read_text(encoding="utf-8")))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _interface(namespace: str) -> str:
    """The interface of a namespace that Gloo is to use: it would look for one by the name of the host."""
    command = ["ip", "-n", namespace, "-json", "link", "show", "up"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RankError(f"{' '.join(command)}: {done.stderr.strip()}")
    names = [link["ifname"] for link in json.loads(done.stdout) if "LOOPBACK" not in link["flags"]]
    if not names:
        raise RankError(f"the network namespace {namespace} has no interface that is up, besides loopback")
    return str(names[0])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
