"""Checks GPU arrays on one GPU, in one command and under eight minutes.

    python bench/gpu_check.py                      # every check; exit code 1 when one fails
    python bench/gpu_check.py --only streams,nccl
    python bench/gpu_check.py --json gpu_check.json

Prints a line for each check: whether it passed, what it found, and how long it took. Without a GPU it says so, and
exits with 0.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gpu_checks
import gpu_libraries
import gpu_torch
from collectives import _core

HERE = Path(__file__).resolve().parent
_PATIENCE = 90  # seconds for two processes
_UNSUPPORTED = "compute-sanitizer does not support the device on this machine"
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
PACKAGES = ("collectives", "numpy", "ml-dtypes", "torch", "triton", "cupy-cuda13x", "jax", "nvidia-nccl-cu13")


def versions() -> dict[str, str]:
    """Of what takes part."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def torch_has_gpu() -> bool:
    """Whether PyTorch sees a device; then this library should, too."""
    try:
        torch = importlib.import_module("torch")
        return bool(torch.cuda.is_available())
    except ImportError:
        return False


def status() -> dict[str, Any]:
    """The CUDA status of the core."""
    return dict(_core._device_status())


def libraries() -> tuple[list[Any], dict[str, str]]:
    """Those that are installed and see the GPU, and why the others do not."""
    made, missing = [], {}
    for name, kind in gpu_libraries.LIBRARIES.items():
        try:
            made.append(kind())
        except Exception as error:  # any error of a library that cannot use the device
            missing[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    return made, missing


def bandwidth() -> str:
    """Of copies from device to device, bytes read and written."""
    import torch

    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    target.copy_(source)
    begin.record()
    for _ in range(10):
        target.copy_(source)
    end.record()
    torch.cuda.synchronize()
    return f"{20 * source.numel() / begin.elapsed_time(end) / 1e6:.0f} GB/s"


def own_memory() -> str:
    """Results are memory of PyTorch's allocator: it can be resized, and record_stream works."""
    import torch
    from collectives.cross_device_ops import ReductionToOneDevice

    ops = ReductionToOneDevice()
    xs = [torch.ones(1 << 20, device="cuda") for _ in range(2)]
    result = ops.reduce("sum", xs, [0])[0]
    torch.cuda.synchronize()
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        torch.cuda._sleep(int(0.2 * gpu_libraries.CLOCK))
        copy = result.clone()
    result.record_stream(other)
    place = result.data_ptr()
    del result
    news = [torch.zeros(1 << 20, device="cuda") for _ in range(4)]
    assert place not in {new.data_ptr() for new in news}, "memory that another stream still reads was given away"
    torch.cuda.synchronize()
    assert (copy == 2).all(), "memory that another stream still read was overwritten"
    ops.reduce("sum", xs)[0].untyped_storage().resize_(0)
    return "record_stream and resize_"


def graph() -> str:
    """Recorded into a CUDA graph, and replayed with other inputs."""
    import torch
    from collectives.cross_device_ops import RingAllReduce

    ops = RingAllReduce()
    xs = [torch.ones(1000, device="cuda") for _ in range(4)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        ops.reduce("sum", xs)  # loads libraries and kernels
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        results = ops.reduce("sum", xs)
    for number in range(3):
        for i, x in enumerate(xs):
            x.fill_(number + i)
        recorded.replay()
        torch.cuda.synchronize()
        for result in results:
            assert (result == 4 * number + 6).all(), f"replay {number}: {result[:3]}"
    return "3 replays"


def _small() -> None:
    """The program for the sanitizers."""
    library = gpu_libraries.CupyLibrary()
    gpu_checks.reductions(library, counts=(1, 7, 4099), most=3)
    gpu_checks.gathers(library)
    gpu_checks.communicator(library)


def sanitizers(limit: float) -> str:
    """compute-sanitizer over small sizes, all its tools side by side."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).exists():
        return "skipped: there is no compute-sanitizer"

    def one(name: str) -> str:
        """The errors, empty if there are none."""
        command = [tool, "--tool", name, "--error-exitcode", "9", sys.executable, str(HERE / "gpu_check.py"), "--small"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            return f"{name}: not done after {limit:.0f} s"
        text = done.stdout + done.stderr
        if "Device not supported" in text:
            return _UNSUPPORTED
        return "" if done.returncode == 0 else f"{name}: code {done.returncode}\n{text[:1500]}\n...\n{text[-1500:]}"

    with ThreadPoolExecutor(len(SANITIZERS)) as pool:
        found = list(pool.map(one, SANITIZERS))
    if all(text == _UNSUPPORTED for text in found):
        return f"skipped: {_UNSUPPORTED}"
    failed = [text for text in found if text]
    assert not failed, "\n".join(failed)
    return ", ".join(SANITIZERS)


_PEERS = """
import time, torch, collectives
from collectives._devices import peers as _peers
comm = collectives.init(timeout=60)
for round in range(20):
    whole = torch.zeros(3000 + 500 * round, device="cuda:0")
    x = whole[1000:2000]
    x += torch.arange(1000, device="cuda:0") + comm.rank
    assert comm.all_reduce(x) is x
    every = comm.all_gather(x[: 10 + comm.rank])
    torch.cuda.synchronize()
    assert (x.cpu() == 2 * torch.arange(1000) + 1).all(), round
    assert every.shape == (21,) and (every[:10] == x[:10]).all() and (every[10:] == x[:11]).all(), round
    comm.barrier()
    del whole, x, every
    torch.cuda.empty_cache()  # the next arrays are other allocations, at the same addresses or at others
assert _peers.find(comm, 0) is not None, "the ranks went through the host"
for count, calls in ((256, 2000), (1 << 24, 200)):
    x = torch.ones(count, device="cuda:0")
    for _ in range(20):
        comm.all_reduce(x, "max")
    torch.cuda.synchronize()
    comm.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        comm.all_reduce(x, "max")
    torch.cuda.synchronize()
    print(f"{4 * count} B in {(time.perf_counter() - begin) / calls * 1e6:.1f} us", end=", ")
comm.close()
print("right")
"""

_NCCL = """
import numpy, torch, collectives
comm = collectives.init(transport="nccl", timeout=60)
x = torch.arange(1000, dtype=torch.float32, device="cuda:0") + comm.rank
assert comm.all_reduce(x) is x
torch.cuda.synchronize()
assert (x.cpu() == 2 * torch.arange(1000) + 1).all()
y = torch.full((5,), float(comm.rank), device="cuda:0")
comm.broadcast(y, 1)
torch.cuda.synchronize()
assert (y.cpu() == 1).all()
comm.close()
print("right")
"""


_TRAINING = """
import torch, collectives
from torch import nn
device = "cuda:0"
comm = collectives.init(timeout=60)
torch.manual_seed(comm.rank)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
comm.broadcast([p.data for p in model.parameters()], 0)
x = torch.randn(512, 64, device=device)
y = x[:, :10].argmax(1)
steps = torch.optim.SGD(model.parameters(), lr=0.5)
losses = []
for step in range(100):
    steps.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    comm.all_reduce([p.grad for p in model.parameters()], "avg")
    steps.step()
    losses.append(loss.item())
mine = torch.cat([p.data.flatten() for p in model.parameters()])
every = comm.all_gather(mine[None])
assert (every == mine).all(), "the ranks have other weights"
assert losses[-1] < 0.5 * losses[0], losses
comm.close()
print(f"the loss fell from {losses[0]:.2f} to {losses[-1]:.2f}, right")
"""


def _two_ranks(program: str, hosts: tuple[str, str] = ("", "")) -> list[subprocess.CompletedProcess[str]]:
    """Two processes on the one device."""
    from collectives.launch import _process

    running = []
    token = _process.new_token()
    with _process.listen_for_ranks() as listener:
        for rank in range(2):
            own = os.environ | _process.rank_environment(rank, 2, listener, token, "auto", 60.0)
            own |= {"NCCL_SOCKET_IFNAME": "lo", "NCCL_NET": "Socket", "NCCL_MNNVL_ENABLE": "0"}
            if hosts[rank]:
                own["NCCL_HOSTID"] = hosts[rank]
            pass_fds = (listener.fileno(),) if own["COLLECTIVES_RENDEZVOUS_FD"] else ()
            running.append(
                subprocess.Popen(
                    [sys.executable, "-c", program],
                    env=own,
                    pass_fds=pass_fds,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        ended = []
        for process in running:
            try:
                out, err = process.communicate(timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                for other in running:
                    other.kill()
                out, err = process.communicate()
                err += f"\nnot done after {_PATIENCE} s"
            ended.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return ended


def processes() -> str:
    """Two processes that address each other's memory by CUDA IPC."""
    for done in _two_ranks(_PEERS):
        assert done.returncode == 0, done.stderr[-2000:]
        assert "right" in done.stdout, done.stderr[-2000:]
    return f"all_reduce and all_gather, 20 times in other allocations; all_reduce of {done.stdout.strip()}"


def training() -> str:
    """A model of PyTorch, trained by two processes."""
    for done in _two_ranks(_TRAINING):
        assert done.returncode == 0, done.stderr[-2000:]
        assert "right" in done.stdout, done.stderr[-2000:]
    return f"100 steps, the same weights on both; {done.stdout.strip()}"


def nccl() -> str:
    """Two processes: right where NCCL takes them for two hosts, our error where it does not."""
    for done in _two_ranks(_NCCL, ("one", "two")):
        assert "right" in done.stdout, done.stderr[-2000:]
    for done in _two_ranks(_NCCL):
        assert "BackendError" in done.stderr, done.stderr[-2000:]
        assert "on the same device" in done.stderr, done.stderr[-2000:]
    return "all_reduce and broadcast right; two ranks on one device are refused"


def table(limit: float) -> str:
    """gpu.py, in short."""
    command = [sys.executable, str(HERE / "gpu.py"), "--quick"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"not done after {limit:.0f} s\n{error.stdout}") from None
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return "\n" + done.stdout


def checks(found: list[Any]) -> dict[str, Callable[[], str]]:
    """By name."""
    named: dict[str, Callable[[], str]] = {}
    for library in found:
        name = library.name
        named[f"communicator, {name}"] = lambda library=library: gpu_checks.communicator(library)
        named[f"types, {name}"] = lambda library=library: gpu_checks.types(library)
        named[f"gathers, {name}"] = lambda library=library: gpu_checks.gathers(library)
        if name != "jax":
            named[f"streams, {name}"] = lambda library=library: gpu_checks.streams(library, 1000)
            named[f"returns early, {name}"] = lambda library=library: gpu_checks.returns_early(library)
            named[f"between threads, {name}"] = lambda library=library: gpu_checks.between_threads(library)
            named[f"overhead, {name}"] = lambda library=library: gpu_checks.overhead(library)
    if found:
        first = found[0]
        named["reductions"] = lambda: gpu_checks.reductions(first)
    if any(library.name == "torch" for library in found):
        named["copy bandwidth"] = bandwidth
        named["own memory"] = own_memory
        named["graph"] = graph
        named["processes"] = processes
        named["training"] = training
        named["nccl"] = nccl
        named["torch.distributed, one process"] = lambda: gpu_torch.check("calls", 1)
        named["torch.distributed, processes"] = lambda: gpu_torch.check("calls", 2)
        named["torch.distributed, DDP"] = lambda: gpu_torch.check("ddp", 2)
        named["table"] = lambda: table(120.0)
    named["sanitizers"] = lambda: sanitizers(90.0)
    return named


def run(
    named: dict[str, Callable[[], str]], only: list[str], keep: Callable[[list[dict[str, Any]]], None]
) -> list[dict[str, Any]]:
    """Runs the checks whose names begin with one of `only`, all when it is empty, and prints the results."""
    results = []
    for name, check in named.items():
        if only and not any(name.startswith(start) for start in only):
            continue
        begin = time.monotonic()
        try:
            passed, text = True, check()
        except Exception:  # a check that fails must not keep the others from running
            passed, text = False, traceback.format_exc()
        seconds = time.monotonic() - begin
        results.append({"check": name, "passed": passed, "found": text, "seconds": round(seconds, 2)})
        print(f"{'pass' if passed else 'FAIL'}  {name:30} {seconds:6.1f} s  {text}", flush=True)
        keep(results)
    return results


def main() -> int:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of the memory at once
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--only", default="", help="names of checks, or how they begin, with commas")
    parser.add_argument("--json", type=Path, help="a file for the results")
    parser.add_argument("--small", action="store_true", help="small sizes only, as the sanitizers run it")
    arguments = parser.parse_args()
    found = status()
    if not found["available"]:
        print(f"no GPU to check: {found['reason']}")
        return int(torch_has_gpu())
    if arguments.small:
        _small()
        return 0
    print(json.dumps({"versions": versions(), "cuda": found}, indent=1), flush=True)
    usable, missing = libraries()
    for name, why in missing.items():
        print(f"left out: {name} ({why})")
    only = [name for name in arguments.only.split(",") if name]

    def keep(results: list[dict[str, Any]]) -> None:
        """Called after every check, so that results exist if this is ended early."""
        if arguments.json:
            report = {"versions": versions(), "cuda": found, "left_out": missing, "results": results}
            arguments.json.write_text(json.dumps(report, indent=1) + "\n")

    results = run(checks(usable), only, keep)
    failed = [r["check"] for r in results if not r["passed"]]
    print(
        f"{len(results) - len(failed)} of {len(results)} passed" + (f"; failed: {', '.join(failed)}" if failed else "")
    )
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
