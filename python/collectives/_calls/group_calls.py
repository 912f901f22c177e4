"""What a communicator has to make others: ``split``, ``dup``, ``new_group`` and ``shrink``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from . import groups, shrink

if TYPE_CHECKING:
    from ..communicator import Communicator


class GroupCalls:
    """The methods of ``Communicator`` by which it makes others."""

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Splits the ranks into groups, one for each color. A collective call.

        The new communicators count their own collectives: an operation in flight on one neither waits for another
        communicator nor fails with it. They share the connections and the memory of this process, and stay open when
        this communicator is closed.

        Args:
            color: which group this rank joins, 0 or more; ``None`` for none.
            key: the ranks of a group are ordered by key, then by their rank in this communicator.

        Returns:
            The communicator of this rank's group, ``None`` without a color. It inherits the timeout.

        Raises:
            TypeError, ValueError: an argument is not acceptable. The other ranks then wait for this one.
            MismatchError: a rank made a different call.
            MemoryError: this host has no room for another group (``COLLECTIVES_SYMMETRIC_HEAP``). Where only symmetric
                memory is short, ``empty`` of the group gives ordinary arrays.
        """
        return groups.split(cast("Communicator", self), color, key)

    def dup(self) -> Communicator:
        """A communicator of the same ranks that counts its own collectives. A collective call; see ``split``."""
        return groups.dup(cast("Communicator", self))

    def new_group(
        self,
        ranks: Iterable[int],
        tag: int | str | None = None,
        members_only: bool = False,
        timeout: float | None = None,
    ) -> Communicator | None:
        """A communicator of some of the ranks: its rank i is ``ranks[i]``. All ranks make the call; see ``split``.

        With ``members_only=True`` the members alone make it, for example ``comm.new_group([2, 5], members_only=True)``
        on ranks 2 and 5. The other ranks notice nothing, no order among the collectives of this communicator is kept,
        and a member that does not come is an error of this call: this communicator can still be used. Several threads
        can make groups at a time, also of the same ranks if each group has a tag of its own.

        Args:
            ranks: the members, the same list on every rank.
            tag: with ``members_only``: which group of these ranks it is, an integer or a string, the same on all of
                them. The k-th group of a list of ranks and a tag is the k-th on all members; ``None`` is a tag, too.
            members_only: the members make the call, and no other rank.
            timeout: with ``members_only``: the seconds that members may be late; by default that of this communicator.

        Returns:
            The communicator on members, ``None`` on others. It inherits the timeout of this one.

        Raises:
            ValueError: the list is empty, names a rank twice, one that does not exist, or, with ``members_only``, does
                not name this one.
            MismatchError: ranks passed different lists.
            DeadlineError: with ``members_only``: a member did not come in time; ``peer`` is the first one. It may come
                later and meet another call like this one. No other member has made the group either.
            PeerError: with ``members_only``: a member has died, or closed this communicator, before the group was made.
            MemoryError: see ``split``.
        """
        parent = cast("Communicator", self)
        if members_only:
            return groups.new_group_of_members(parent, ranks, tag, timeout)
        for name, value in (("tag", tag), ("timeout", timeout)):
            if value is not None:
                raise ValueError(f"{name} is {value!r}, which is for members_only=True; leave it out")
        return groups.new_group(parent, ranks)

    def shrink(self, timeout: float | None = None) -> Communicator:
        """A communicator of the surviving ranks after this one has failed, numbered in their old order.

        Every survivor calls it, once. No process is restarted; the new communicator uses the connections and the memory
        of this one. Ranks known to be gone (their process has ended, or has closed its connections or the communicator)
        are left out at once. Ranks that do not call in time may be stopped or cut off; they are left out if a strict
        majority of the ranks of this communicator calls, and get a PeerError when they call later. A rank that dies
        meanwhile is left out as well. When no rank is missing, all are kept: use it after a MismatchError, too, or on
        a communicator that has not failed, where it works like ``dup``.

        Args:
            timeout: seconds that a rank may be silent; by default that of this communicator.

        Raises:
            DeadlineError: too many ranks are silent for the others to go on; ``peer`` is the lowest of them.
            PeerError: the other ranks continued without this one.
            CollectivesError: this communicator was shrunk before, or the host has no room for another one.
            ClosedError: ``close`` was called on this communicator before.
        """
        return shrink.shrink(cast("Communicator", self), timeout)
