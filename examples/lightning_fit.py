"""Trains under Lightning's DDP strategy, and compares the weights with those of one process on the global batch.

python examples/lightning_fit.py
python examples/lightning_fit.py --backend gloo

``process_group_backend`` is all that differs from a script for Gloo. Lightning starts the second process itself, as it
does for every ``devices=``; torchrun and SLURM work, too. docs/torch.md has the details.
"""

from __future__ import annotations

import argparse
import logging
import warnings

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

TOLERANCE = 1e-5  # of the weights, relative to their norm
CLASSES = 10
SAMPLES = 4096
SEED = 1


class Classifier(lightning.LightningModule):
    """A perceptron. Smooth: at the kink of a ReLU, a rounding can decide whether there is a gradient."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch = batch  # samples of a step, on each rank
        self.losses: list[torch.Tensor] = []  # of the epoch
        torch.manual_seed(SEED)
        self.layers = nn.Sequential(
            nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, CLASSES)
        )

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        """The loss of one batch."""
        points, labels = batch
        loss = nn.functional.cross_entropy(self.layers(points), labels)
        self.losses.append(loss.detach())
        return loss

    def on_train_epoch_end(self) -> None:
        """Prints the mean loss, on rank 0 of several."""
        loss = self.all_gather(torch.stack(self.losses).mean()).mean()  # all ranks take part
        self.losses.clear()
        if self.trainer.is_global_zero and self.trainer.world_size > 1:
            print(f"epoch {self.current_epoch + 1} of {self.trainer.max_epochs}: loss {loss:.4f}", flush=True)

    def train_dataloader(self) -> DataLoader:
        """The part of this rank, in a new order in every epoch."""
        data = make_data()
        sampler: DistributedSampler = DistributedSampler(
            data, self.trainer.world_size, self.trainer.global_rank, seed=SEED, drop_last=True
        )
        return DataLoader(data, self.batch, sampler=sampler, drop_last=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Momentum."""
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


def make_data() -> TensorDataset:
    """Points in ten overlapping clusters, the same in every process."""
    generator = torch.Generator().manual_seed(SEED)
    labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    centres = 0.3 * torch.randn(CLASSES, 64, generator=generator)
    return TensorDataset(centres[labels] + torch.randn(SAMPLES, 64, generator=generator), labels)


def fit(devices: int, batch: int, epochs: int, strategy: DDPStrategy | str) -> torch.Tensor:
    """The weights after training on `devices` ranks, each of which takes `batch` samples of a step."""
    module = Classifier(batch)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy=strategy,
        max_epochs=epochs,
        use_distributed_sampler=False,  # there is one, which has the same order on any number of ranks
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module)
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()]).double()


def main() -> None:
    parser = argparse.ArgumentParser(description="Lightning's Trainer on two ranks, checked against one process.")
    parser.add_argument("--backend", default="collectives", help="of the process group (%(default)s)")
    parser.add_argument("--devices", type=int, default=2, help="processes on this host (%(default)s)")
    parser.add_argument("--epochs", type=int, default=3, help="passes over the data (%(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="samples of a step, of all ranks (%(default)s)")
    options = parser.parse_args()
    devices = options.devices
    if min(options.epochs, devices) < 1 or options.batch % devices or SAMPLES % options.batch:
        parser.error(f"--epochs and --devices are at least 1; --batch divides {SAMPLES} and is a multiple of --devices")
    torch.set_num_threads(1)  # the ranks share the cores
    for name in ("lightning.pytorch", "lightning.fabric"):  # what they say of devices and ranks
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*(num_workers|LeafSpec).*")  # the data are in memory; of Lightning's own code

    strategy = DDPStrategy(process_group_backend=options.backend)
    found = fit(devices, options.batch // devices, options.epochs, strategy)
    everyone = [torch.empty_like(found) for _ in range(devices)]
    dist.all_gather(everyone, found)
    assert all(torch.equal(other, found) for other in everyone), "the ranks ended with different weights"
    rank = dist.get_rank()
    dist.destroy_process_group()
    if rank == 0:
        expected = fit(1, options.batch, options.epochs, "auto")
        distance = float((found - expected).norm() / expected.norm())
        if not distance < TOLERANCE:
            raise AssertionError(
                f"{devices} ranks differ from one process by {distance}; less than {TOLERANCE} is right"
            )
        print(f"same weights on {devices} ranks; relative distance from one process {distance:.1e}", flush=True)


if __name__ == "__main__":
    main()
