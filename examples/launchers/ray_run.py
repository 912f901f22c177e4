"""Eight ranks as actors of a cluster of Ray: python ray_run.py, or `ray job submit -- python ray_run.py`."""

from __future__ import annotations

import sys

import collectives
import collectives.ray
import numpy as np
import ray


def train(comm: collectives.Communicator, steps: int) -> float:
    """What each rank does; what it returns, `run` returns in a list."""
    for _ in range(steps):
        gradient = np.full(1000, comm.rank, np.float32)
        comm.all_reduce(gradient, op="avg")
    return float(gradient[0])


if __name__ == "__main__":
    ray.init(log_to_driver=True)
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    print(collectives.ray.run(train, workers, {"CPU": 1}, args=[10]))
