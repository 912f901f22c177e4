"""Starting ranks on one host: the command ``collectives run`` and the function `collectives.spawn`.

Between hosts use the launcher that is there (torchrun, mpirun, srun, Ray, a Kubernetes operator) and set
``COLLECTIVES_RANK``, ``COLLECTIVES_SIZE``, ``COLLECTIVES_RENDEZVOUS`` and ``COLLECTIVES_TOKEN`` in each process.
"""

from .spawn import spawn

__all__ = ["spawn"]
