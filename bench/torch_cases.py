"""What bench/torch_step.py measures: calls of dist.all_reduce, and training steps under DDP and FSDP2.

Everything exists twice, over a group of this library and over one of Gloo, and for the step once without communication.
The model is a perceptron of 10 million parameters.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

OURS, THEIRS, NOTHING = "collectives", "gloo", "no communication"
WIDTHS = (1024, 2048, 2048, 1792, 10)
RATE = 0.01
SEED = 1
CHECKED_STEPS = 3
BATCHED_BELOW = 8 << 10  # bytes: shorter calls are timed in batches, back to back
BATCH = 50

Meet = Callable[[], None]


class Case(Protocol):
    """Something that both ranks do at the same time."""

    def times(self, count: int, meet: Meet) -> list[float]:
        """Microseconds of one call or step in each of so many rounds; the ranks meet before each, outside the time."""

    def wrong(self) -> str:
        """What is wrong with a result, empty where nothing is."""


class AllReduce:
    """Calls of dist.all_reduce of float32, each on values that were written anew.

    Args:
        group: of which backend.
        nbytes: of a call.
    """

    def __init__(self, group: Any, nbytes: int) -> None:
        self._group = group
        self._batch = BATCH if nbytes < BATCHED_BELOW else 1
        self._x = torch.zeros(nbytes // 4)

    def times(self, count: int, meet: Meet) -> list[float]:
        """See ``Case``."""
        x, group, batch, found = self._x, self._group, self._batch, []
        now = time.perf_counter_ns
        for _ in range(count):
            x.zero_()  # stays 0, so that nothing overflows
            meet()
            begin = now()
            for _ in range(batch):
                dist.all_reduce(x, group=group)
            found.append((now() - begin) / batch / 1e3)
        return found

    def wrong(self) -> str:
        """See ``Case``."""
        ranks = dist.get_world_size()
        base = torch.arange(len(self._x), dtype=torch.float32) % 97
        self._x.copy_(base * (dist.get_rank() + 1))
        dist.all_reduce(self._x, group=self._group)
        bad = int((self._x != base * (ranks * (ranks + 1) // 2)).sum())
        return f"{bad} of {len(base)} elements are not the sum" if bad else ""


class Step:
    """Forward, backward and the update, on the same batch again and again.

    Args:
        wrap: makes a data-parallel model of a model; None where each rank trains for itself.
        batch: samples of each rank.
    """

    def __init__(self, wrap: Callable[[nn.Module], nn.Module] | None, batch: int) -> None:
        self._parallel = wrap is not None
        model = make_model()
        self._model = model if wrap is None else wrap(model)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=RATE)
        rank = dist.get_rank()
        points, labels = make_data(batch * dist.get_world_size())
        self._points, self._labels = (x[rank * batch : (rank + 1) * batch] for x in (points, labels))

    def _step(self) -> torch.Tensor:
        self._optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self._model(self._points), self._labels)
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def times(self, count: int, meet: Meet) -> list[float]:
        """See ``Case``."""
        found = []
        now = time.perf_counter_ns
        for _ in range(count):
            meet()
            begin = now()
            self._step()
            found.append((now() - begin) / 1e3)
        return found

    def wrong(self) -> str:
        """See ``Case``. Compares the first losses with those of one process; to be called once, before `times`."""
        if not self._parallel:
            return ""
        losses = torch.stack([self._step() for _ in range(CHECKED_STEPS)])
        dist.all_reduce(losses)
        losses /= dist.get_world_size()
        expected = losses_alone(len(self._points) * dist.get_world_size())
        good = torch.allclose(losses, expected, rtol=1e-5, atol=0)
        return "" if good else f"losses {losses.tolist()} where one process has {expected.tolist()}"


def make_model() -> nn.Module:
    """The same on all ranks."""
    torch.manual_seed(SEED)
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(WIDTHS):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def make_data(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points and classes of a batch."""
    generator = torch.Generator().manual_seed(SEED)
    points = torch.randn(samples, WIDTHS[0], generator=generator)
    return points, torch.randint(WIDTHS[-1], (samples,), generator=generator)


def losses_alone(samples: int) -> torch.Tensor:
    """Of the first steps, of one process with the whole batch."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    points, labels = make_data(samples)
    losses = []
    for _ in range(CHECKED_STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(points), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def _under_ddp(group: Any) -> Callable[[nn.Module], nn.Module]:
    return lambda model: DistributedDataParallel(model, process_group=group)


def _under_fsdp(group: Any) -> Callable[[nn.Module], nn.Module]:
    def wrap(model: nn.Module) -> nn.Module:
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in model:  # type: ignore[attr-defined]
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    return wrap


def make_cases(parts: list[str], sizes: list[int], batch: int, groups: dict[str, Any]) -> dict[tuple[str, str], Case]:
    """What was asked for, by what it is (such as "all_reduce 8") and by whose group it uses."""
    cases: dict[tuple[str, str], Case] = {}
    for name, group in groups.items():
        if "calls" in parts:
            for nbytes in sizes:
                cases[f"all_reduce {nbytes}", name] = AllReduce(group, nbytes)
        if "ddp" in parts:
            cases["DDP step", name] = Step(_under_ddp(group), batch)
        if "fsdp" in parts:
            cases["FSDP2 step", name] = Step(_under_fsdp(group), batch)
    if "ddp" in parts:
        cases["DDP step", NOTHING] = Step(None, batch)
    return cases
