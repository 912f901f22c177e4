"""Trains a small transformer whose parameters are sharded over the ranks by FSDP2, and compares it with one process.

torchrun --nproc-per-node 2 examples/torch_fsdp.py
torchrun --nproc-per-node 2 examples/torch_fsdp.py --backend gloo

Each rank keeps a part of every parameter, of its gradient and of its momentum. FSDP2 gathers the parameters of a layer
before it is computed (all_gather), and reduces and splits its gradients after it (reduce_scatter). The model learns to
tell the next number of a sequence that repeats itself. Rank 0 then trains on whole batches alone. docs/torch.md has the
details.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

TOLERANCE = 1e-5  # of the weights, relative to their norm
SYMBOLS = 16
LENGTH = 12
PERIOD = 4
WIDTH = 64
SEED = 1


class Model(nn.Module):
    """Two layers of a transformer over sequences of numbers below SYMBOLS.

    Smooth: at the kink of a ReLU, a rounding can decide whether there is a gradient.
    """

    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, nn.functional.gelu, batch_first=True) for _ in range(2)
        )
        self.scores = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        """[batch, LENGTH] numbers to [batch, LENGTH, SYMBOLS] scores of the next one."""
        x = self.symbols(sequences) + self.places
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.scores(x).clone()  # FSDP2 hooks the backward pass of what comes out, and warns of views


def make_model() -> Model:
    torch.manual_seed(SEED)
    return Model()


def batch_of_step(step: int, size: int) -> torch.Tensor:
    """[size, LENGTH + 1] numbers that repeat after PERIOD places, the same on all ranks."""
    start = torch.randint(SYMBOLS, (size, PERIOD), generator=torch.Generator().manual_seed(step))
    return start.repeat(1, LENGTH // PERIOD + 1)[:, : LENGTH + 1]


def train(model: nn.Module, batch: int, steps: int, rank: int, ranks: int) -> list[torch.Tensor]:
    """The loss of each step on the part of the batch that this rank has: every `ranks`-th sequence."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        sequences = batch_of_step(step, batch)[rank::ranks]
        scores = model(sequences[:, :-1])
        # What comes before the sequence repeats cannot be known.
        known = slice(PERIOD - 1, None)
        loss = nn.functional.cross_entropy(scores[:, known].flatten(0, 1), sequences[:, 1:][:, known].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def norm_of_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Relative to the norm of `other`."""
    assert one.keys() == other.keys()
    difference = torch.cat([(one[name] - other[name]).double().flatten() for name in other]).norm()
    return float(difference / torch.cat([other[name].double().flatten() for name in other]).norm())


def main() -> None:
    parser = argparse.ArgumentParser(description="Sharded data-parallel training, checked against one process.")
    parser.add_argument("--backend", default="collectives", help="for init_process_group (%(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="batches to train on (%(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="sequences of a step, of all ranks (%(default)s)")
    options = parser.parse_args()

    dist.init_process_group(options.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if options.steps < 1 or options.batch < 1 or options.batch % ranks:
        parser.error(f"--steps is at least 1, and --batch a multiple of the {ranks} ranks")
    torch.set_num_threads(1)  # the ranks share the cores

    mesh = init_device_mesh("cpu", (ranks,))
    model = make_model()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    mine = sum(parameter.to_local().numel() for parameter in model.parameters())
    every = sum(parameter.numel() for parameter in model.parameters())

    losses = torch.stack(train(model, options.batch, options.steps, rank, ranks))
    dist.all_reduce(losses)
    losses /= ranks
    # All ranks take part in gathering the parameters, rank 0 gets them.
    found = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        print(f"rank 0 of {ranks} keeps {mine} of {every} parameters")
        for step in range(0, options.steps, 20):
            print(f"step {step + 1} of {options.steps}: loss {losses[step]:.4f}")
        alone = make_model()
        losses_alone = train(alone, options.batch, options.steps, 0, 1)
        distance = norm_of_difference(found, dict(alone.state_dict()))
        if not distance < TOLERANCE:
            raise AssertionError(f"{ranks} ranks differ from one process by {distance}; less than {TOLERANCE} is right")
        print(f"loss {losses[-1]:.6f}, of one process {losses_alone[-1]:.6f}")
        print(f"relative distance of the weights from one process {distance:.1e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
