"""The methods of a communicator for messages between two ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from .. import _core
from .._devices import dispatch
from ..work import Work
from . import messages
from .arguments import Array, Arrays, Out
from .messages import Incoming, Received
from .options import CallKeywords, CallOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ExchangeKeywords(CallKeywords, total=False):
    """Arguments of ``sendrecv`` that do not decide about the type of its result."""

    sendtag: int
    recvtag: int


class MessageCalls(_core.Communicator):
    """The part of ``Communicator`` that sends and receives messages."""

    _rank: int
    _size: int

    @overload
    def send(
        self,
        x: Array | Sequence[Array],
        dest: int,
        tag: int = 0,
        *,
        async_op: Literal[False] = False,
        **rest: Unpack[CallKeywords],
    ) -> None: ...
    @overload
    def send(
        self,
        x: Array | Sequence[Array],
        dest: int,
        tag: int = 0,
        *,
        async_op: Literal[True],
        **rest: Unpack[CallKeywords],
    ) -> Work[None]: ...
    def send(
        self,
        x: Any,
        dest: int,
        tag: int = 0,
        *,
        async_op: bool = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> Any:
        """Sends an array, or a list of arrays of one dtype, to rank ``dest``, which calls ``recv``.

        Messages of one tag between two ranks arrive in the order of their sends; those of different tags do not wait
        for each other, nor for collectives. A short message is on its way when the call returns; a long one when the
        receiver has it.

        Args:
            x: what is sent.
            dest: a rank of this communicator. It may be this one, where it has posted the receive before
                (``recv(..., async_op=True)``), or where the send is asynchronous itself.
            tag: 0 to 2**24 - 1.
            async_op, timeout, name, stream: see ``all_reduce``.

        Raises:
            MismatchError: the receiver expects other lengths or another dtype. The communicator is then closed.
            ValueError: ``dest`` is this rank, the call is blocking, and no receive for it is posted.
        """
        return self._run_message(True, x, dest, tag, async_op, timeout, name, stream)

    @overload
    def recv(
        self, x: Arrays, source: int, tag: int = 0, *, async_op: Literal[False] = False, **rest: Unpack[CallKeywords]
    ) -> Arrays: ...
    @overload
    def recv(
        self,
        x: Arrays,
        source: None = None,
        tag: int = 0,
        *,
        async_op: Literal[False] = False,
        **rest: Unpack[CallKeywords],
    ) -> Received[Arrays]: ...
    @overload
    def recv(
        self, x: Arrays, source: int, tag: int = 0, *, async_op: Literal[True], **rest: Unpack[CallKeywords]
    ) -> Work[Arrays]: ...
    @overload
    def recv(
        self, x: Arrays, source: None = None, tag: int = 0, *, async_op: Literal[True], **rest: Unpack[CallKeywords]
    ) -> Work[Received[Arrays]]: ...
    def recv(
        self,
        x: Any,
        source: int | None = None,
        tag: int = 0,
        *,
        async_op: bool = False,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> Any:
        """Receives what rank ``source`` sends with this tag into ``x``, of the same shapes and dtype; see ``send``.

        Without ``source`` it receives the first message with this tag from any rank, this one included:

        >>> y, source = comm.recv(np.empty(3))

        Receives of one tag get messages in the order in which they were posted. So one from a given rank behind one
        from any waits until that has its message. Which of several messages that are there is the first, depends on
        when this rank noticed them.

        Args:
            x: where the message goes.
            source: a rank of this communicator, or None for any.
            tag: 0 to 2**24 - 1.
            async_op, timeout, name, stream: see ``all_reduce``.

        Returns:
            ``x`` (a new array where arrays never change, as those of JAX). Without ``source``, a
            ``collectives.Received``: that, and the rank that sent it. Of an asynchronous call, ``Work.result()`` is it.

        Raises:
            MismatchError: the sender sends other lengths or another dtype. The communicator is then closed.
            PeerError: ``source`` has left, or without ``source`` all other ranks have; or any rank has died.
            DeadlineError: no message came in time. The communicator is then closed.
        """
        return self._run_message(False, x, source, tag, async_op, timeout, name, stream)

    @overload
    def sendrecv(
        self, x: Arrays, dest: int, source: int, *, out: None = None, **rest: Unpack[ExchangeKeywords]
    ) -> Arrays: ...
    @overload
    def sendrecv(self, x: Arrays, dest: int, source: int, *, out: Out, **rest: Unpack[ExchangeKeywords]) -> Out: ...
    @overload
    def sendrecv(
        self, x: Arrays, dest: int, source: None = None, *, out: None = None, **rest: Unpack[ExchangeKeywords]
    ) -> Received[Arrays]: ...
    @overload
    def sendrecv(
        self, x: Arrays, dest: int, source: None = None, *, out: Out, **rest: Unpack[ExchangeKeywords]
    ) -> Received[Out]: ...
    def sendrecv(
        self,
        x: Any,
        dest: int,
        source: int | None = None,
        *,
        out: Any = None,
        sendtag: int = 0,
        recvtag: int = 0,
        timeout: float | None = None,
        name: str | None = None,
        stream: object = None,
    ) -> Any:
        """Sends ``x`` to rank ``dest`` while it receives from rank ``source``; returns what it received.

        Both are under way at once, so ranks that do this in a circle never wait for each other in vain:

        >>> left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        >>> halo = comm.sendrecv(edge, right, left)

        The other sides may be ``send``, ``recv`` or ``sendrecv``. For an asynchronous exchange, post a ``recv`` and a
        ``send`` with ``async_op=True``.

        Args:
            x: what is sent, an array or a list of arrays of one dtype.
            dest: the rank that it goes to; it may be this one.
            source: the rank to receive from, or None for any.
            out: where the received message goes, of its shapes and dtype; a new array like ``x`` otherwise. It may be
                ``x``, or share memory with it.
            sendtag, recvtag: of the two messages, 0 to 2**24 - 1.
            timeout, name, stream: see ``all_reduce``; they are for both.

        Returns:
            As ``recv``.

        Raises:
            MismatchError, PeerError, DeadlineError: see ``send`` and ``recv``.
        """
        options = CallOptions(False, timeout, name, stream)
        return dispatch.sendrecv(self, x, dest, source, out, sendtag, recvtag, options)

    @overload
    def probe(self, source: int | None = None, tag: int = 0, *, timeout: None = None) -> Incoming: ...
    @overload
    def probe(self, source: int | None = None, tag: int = 0, *, timeout: float) -> Incoming | None: ...
    def probe(self, source: int | None = None, tag: int = 0, *, timeout: float | None = None) -> Incoming | None:
        """Waits until a message is there that no receive has taken, and says what is known of it.

        The message stays there for ``recv``. Receives of other threads may take it first.

        >>> m = comm.probe()
        >>> x = comm.recv(np.empty(m.elements, m.dtype), m.source)

        Args:
            source: the rank that sends it, or None for any.
            tag: 0 to 2**24 - 1.
            timeout: seconds to wait; 0 only looks.

        Returns:
            A ``collectives.Incoming``: ``source``, ``tag``, ``dtype``, and the numbers of ``elements``, ``arrays`` and
            ``nbytes``. Shapes are not sent. None where nothing came in ``timeout`` seconds.

        Raises:
            DeadlineError: there is no ``timeout=``, and nothing came within that of the communicator, which can still
                be used.
            PeerError: ``source`` has left, or without ``source`` all other ranks have, and no message of theirs is
                there. Where a rank has left, the communicator can still be used.
        """
        return messages.probe(self, source, tag, timeout)

    def _general_message(self, sending: bool, x: Any, peer: Any, tag: Any, options: CallOptions) -> Any:
        """Called by the compiled ``_run_message`` for all but plain arrays, and for receives from any rank."""
        return (dispatch.send if sending else dispatch.recv)(self, x, peer, tag, options)
