"""Admission of the request bodies of one connection.

A body passes three steps: the application checks it, it claims a part of the memory budget, and it gets its memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from edge_serve.aio.bulk_copy import MOST_AT_ONCE, move, work
from edge_serve.errors import EdgeServeError
from edge_serve.messages.infer import Lease, Room
from edge_serve.messages.tensors import Buffer
from edge_serve.protocol.http1.head import RequestHead
from edge_serve.protocol.http1.reader import NeedMemory
from edge_serve.transport.door.body_memory import BodyMemory, Claim, ClaimedLease
from edge_serve.transport.door.exchange import Application


class AdmittedConnection(Protocol):
    """The connection, as its `BodyAdmission` sees it."""

    def admit(self) -> None:
        """Read the body that had to wait for memory."""

    def evict(self, error: EdgeServeError) -> None:
        """Refuse the body that is being read."""


class BodyAdmission:
    """Admits the bodies of one connection, which owns this object.

    Attributes:
        claim: of the body that is being read, or waits for memory.
    """

    __slots__ = ("_application", "_connection", "_memory", "_room", "claim")

    def __init__(self, application: Application, memory: BodyMemory, connection: AdmittedConnection) -> None:
        self._application = application
        self._memory = memory
        self._connection: AdmittedConnection | None = connection
        #: of the next body, while the memory is being prepared
        self._room: Room | None = None
        self.claim: Claim | None = None

    @property
    def waits(self) -> bool:
        """Whether there is no memory yet for the body of the next request."""
        claim, room = self.claim, self._room
        return claim is not None and (not claim.granted or (room is not None and not room.is_ready))

    def place(self, head: RequestHead, length: int) -> Lease | None:
        """Return memory for a body, or None for ordinary memory. See RequestReader.

        Raises:
            NeedMemory: the body must wait; `admit` of the connection is called when there is memory.
            EdgeServeError: the body is refused.
        """
        claim = self.claim
        if claim is None:
            self._application.check(head, length)
            claim = self.claim = self._memory.claim(length, self._admitted)
        if not claim.granted:
            raise NeedMemory
        room = self._application.place(head, length) if self._room is None else self._room
        if room is None:
            return None
        if not room.is_ready:
            self._room = room
            room.when_ready(self._admitted)
            raise NeedMemory
        self._room = None
        if room.error is not None:
            room.release()
            raise room.error
        return ClaimedLease(room, claim)

    def grow(self, total: int) -> int:
        """Claim memory for a chunked body. See RequestReader."""
        if self.claim is None:
            self.claim = self._memory.claim_growing(self._evicted)
        return self.claim.grow(total)

    def hand_over(self, lease: Lease | None) -> Claim | None:
        """End the admission of a complete body. Its lease owns its claim; without a lease the claim is returned."""
        claim, self.claim = self.claim, None
        if claim is None:
            return None
        claim.settle()
        return claim if lease is None else None

    def move(self, head: RequestHead, body: Buffer, done: Callable[[Lease | None], None]) -> bool:
        """Move a large chunked body to the model's tensor memory, if it has any.

        Args:
            done: called with the memory, or with None if there is none and the body stays where it is. This may be
                before `move` returns.

        Returns:
            False if the body is small, or stays where it is; `done` will not be called.
        """
        if len(body) <= MOST_AT_ONCE:
            return False
        try:
            room = self._application.place(head, len(body))
        except EdgeServeError:  # the handling of the request raises it again
            return False
        if room is None:
            return False

        def ready() -> None:
            if room.error is not None:
                on_moved(room.error)
            else:
                work(len(body), partial(move, room.view[: len(body)], body), on_moved)

        def on_moved(error: Exception | None) -> None:
            if error is not None:
                room.release()
            done(room if error is None else None)

        room.when_ready(ready)
        return True

    def discard(self) -> None:
        """Release the claim and the memory of the body that was being read."""
        claim, self.claim = self.claim, None
        room, self._room = self._room, None
        if room is not None:
            room.release()
        if claim is not None:
            claim.release()

    def close(self) -> None:
        """Release all memory: the connection is closed."""
        self.discard()
        self._connection = None

    def _admitted(self) -> None:
        if self._connection is not None:
            self._connection.admit()

    def _evicted(self, error: EdgeServeError) -> None:
        if self._connection is not None:
            self._connection.evict(error)
