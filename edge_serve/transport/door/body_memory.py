"""Memory for the bodies of requests that are on their way in, shared by all connections of all doors.

A body whose length is known is admitted whole, or its connection is not read until it is: oldest first, so nobody
starves. A chunked body grows by steps; when there is no room for a step, the youngest of those is refused. Nothing here
knows sockets or time: connections ask, and are told through what they gave.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from edge_serve.errors import EdgeServeError, Overloaded
from edge_serve.messages.infer import Lease
from edge_serve.protocol.http1.errors import ContentTooLarge, RequestTimeout

#: what a chunked body asks for at once
STEP = 1 << 20

#: bytes that bodies which wait may always have sent already
_EARLY = 8 << 20

#: a sender's speed is measured over so many seconds
_WINDOW_NS = 5_000_000_000

#: seconds after which a refused client may try again
_RETRY_AFTER = 5

_NONE_NOW = "there is no memory for this body now, try again later"


class Claim:
    """The part of one body.

    Attributes:
        size: bytes that it holds, or waits for.
        granted: it holds them.
    """

    __slots__ = ("_age", "_early", "_evict", "_memory", "_wake", "_window", "granted", "size")

    def __init__(
        self, memory: BodyMemory, age: int, size: int, wake: Callable[[], None] | None, evict: Evict | None
    ) -> None:
        self._early = 0
        #: when this began to be measured, and how much had been received then
        self._window: tuple[int, int] | None = None
        self._memory = memory
        self._age = age
        self._wake = wake
        self._evict = evict
        self.size = size
        self.granted = False

    def grow(self, total: int, step: int = STEP) -> int:
        """Room for a body of `total` bytes in steps; how many bytes it may have before it must ask again.

        Raises:
            Overloaded: there is none, and no younger chunked body. ContentTooLarge: there never will be.
        """
        return self._memory._grow(self, -(-total // step) * step, total)

    def overdue(self, received: int, now_ns: int, rate: int, wait: float) -> EdgeServeError | None:
        """What a client is told whose body has waited too long, or has kept others waiting; None: go on.

        Args:
            received: bytes that have come, a number that grows with them.
            now_ns: to be asked now and then while the body is not complete.
            rate: bytes a second that a sender should reach while others wait; 0 = none.
            wait: seconds that it may wait.
        """
        memory = self._memory
        if self.granted and not (rate and memory.is_short):
            self._window = None
            return None
        if self._window is None:
            self._window = (now_ns, received)
        since, before = self._window
        waited = now_ns - since
        if not self.granted:
            return memory._waited(wait) if waited >= wait * 1e9 else None
        if waited < _WINDOW_NS:
            return None
        self._window = (now_ns, received)
        return memory._slow(rate) if (received - before) * 1e9 < rate * waited else None

    def settle(self) -> None:
        """The body is complete: it grows no more, and is not refused any more."""
        self._memory._growing.pop(self._age, None)

    def release(self) -> None:
        """The memory is free again, or is not waited for any more. Once more does nothing."""
        self._memory._release(self)


Evict = Callable[[Overloaded], None]


class Releasable(Protocol):
    """A claim, or a lease of one."""

    def release(self) -> None: ...


class ClaimedLease:
    """Tensor memory that releases a claim with itself."""

    __slots__ = ("_claim", "_lease", "arena", "offset", "view")

    def __init__(self, lease: Lease, claim: Releasable) -> None:
        self._lease = lease
        self._claim = claim
        self.view = lease.view
        self.offset = lease.offset
        self.arena = lease.arena

    def release(self) -> None:
        """See Lease."""
        self._lease.release()
        self._claim.release()


class ClaimOnly:
    """The lease of a body that lies in ordinary memory: it releases the body's claim, and has no tensor memory."""

    __slots__ = ("_claim",)

    view = memoryview(b"")
    offset = -1
    arena = None

    def __init__(self, claim: Claim) -> None:
        self._claim = claim

    def release(self) -> None:
        """See Lease."""
        self._claim.release()


