"""Trains a classifier under DistributedDataParallel, and compares it with one process on the global batch.

torchrun --nproc-per-node 2 examples/torch_ddp.py
torchrun --nproc-per-node 2 examples/torch_ddp.py --backend gloo

The name in ``init_process_group`` is all that differs from a script for Gloo: nothing of this library is imported. Each
rank trains on its part of every batch, and DDP averages the gradients. Rank 0 then trains on whole batches alone: the
weights are the same but for the order of additions. docs/torch.md has the details.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

TOLERANCE = 1e-5  # of the weights, relative to their norm
CLASSES = 10
SAMPLES = 4096
SEED = 1


def make_data() -> TensorDataset:
    """Points of 64 coordinates in ten overlapping clusters, the same on all ranks."""
    generator = torch.Generator().manual_seed(SEED)
    labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    centres = 0.3 * torch.randn(CLASSES, 64, generator=generator)
    return TensorDataset(centres[labels] + torch.randn(SAMPLES, 64, generator=generator), labels)


def make_model() -> nn.Sequential:
    """The same on all ranks. Smooth: at the kink of a ReLU, a rounding can decide whether there is a gradient."""
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, CLASSES))


def train(model: nn.Module, data: TensorDataset, batch: int, epochs: int, rank: int, ranks: int) -> list[float]:
    """The mean loss of each epoch on this rank, which takes `batch` samples of every step."""
    sampler: DistributedSampler = DistributedSampler(data, ranks, rank, seed=SEED, drop_last=True)
    loader = DataLoader(data, batch, sampler=sampler, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    means = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        losses = []
        for points, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(points), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        means.append(torch.stack(losses).mean())
        if ranks > 1:
            dist.all_reduce(means[-1])
            means[-1] /= ranks
        if rank == 0 and ranks > 1:
            print(f"epoch {epoch + 1} of {epochs}: loss {means[-1]:.4f}", flush=True)
    return [float(mean) for mean in means]


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).double()


def main() -> None:
    parser = argparse.ArgumentParser(description="Data-parallel training with PyTorch, checked against one process.")
    parser.add_argument("--backend", default="collectives", help="for init_process_group (%(default)s)")
    parser.add_argument("--epochs", type=int, default=3, help="passes over the data (%(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="samples of a step, of all ranks (%(default)s)")
    options = parser.parse_args()

    dist.init_process_group(options.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if options.epochs < 1 or options.batch < ranks or options.batch % ranks or SAMPLES % options.batch:
        parser.error(f"--epochs is at least 1; --batch divides {SAMPLES} and is a multiple of the {ranks} ranks")
    torch.set_num_threads(1)  # the ranks share the cores

    data = make_data()
    model = DistributedDataParallel(make_model())
    losses = train(model, data, options.batch // ranks, options.epochs, rank, ranks)
    found = weights(model)

    everyone = [torch.empty_like(found) for _ in range(ranks)]
    dist.all_gather(everyone, found)
    different = [other for other in range(ranks) if not torch.equal(everyone[other], found)]
    if different:
        raise AssertionError(f"ranks {different} ended with other weights than rank {rank}")

    if rank == 0:
        alone = make_model()
        losses_alone = train(alone, data, options.batch, options.epochs, 0, 1)
        expected = weights(alone)
        distance = float((found - expected).norm() / expected.norm())
        if not distance < TOLERANCE:
            raise AssertionError(f"{ranks} ranks differ from one process by {distance}; less than {TOLERANCE} is right")
        print(f"loss {losses[-1]:.6f}, of one process {losses_alone[-1]:.6f}")
        print(f"same weights on {ranks} ranks; relative distance from one process {distance:.1e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
