"""What lets the bodies of one connection in: first the application is asked, then memory is claimed, then placed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from edge_serve.aio.bulk_copy import move, work
from edge_serve.errors import EdgeServeError
from edge_serve.messages.infer import Lease, Room
from edge_serve.messages.tensors import Buffer
from edge_serve.protocol.http1.head import RequestHead
from edge_serve.protocol.http1.reader import NeedMemory
from edge_serve.transport.door.body_memory import BodyMemory, Claim, ClaimedLease
from edge_serve.transport.door.exchange import Application


class AdmittedConnection(Protocol):
    """What this needs of its connection."""

    def admit(self) -> None:
        """The body that had to wait may be read now."""

    def evict(self, error: EdgeServeError) -> None:
        """The body that is being read must go."""


class BodyAdmission:
    """Owned by one connection.

    Attributes:
        claim: of the body that is being read, or waits.
        waits: there is no memory yet for the body of the request that is next.
    """

    __slots__ = ("_application", "_line", "_memory", "_room", "claim", "waits")

    def __init__(self, application: Application, memory: BodyMemory, line: AdmittedConnection) -> None:
        self._application = application
        self._memory = memory
        self._line: AdmittedConnection | None = line
        #: for the body that is next, while its memory is being prepared
        self._room: Room | None = None
        self.claim: Claim | None = None
        self.waits = False

    def place(self, head: RequestHead, length: int) -> Lease | None:
        """See RequestReader.

        Raises:
            NotYet: the body must wait; the connection is told when it need not.
            EdgeServeError: the body is not welcome.
        """
        claim = self.claim
        if claim is None:
            self._application.check(head, length)
            claim = self.claim = self._memory.claim(length, self._admitted)
        if self._room is None and claim.granted:
            self._room = self._application.place(head, length)
            if self._room is None:
                self.waits = False
                return None
        room = self._room
        self.waits = room is None or not room.is_ready
        if room is None or not room.is_ready:
            if room is not None:
                room.when_ready(self._admitted)
            raise NeedMemory
        self._room = None
        if room.error is not None:
            room.release()
            raise room.error
        return ClaimedLease(room, claim)

    def grow(self, total: int) -> int:
        """Room for a chunked body; see RequestReader."""
        if self.claim is None:
            self.claim = self._memory.growing(self._evicted)
        return self.claim.grow(total)

    def hand_over(self, lease: Lease | None) -> Claim | None:
        """The body is complete. Its claim goes with its lease; one without a lease is returned, the caller's now."""
        claim, self.claim = self.claim, None
        if claim is None:
            return None
        claim.settle()
        return claim if lease is None else None

    def move(self, head: RequestHead, body: Buffer, done: Callable[[Lease | None], None]) -> bool:
        """Move a large chunked body to where it will be read, if that is tensor memory.

        Args:
            done: called with the memory, or None where there is none and the body stays where it is.

        Returns:
            False: it stays, and `done` will not be called.
        """
        try:
            room = self._application.place(head, len(body))
        except EdgeServeError:  # the model will say so
            return False
        if room is None:
            return False

        def ready() -> None:
            if room.error is not None:
                moved(room.error)
            else:
                work(len(body), partial(move, room.view[: len(body)], body), moved)

        def moved(error: Exception | None) -> None:
            if error is not None:
                room.release()
            done(room if error is None else None)

        room.when_ready(ready)
        return True

    def drop(self) -> None:
        """What was being read is forgotten."""
        claim, self.claim, self.waits = self.claim, None, False
        room, self._room = self._room, None
        if room is not None:
            room.release()
        if claim is not None:
            claim.release()

    def close(self) -> None:
        """The connection has gone."""
        self.drop()
        self._line = None

    def _admitted(self) -> None:
        self.waits = False
        if self._line is not None:
            self._line.admit()

    def _evicted(self, error: EdgeServeError) -> None:
        if self._line is not None:
            self._line.evict(error)
