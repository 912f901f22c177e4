"""Horovod's launcher, which may in turn use that of an MPI."""

from . import Launcher


class _Horovodrun(Launcher):
    STAGE = 2


LAUNCHER = _Horovodrun("horovodrun", "HOROVOD_SIZE", "HOROVOD_RANK")
