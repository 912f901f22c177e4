"""Hydra, the launcher of MPICH and Intel MPI: ranks meet by PMI, its key-value store.

Slurm and Flux set PMI_RANK and PMI_SIZE as well. Their stores have other rules for who may speak first, and cannot be
shared with an MPI library, so they are left alone (slurm.py, flux.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from . import Job, Launcher

_HYDRA = "MPI_LOCALNRANKS"  # what Hydra alone sets: the number of its processes on this host
_OTHERS = ("FLUX_JOB_ID", "SLURM_STEP_ID")  # PMI_RANK is theirs, unless Hydra runs in their job


class _Hydra(Launcher):
    def find_job(self, variables: Mapping[str, str]) -> Job | None:
        if _HYDRA not in variables and any(name in variables for name in _OTHERS):
            return None
        if (place := self.place(variables)) is None:
            return None
        from ..launched import ByBroadcast, Launched
        from ..stores.pmi import Pmi

        about = (self.name, *place, self.rank_variable, self.size_variable)
        descriptor = variables.get("PMI_FD", "")
        if not descriptor or _HYDRA not in variables:
            missing = _HYDRA if descriptor else "PMI_FD"
            return Launched(*about, why=f"its store cannot be used, since {missing} is not set")
        local = variables[_HYDRA] == variables[self.size_variable]
        rank = place[0]
        store = f"its PMI (descriptor {descriptor})"
        host = variables.get("PMI_HOSTNAME") or variables.get("HYDRA_BSTRAP_LOCALHOST", "")
        return ByBroadcast(*about, store, local, lambda text, _: Pmi(descriptor, rank).broadcast(text), host)


LAUNCHER = _Hydra("mpiexec of MPICH or Intel MPI", "PMI_SIZE", "PMI_RANK")
