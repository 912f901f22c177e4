"""RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT without torchrun: Kubeflow's PyTorchJob, Lightning, scripts.

Rank 0 listens beside MASTER_PORT, at the next port: at that one torch.distributed has its own store, before or
afterwards, in the same program.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import INSTEAD, Job, Launcher


class _Master(Launcher):
    STAGE = 2

    def find_job(self, variables: Mapping[str, str]) -> Job | None:
        if "TORCHELASTIC_RUN_ID" in variables or (place := self.place(variables)) is None:
            return None
        from ..launched import AtAddress, Launched

        about = (self.name, *place, self.rank_variable, self.size_variable)
        host, port = variables.get("MASTER_ADDR", ""), variables.get("MASTER_PORT", "")
        if not host or not port:
            missing = " and ".join(name for name in ("MASTER_ADDR", "MASTER_PORT") if not variables.get(name))
            return Launched(*about, why=f"{missing} {'are' if 'and' in missing else 'is'} not set")
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 65535):
            raise ValueError(f"MASTER_PORT is {port!r}; a port from 1 to 65534 is accepted. {INSTEAD}")
        return AtAddress(*about, host, int(port) + 1, "MASTER_ADDR and the port behind MASTER_PORT")


LAUNCHER = _Master("a launcher that sets RANK and WORLD_SIZE", "WORLD_SIZE", "RANK")
