"""What lets the bodies of one connection in: first the application is asked, then memory is claimed, then placed."""

from __future__ import annotations

from typing import Protocol

from edge_serve.errors import EdgeServeError, Overloaded
from edge_serve.messages.infer import Lease
from edge_serve.protocol.http1 import Head
from edge_serve.protocol.http1_errors import RequestTimeout
from edge_serve.protocol.http1_reader import NotYet
from edge_serve.transport.body_memory import BodyMemory, Claim, ClaimedLease
from edge_serve.transport.exchange import Application
from edge_serve.transport.http_limits import HttpLimits

#: seconds after which a refused client may try again
_RETRY_AFTER = 5

#: a sender's speed is measured over so many seconds
_WINDOW_NS = 5_000_000_000


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

    __slots__ = ("_application", "_line", "_memory", "_window", "claim", "waits")

    def __init__(self, application: Application, memory: BodyMemory, line: Line) -> None:
        self._application = application
        self._memory = memory
        self._line: Line | None = line
        self._window: tuple[int, int] | None = None
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
        claim, self.claim, self._window = self.claim, None, None
        if claim is None:
            return None
        claim.settle()
        return claim if lease is None else None

    def drop(self) -> None:
        """What was being read is forgotten."""
        claim, self.claim, self.waits, self._window = self.claim, None, False, None
        if claim is not None:
            claim.release()

    def close(self) -> None:
        """The connection has gone."""
        self.drop()
        self._line = None

    def overdue(self, received: int, now_ns: int, limits: HttpLimits) -> EdgeServeError | None:
        """What a client is told whose body has waited too long, or has kept others waiting; None: go on.

        Args:
            received: bytes of the connection so far.
            now_ns: to be asked now and then while there is a claim.
        """
        if self.waits:
            return self._waited(now_ns, limits.memory_wait)
        if not limits.body_rate or not self._memory.is_short:
            self._window = None
            return None
        since, before = self._measure(now_ns, received)
        if now_ns - since < _WINDOW_NS:
            return None
        self._window = (now_ns, received)
        if (received - before) * 1e9 >= limits.body_rate * (now_ns - since):
            return None
        self._memory.refused["slow"] += 1
        return RequestTimeout(f"others wait for memory, and this came slower than {limits.body_rate} bytes a second")

    def _waited(self, now_ns: int, limit: float) -> EdgeServeError | None:
        since, _ = self._measure(now_ns, 0)
        if now_ns - since < limit * 1e9:
            return None
        self._memory.refused["waited"] += 1
        return Overloaded(f"there was no memory for this body for {limit:g} seconds, try again later", _RETRY_AFTER)

    def _measure(self, now_ns: int, received: int) -> tuple[int, int]:
        """When this began to be measured, and how much had been received then."""
        if self._window is None:
            self._window = (now_ns, received)
        return self._window

    def _admitted(self) -> None:
        self.waits, self._window = False, None
        if self._line is not None:
            self._line.admit()

    def _evicted(self, error: EdgeServeError) -> None:
        if self._line is not None:
            self._line.evict(error)