class BodyMemory:
    """The memory budget that all request bodies share.

    Args:
        limit: bytes for all bodies together.

    Attributes:
        used: bytes claimed.
        refused: bodies that were refused, by reason.
    """

    def __init__(self, limit: int = 1 << 62) -> None:
        self.limit = limit
        self.used = 0
        self.refused = {"too_large": 0, "waited": 0, "evicted": 0, "slow": 0}
        #: bytes that bodies which wait may have sent all the same
        self._early = 0
        self._waiting: deque[Claim] = deque()
        #: chunked bodies that are not complete, by age
        self._growing: dict[int, Claim] = {}
        self._ages = 0

    @property
    def is_short(self) -> bool:
        """Somebody waits: senders must be quick now."""
        return bool(self._waiting)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def claim(self, size: int, wake: Callable[[], None], early: int = 0) -> Claim:
        """Memory for a body of known length; not `granted`: `wake` is called when it is.

        Args:
            early: bytes that may come before it is granted, where their sender cannot be kept from it. All bodies that
                wait may have a quarter of the limit for these, and 8 MiB at least.

        Raises:
            ContentTooLarge: there never will be enough. Overloaded: too much comes early.
        """
        if size > self.limit:
            raise self._too_large(size)
        claim = self._new(size, wake, None)
        if self._waiting or self.used + size > self.limit:
            if early and self._early + early > max(self.limit // 4, _EARLY):
                self.refused["evicted"] += 1
                raise Overloaded(_NONE_NOW, _RETRY_AFTER)
            claim._early = early
            self._early += early
            self._waiting.append(claim)
        else:
            self._take(claim)
        return claim

    def growing(self, evict: Evict) -> Claim:
        """A chunked body, empty yet; `evict` is called with the error when it must make room for an older one."""
        claim = self._new(0, None, evict)
        claim.granted = True
        self._growing[claim._age] = claim
        return claim

    def _new(self, size: int, wake: Callable[[], None] | None, evict: Evict | None) -> Claim:
        self._ages += 1
        return Claim(self, self._ages, size, wake, evict)

    def _take(self, claim: Claim) -> None:
        self.used += claim.size
        claim.granted = True
        claim._window = None
        self._forget_early(claim)

    def _forget_early(self, claim: Claim) -> None:
        self._early -= claim._early
        claim._early = 0

    def _waited(self, seconds: float) -> Overloaded:
        self.refused["waited"] += 1
        return Overloaded(f"there was no memory for this body for {seconds:g} seconds, try again later", _RETRY_AFTER)

    def _slow(self, rate: int) -> RequestTimeout:
        self.refused["slow"] += 1
        return RequestTimeout(f"others wait for memory, and this came slower than {rate} bytes a second")

    def _too_large(self, size: int) -> ContentTooLarge:
        self.refused["too_large"] += 1
        return ContentTooLarge(
            f"a body of {size} bytes is larger than the {self.limit} bytes that all bodies may have together "
            "(--request-memory-bytes)"
        )

    def _grow(self, claim: Claim, size: int, total: int) -> int:
        if total > self.limit:
            raise self._too_large(total)
        size = min(size, self.limit)
        while self.used + size - claim.size > self.limit:
            youngest = self._growing[next(reversed(self._growing))]
            self.refused["evicted"] += 1
            error = Overloaded(_NONE_NOW, _RETRY_AFTER)
            if youngest is claim:
                raise error
            del self._growing[youngest._age]
            assert youngest._evict is not None, "growing claims have it"
            self._give(youngest)
            youngest._evict(error)
        self.used += size - claim.size
        claim.size = size
        return size

    def _release(self, claim: Claim) -> None:
        self._growing.pop(claim._age, None)
        if claim.granted:
            self._give(claim)
            self._grant()
        elif claim.size:
            claim.size = 0
            self._forget_early(claim)
            self._waiting.remove(claim)
            self._grant()  # it may have been the first, and too large for what is free

    def _give(self, claim: Claim) -> None:
        self.used -= claim.size
        claim.size = 0

    def _grant(self) -> None:
        waiting = self._waiting
        while waiting and self.used + waiting[0].size <= self.limit:
            claim = waiting.popleft()
            self._take(claim)
            assert claim._wake is not None, "waiting claims have it"
            claim._wake()
