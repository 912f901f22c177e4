"""Open MPI's launcher: ranks of one host meet by a socket, those of several by PMIx, the launcher's store."""

from __future__ import annotations

from collections.abc import Mapping

from . import Job, Launcher


class _OpenMpi(Launcher):
    def find_job(self, variables: Mapping[str, str]) -> Job | None:
        if (place := self.place(variables)) is None:
            return None
        from ..launched import ByBroadcast, Launched
        from ..stores import one_host, pmix

        about = (self.name, *place, self.rank_variable, self.size_variable)
        if "PMIX_NAMESPACE" not in variables:
            return Launched(*about, why="its store cannot be used, since PMIX_NAMESPACE is not set")
        job = variables["PMIX_NAMESPACE"]
        if variables.get("OMPI_COMM_WORLD_LOCAL_SIZE") == variables[self.size_variable]:
            # PMIx is left to MPI: of Open MPI 5, jobs hung in MPI_Finalize now and then where both had used it.
            return ByBroadcast(
                *about,
                f"a socket of this host ({job})",
                True,
                lambda text, deadline: one_host.broadcast(job, place[1], text, deadline),
            )
        store = f"its PMIx ({job})"
        return ByBroadcast(
            *about, store, False, lambda text, _: pmix.broadcast(text), variables.get("PMIX_HOSTNAME", "")
        )


LAUNCHER = _OpenMpi("mpirun of Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")
