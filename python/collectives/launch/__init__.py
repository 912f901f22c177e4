"""Starting ranks: the command ``collectives run``, on this host or over ssh on others, and `collectives.spawn`.

Other launchers serve as well (`_startup.launchers`); docs/running.md has all.
"""

from .spawn import spawn

__all__ = ["spawn"]
