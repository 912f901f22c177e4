"""Trains by actors of Ray over a backend of ``ray.util.collective``, and compares them with one process.

python examples/ray_train.py
python examples/ray_train.py --backend gloo

``register_collective_backend`` gives Ray a new backend: a class whose methods call a communicator of this library. The
ranks meet through Ray's key-value store. Each actor trains on its part of every batch, and one all-reduce adds up its
gradients. The program without actors then trains on whole batches.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import time
from typing import Any

import collectives
import numpy as np
import ray
import torch
from ray.experimental import internal_kv
from ray.util import collective
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import ReduceOp
from torch import nn

TOLERANCE = 1e-5  # of the weights, relative to their norm
TIMEOUT = 60.0  # seconds in which the actors meet
OPS = {ReduceOp.SUM: "sum", ReduceOp.PRODUCT: "prod", ReduceOp.MIN: "min", ReduceOp.MAX: "max"}
CLASSES = 10
SAMPLES = 4096
SEED = 1


class CollectivesGroup(BaseGroup):
    """A group of ``ray.util.collective`` over this library. Ray makes it in each actor, and passes tensors in lists.

    A process has one world, so an actor is in one such group; ``comm.split`` makes groups out of it.
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        key = f"collectives/{group_name}"
        if rank == 0:
            address = ray.util.get_node_ip_address()
            with socket.create_server((address, 0)) as listener:
                port, token = listener.getsockname()[1], secrets.token_hex(16)
                internal_kv._internal_kv_put(key, json.dumps([f"{address}:{port}", token]))
                # The socket that listens already: between choosing a port and listening nobody can take it.
                os.environ["COLLECTIVES_RENDEZVOUS_FD"] = str(listener.fileno())
                self.comm = collectives.init(
                    rank=0, size=world_size, rendezvous=f"{address}:{port}", token=token, timeout=TIMEOUT
                )
                del os.environ["COLLECTIVES_RENDEZVOUS_FD"]
            internal_kv._internal_kv_del(key)
        else:
            end = time.monotonic() + TIMEOUT
            while (found := internal_kv._internal_kv_get(key)) is None:
                if time.monotonic() > end:
                    raise TimeoutError(f"rank 0 of group {group_name!r} has not come within {TIMEOUT:g} s")
                time.sleep(0.02)
            rendezvous, token = json.loads(found)
            self.comm = collectives.init(
                rank=rank, size=world_size, rendezvous=rendezvous, token=token, timeout=TIMEOUT
            )

    @classmethod
    def backend(cls) -> str:
        return "COLLECTIVES"

    @classmethod
    def check_backend_availability(cls) -> bool:
        return True

    def destroy_group(self) -> None:
        self.comm.close()

    def allreduce(self, tensor: list[Any], allreduce_options: Any) -> None:
        self.comm.all_reduce(tensor[0], OPS[allreduce_options.reduceOp])

    def reduce(self, tensor: list[Any], reduce_options: Any) -> None:
        root = reduce_options.root_rank
        out = tensor[0] if self.rank == root else None
        self.comm.reduce(tensor[0], OPS[reduce_options.reduceOp], root=root, out=out)

    def broadcast(self, tensor: list[Any], broadcast_options: Any) -> None:
        self.comm.broadcast(tensor[0], root=broadcast_options.root_rank)

    def allgather(self, tensor_list: list[list[Any]], tensor: list[Any], allgather_options: Any) -> None:
        for out, found in zip(tensor_list[0], self.comm.all_gather(tensor[0][None]), strict=True):
            out[...] = found

    def reducescatter(self, tensor: list[Any], tensor_list: list[list[Any]], reducescatter_options: Any) -> None:
        stack = torch.stack if isinstance(tensor[0], torch.Tensor) else np.stack
        op = OPS[reducescatter_options.reduceOp]
        tensor[0][...] = self.comm.reduce_scatter(stack(tensor_list[0]), op)[0]

    def barrier(self, barrier_options: Any = None) -> None:
        self.comm.barrier()

    def send(self, tensor: list[Any], send_options: Any) -> None:
        self.comm.send(tensor[0], send_options.dst_rank)

    def recv(self, tensor: list[Any], recv_options: Any) -> None:
        self.comm.recv(tensor[0], recv_options.src_rank)


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Points of 64 coordinates in ten overlapping clusters, the same in every process."""
    generator = torch.Generator().manual_seed(SEED)
    labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    centres = 0.3 * torch.randn(CLASSES, 64, generator=generator)
    return centres[labels] + torch.randn(SAMPLES, 64, generator=generator), labels


def train(batch: int, epochs: int, rank: int = 0, ranks: int = 1) -> torch.Tensor:
    """The weights after training; of each batch this rank has the samples rank, rank + ranks, ..."""
    torch.manual_seed(SEED)
    # Smooth: at the kink of a ReLU, a rounding can decide whether there is a gradient.
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    points, labels = make_data()
    shuffle = torch.Generator().manual_seed(SEED)
    parameters = list(model.parameters())
    for epoch in range(epochs):
        total = 0.0
        for chosen in torch.randperm(SAMPLES, generator=shuffle).split(batch):
            mine = chosen[rank::ranks]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(points[mine]), labels[mine])
            loss.backward()
            if ranks > 1:
                gradients = torch.cat([parameter.grad.flatten() for parameter in parameters])
                collective.allreduce(gradients)
                parts = (gradients / ranks).split([parameter.numel() for parameter in parameters])
                for parameter, part in zip(parameters, parts, strict=True):
                    parameter.grad.copy_(part.view_as(parameter))
            optimizer.step()
            total += float(loss.detach())
        if rank == 0 and ranks > 1:
            print(f"epoch {epoch + 1} of {epochs}: loss {total / (SAMPLES // batch):.4f}", flush=True)
    return torch.cat([parameter.detach().flatten() for parameter in parameters]).double()


@ray.remote(num_cpus=1)
class Worker:
    """One rank."""

    def __init__(self, rank: int, ranks: int, backend: str) -> None:
        torch.set_num_threads(1)  # the ranks share the cores
        self.rank, self.ranks = rank, ranks
        if backend == "collectives":
            collective.register_collective_backend(backend, CollectivesGroup)
        collective.init_collective_group(ranks, rank, backend)

    def check(self) -> str:
        """Calls of the group besides allreduce."""
        rank, ranks = self.rank, self.ranks
        x = torch.full((3,), float(rank))
        every = [torch.empty(3) for _ in range(ranks)]
        collective.allgather(every, x)
        assert [int(one[0]) for one in every] == list(range(ranks)), every
        collective.broadcast(x, src_rank=ranks - 1)
        assert (x == ranks - 1).all(), x
        collective.reduce(x, dst_rank=0)
        assert (x == (ranks * (ranks - 1) if rank == 0 else ranks - 1)).all(), x
        part = np.empty(2)
        collective.reducescatter(part, [np.full(2, 10.0 * other + rank) for other in range(ranks)])
        assert (part == 10 * ranks * rank + ranks * (ranks - 1) / 2).all(), part
        if rank == 0 and ranks > 1:
            collective.send(x, 1)
        elif rank == 1:
            collective.recv(x, 0)
            assert (x == ranks * (ranks - 1)).all(), x
        collective.barrier()
        return "right"

    def train(self, batch: int, epochs: int) -> torch.Tensor:
        """The weights."""
        return train(batch, epochs, self.rank, self.ranks)

    def leave(self) -> None:
        """Leaves the group."""
        collective.destroy_collective_group()


def main() -> None:
    parser = argparse.ArgumentParser(description="Data-parallel training by Ray's actors, checked against one process.")
    parser.add_argument("--backend", choices=("collectives", "gloo"), default="collectives", help="(%(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="actors (%(default)s)")
    parser.add_argument("--epochs", type=int, default=3, help="passes over the data (%(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="samples of a step, of all actors (%(default)s)")
    options = parser.parse_args()
    ranks = options.workers
    if min(ranks, options.epochs) < 1 or options.batch % ranks or SAMPLES % options.batch:
        parser.error(f"--epochs and --workers are at least 1; --batch divides {SAMPLES} and is a multiple of --workers")
    torch.set_num_threads(1)

    ray.init(address="local", num_cpus=ranks, include_dashboard=False, log_to_driver=True)
    workers = [Worker.remote(rank, ranks, options.backend) for rank in range(ranks)]
    assert set(ray.get([worker.check.remote() for worker in workers])) == {"right"}
    found = ray.get([worker.train.remote(options.batch, options.epochs) for worker in workers])
    ray.get([worker.leave.remote() for worker in workers])
    ray.shutdown()

    assert all(torch.equal(other, found[0]) for other in found), "the ranks ended with different weights"
    expected = train(options.batch, options.epochs)
    distance = float((found[0] - expected).norm() / expected.norm())
    if not distance < TOLERANCE:
        raise AssertionError(f"{ranks} ranks differ from one process by {distance}; less than {TOLERANCE} is right")
    print(f"same weights on {ranks} ranks; relative distance from one process {distance:.1e}", flush=True)


if __name__ == "__main__":
    main()
