"""Launchers whose variables this library does not use: unless told its rank, each process would be a world of one."""

from __future__ import annotations

from collections.abc import Mapping

# The variable that a launcher sets to its number of processes, and its name.
SIZES = {
    "HOROVOD_SIZE": "horovodrun",
    "OMPI_COMM_WORLD_SIZE": "mpirun of Open MPI",
    "PMI_SIZE": "mpiexec of MPICH or Intel MPI, or srun",
    "SLURM_STEP_NUM_TASKS": "srun",
    "FLUX_JOB_SIZE": "flux run",
    "WORLD_SIZE": "a launcher that sets RANK and WORLD_SIZE",
}


def refuse_world_of_one(variables: Mapping[str, str]) -> None:
    """Raises ValueError where another launcher has started this process with others."""
    for name, launcher in SIZES.items():
        size = variables.get(name, "")
        if size.isascii() and size.isdigit() and int(size) > 1:
            raise ValueError(
                f"{name} is {size}: {launcher} has started {size} processes, but nothing says which rank this one is, "
                "and each of them would be a world of its own. Set COLLECTIVES_RANK, COLLECTIVES_SIZE, "
                "COLLECTIVES_RENDEZVOUS and COLLECTIVES_TOKEN (docs/environment.md), start the program by `collectives "
                "run` or torchrun, or call init(size=1) where a world of one is meant"
            )
