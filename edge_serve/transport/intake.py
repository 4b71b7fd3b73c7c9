"""What lets the bodies of one connection in: first the application is asked, then memory is claimed, then placed."""

from __future__ import annotations

from typing import Protocol

from edge_serve.errors import EdgeServeError
from edge_serve.messages.infer import Lease
from edge_serve.protocol.http1 import Head
from edge_serve.protocol.http1_reader import NotYet
from edge_serve.transport.body_memory import BodyMemory, Claim, ClaimedLease
from edge_serve.transport.exchange import Application


class Line(Protocol):
    """What this needs of its connection."""

    def admit(self) -> None:
        """The body that had to wait may be read now."""

    def evict(self, error: EdgeServeError) -> None:
        """The body that is being read must go."""


class Intake:
    """Owned by one connection.

    Attributes:
        claim: of the body that is being read, or waits.
        waits: there is no memory yet for the body of the request that is next.
    """

    __slots__ = ("_application", "_line", "_memory", "claim", "waits")

    def __init__(self, application: Application, memory: BodyMemory, line: Line) -> None:
        self._application = application
        self._memory = memory
        self._line: Line | None = line
        self.claim: Claim | None = None
        self.waits = False

    def place(self, head: Head, length: int) -> Lease | None:
        """See RequestReader.

        Raises:
            NotYet: the body must wait; the connection is told when it need not.
            EdgeServeError: the body is not welcome.
        """
        claim = self.claim
        if claim is None:
            self._application.check(head, length)
            claim = self.claim = self._memory.claim(length, self._admitted)
        self.waits = not claim.granted
        if self.waits:
            raise NotYet
        lease = self._application.place(head, length)
        return None if lease is None else ClaimedLease(lease, claim)

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

    def drop(self) -> None:
        """What was being read is forgotten."""
        claim, self.claim, self.waits = self.claim, None, False
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
