"""Ranks as actors of Ray: ``collectives.ray.run`` starts a function in several, each with a communicator.

>>> import collectives.ray
>>> def work(comm, scale):
...     return float(comm.all_reduce(np.array([comm.rank * scale]))[0])
>>> collectives.ray.run(work, 4, {"CPU": 1}, args=(10.0,))
[60.0, 60.0, 60.0, 60.0]

It needs Ray, which ``pip install 'collectives-comm[ray]'`` brings, and is imported by name: ``import collectives`` does
not load it.
"""

from ._run import run

__all__ = ["run"]
