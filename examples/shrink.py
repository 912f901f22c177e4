"""Linear regression that goes on when a worker dies: the others shrink the communicator and train on.

collectives run -n 4 --keep-going examples/shrink.py --lose 2

Every rank has a shard of the samples, drawn from its rank and the number of ranks. With `--lose R` rank R kills itself
in the middle. The others find that their collective fails, call `shrink`, share the samples out again, and take the
parameters of the lowest rank: of a step that failed, some may have the result and others not.
"""

from __future__ import annotations

import argparse
import os
import signal

import collectives
import numpy as np

SAMPLES, FEATURES, STEPS = 4096, 20, 200
RATE = 0.2


def shard(comm: collectives.Communicator) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [samples of this rank, FEATURES] and outputs, out of the same data on all ranks."""
    random = np.random.default_rng(1)
    inputs = random.normal(size=(SAMPLES, FEATURES))
    outputs = inputs @ np.arange(1.0, FEATURES + 1)
    return inputs[comm.rank :: comm.size], outputs[comm.rank :: comm.size]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lose", type=int, default=None, metavar="RANK", help="the rank that dies half-way")
    lose = parser.parse_args().lose
    comm = collectives.init()
    victim = comm.rank == lose and comm.size > 1
    parameters, step = np.zeros(FEATURES), 0
    inputs, outputs = shard(comm)
    agreed = True
    while step < STEPS:
        try:
            if not agreed:  # in here, since another rank may die now
                # The state of rank 0 counts.
                state = np.array([step, *parameters])
                comm.broadcast(state)
                step, parameters = int(state[0]), state[1:].copy()
                agreed = True
            if victim and step == STEPS // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            gradient = inputs.T @ (inputs @ parameters - outputs) / SAMPLES
            comm.all_reduce(gradient)
            parameters -= RATE * gradient
            step += 1
        except (collectives.PeerError, collectives.DeadlineError) as error:
            print(f"rank {comm.rank} at step {step}: {error}")
            comm = comm.shrink(timeout=30)
            inputs, outputs = shard(comm)
            agreed = False
    error = float(np.abs(parameters - np.arange(1.0, FEATURES + 1)).max())
    if comm.rank == 0:
        print(f"{comm.size} ranks at the end; {step} steps; largest error {error:.1e}")
    comm.close()


if __name__ == "__main__":
    main()
