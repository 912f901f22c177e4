"""Slurm, inside a step that `srun` has started; the shells of `sbatch` and `salloc` are one process each.

The ranks meet at the first node of the step, which has rank 0, at a port that follows from the job and the step.
Slurm's PMI is left alone: whoever comes first decides its version for the whole process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from . import Job, Launcher

_FIRST_PORT, _PORTS = 20000, 12000  # below those that kernels give to connections by themselves


class _Slurm(Launcher):
    STAGE = 3

    def find_job(self, variables: Mapping[str, str]) -> Job | None:
        if "SLURM_STEP_ID" not in variables or (place := self.place(variables)) is None:
            return None
        from ..launched import AtAddress, ByBroadcast, Launched
        from ..stores import pmix

        about = (self.name, *place, self.rank_variable, self.size_variable)
        job, step = variables.get("SLURM_JOB_ID", ""), variables["SLURM_STEP_ID"]
        nodes = variables.get("SLURM_STEP_NODELIST", "")
        if "PMIX_NAMESPACE" in variables:
            local = variables.get("SLURM_STEP_NUM_NODES") == "1"
            store = f"its PMIx ({variables['PMIX_NAMESPACE']})"
            host = variables.get("SLURMD_NODENAME", "")
            return ByBroadcast(*about, store, local, lambda text, _: pmix.broadcast(text), host)
        if variables.get("SLURM_DISTRIBUTION", "").startswith("arbitrary"):
            return Launched(*about, why="with --distribution=arbitrary nothing says which node has rank 0")
        if not nodes or not job.isdigit() or not step.isdigit():
            return Launched(*about, why="SLURM_STEP_NODELIST, SLURM_JOB_ID and SLURM_STEP_ID are not as srun sets them")
        port = _FIRST_PORT + (int(job) * 31 + int(step)) % _PORTS
        host = "127.0.0.1" if variables.get("SLURM_STEP_NUM_NODES") == "1" else first_node(nodes)
        source = "SLURM_STEP_NODELIST, and the port from SLURM_JOB_ID and SLURM_STEP_ID"
        return AtAddress(*about, host, port, source, shared=True)


def first_node(nodes: str) -> str:
    """The first of a list of nodes in Slurm's notation, such as ``node[003-007,9],other``: node003."""
    found = re.match(r"([^\[,]*)(?:\[([^\],-]*)[^\]]*\])?([^,]*)", nodes)
    return "".join(part or "" for part in found.groups()) if found else nodes


LAUNCHER = _Slurm("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID")
