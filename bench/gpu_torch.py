"""The backend of torch.distributed with tensors on one GPU: the programs of ranks, and the checks that start them.

    torchrun --standalone --nproc-per-node 2 bench/gpu_torch.py calls cuda:0
    torchrun --standalone --nproc-per-node 2 bench/gpu_torch.py ddp cuda:0

All ranks use the device that they are given. Each rank works in a stream of its own, and fills tensors by kernels just
before a call: a call that did not keep to the order of the stream would send what was there before. With "cpu" instead
of a GPU the programs check themselves, as the tests do.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIMIT = 60.0  # seconds for a check
DELAY = 20_000_000  # clocks of the GPU, 10 ms: so late are values there
TOLERANCE = 1e-5  # of weights, relative to their norm


def check(program: str, ranks: int, device: str = "cuda:0") -> str:
    """Runs a program as so many processes; returns what rank 0 found.

    Raises:
        AssertionError: a rank failed.
    """
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COLLECTIVES_")}
    try:
        done = subprocess.run(
            [*launcher, __file__, program, device],
            env={**kept, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"not done after {LIMIT:.0f} s\n{error.stderr}") from None
    found = [line.removeprefix("right: ") for line in done.stdout.splitlines() if line.startswith("right: ")]
    assert done.returncode == 0 and len(found) == 1, done.stdout[-1000:] + done.stderr[-2000:]
    return found[0]


def calls(device: Any) -> str:
    """Every kind of call, on values that come late."""
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    total, count = ranks * (ranks + 1) // 2, 1000
    made = 0

    def late(value: float, *shape: int) -> Any:
        """A tensor that gets its value only when the stream has come so far."""
        x = torch.full(shape or (count,), -1.0, device=device)
        if x.is_cuda:
            torch.cuda._sleep(DELAY)
        return x.fill_(value)

    def same(name: str, x: Any, *values: float) -> None:
        """Whether equal parts of x have these values."""
        nonlocal made
        made += 1
        for part, value in zip(x.chunk(len(values)), values, strict=True):
            assert (part == value).all(), f"{name}: {part.flatten()[:4].tolist()} where {value} is right"

    every = [float(other + 1) for other in range(ranks)]
    x = late(rank + 1)
    dist.all_reduce(x)
    same("all_reduce", x, total)
    x = late(rank + 1)
    dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True).wait()
    same("all_reduce, asynchronous", x, ranks)
    x = late(rank + 1)
    dist.broadcast(x, ranks - 1)
    same("broadcast", x, ranks)
    x = late(rank + 1)
    dist.reduce(x, 0)
    same("reduce", x, total if rank == 0 else rank + 1)
    found = [torch.empty(count, device=device) for _ in range(ranks)]
    dist.all_gather(found, late(rank + 1))
    same("all_gather", torch.cat(found), *every)
    x = torch.empty(ranks * count, device=device)
    dist.all_gather_into_tensor(x, late(rank + 1))
    same("all_gather_into_tensor", x, *every)
    x = torch.empty(count, device=device)
    dist.reduce_scatter_tensor(x, late(rank + 1, ranks * count))
    same("reduce_scatter_tensor", x, total)
    x = torch.empty(ranks * count, device=device)
    dist.all_to_all_single(x, late(rank + 1, ranks * count))
    same("all_to_all_single", x, *every)
    gathered = [torch.empty(count, device=device) for _ in range(ranks)] if rank == 0 else None
    dist.gather(late(rank + 1), gathered, 0)
    if gathered is not None:
        same("gather", torch.cat(gathered), *every)
    x = torch.empty(count, device=device)
    dist.scatter(x, [late(10 + other) for other in range(ranks)] if rank == 0 else None, 0)
    same("scatter", x, 10 + rank)
    if rank == 0 and ranks > 1:
        dist.send(late(7), 1)
    elif rank == 1:
        x = torch.empty(count, device=device)
        dist.recv(x, 0)
        same("recv", x, 7)
    objects: list[Any] = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(ranks)], objects
    dist.barrier()
    return f"{made} kinds of calls, {_microseconds(device)}"


def _microseconds(device: Any) -> str:
    """The times of all_reduce, short and long."""
    import torch
    import torch.distributed as dist

    texts = []
    for nbytes, repeats in ((8, 200), (16 << 20, 20)):
        x = torch.zeros(nbytes // 4, device=device)
        for counted in (5, repeats):
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(counted):
                dist.all_reduce(x)
            if x.is_cuda:
                torch.cuda.synchronize()
            passed = (time.perf_counter() - begin) / counted
        texts.append(f"all_reduce of {nbytes} B in {passed * 1e6:.1f} us")
    return ", ".join(texts)


def ddp(device: Any) -> str:
    """Training under DistributedDataParallel, compared with one process on the global batch."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(1)
    points = torch.randn(64 * ranks, 64, generator=generator).to(device)
    labels = points[:, :10].argmax(1)

    def train(x: Any, y: Any, wrap: Callable[[nn.Module], nn.Module]) -> tuple[Any, list[float]]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 10)).to(device)
        parallel = wrap(model)
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
        losses = []
        for _ in range(50):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(parallel(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return torch.cat([p.detach().flatten() for p in model.parameters()]).double(), losses

    part = slice(64 * rank, 64 * (rank + 1))
    found, losses = train(points[part], labels[part], DistributedDataParallel)
    everyone = [torch.empty_like(found) for _ in range(ranks)]
    dist.all_gather(everyone, found)
    assert all(torch.equal(other, found) for other in everyone), "the ranks have other weights"
    expected, _ = train(points, labels, lambda model: model)
    distance = float((found - expected).norm() / expected.norm())
    assert distance < TOLERANCE, f"{distance} from one process"
    assert losses[-1] < losses[0], losses
    return f"50 steps, {distance:.1e} from one process, loss {losses[0]:.2f} to {losses[-1]:.2f}"


PROGRAMS = {"calls": calls, "ddp": ddp}


def main() -> int:
    """A rank."""
    import torch
    import torch.distributed as dist

    name, device = sys.argv[1], torch.device(sys.argv[2])
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = False  # rounds to ten bits
    dist.init_process_group("collectives")
    with torch.cuda.stream(torch.cuda.Stream()) if device.type == "cuda" else contextlib.nullcontext():
        text = PROGRAMS[name](device)
    if dist.get_rank() == 0:
        print(f"right: {text}", flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).resolve().parent))  # its modules have names that others have, too
    sys.exit(main())
