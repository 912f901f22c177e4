"""Starting ranks on one host: the command ``collectives run`` and the function `collectives.spawn`.

Between hosts use the launcher that is there. Ranks of torchrun know all that they need (`_torchrun`). With others
(mpirun, srun, Ray, a Kubernetes operator) set ``COLLECTIVES_RANK``, ``COLLECTIVES_SIZE``, ``COLLECTIVES_RENDEZVOUS``
and ``COLLECTIVES_TOKEN`` or ``COLLECTIVES_TOKEN_FILE`` in each process; docs/security.md shows how.
"""

from .spawn import spawn

__all__ = ["spawn"]
