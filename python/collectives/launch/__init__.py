"""Starting ranks on one host: the command ``collectives run`` and the function `collectives.spawn`.

Between hosts use another launcher. With torchrun nothing has to be set (`_startup.torchrun`). With others (mpirun,
srun, Ray, a Kubernetes operator) set ``COLLECTIVES_RANK``, ``COLLECTIVES_SIZE``, ``COLLECTIVES_RENDEZVOUS`` and
``COLLECTIVES_TOKEN`` or ``COLLECTIVES_TOKEN_FILE`` in each process; docs/security.md shows how.
"""

from .spawn import spawn

__all__ = ["spawn"]
