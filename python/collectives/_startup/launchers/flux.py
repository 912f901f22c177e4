"""Flux. It sets PMI_SIZE as well, which it shares with MPICH's launcher."""

from . import Launcher


class _Flux(Launcher):
    STAGE = 3


LAUNCHER = _Flux("flux run", "FLUX_JOB_SIZE", "FLUX_TASK_RANK")
