"""Memory budget for incoming request bodies, shared by all connections of all doors.

A body of known length is admitted whole. Until then its connection is not read; of those that wait, the oldest body is
admitted first. A chunked body grows in steps and does not wait; if the budget has no room for a step, the youngest
chunked bodies are refused. This module uses no sockets and no clock: connections call it, and it calls their callbacks
when its own state is final.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from edge_serve.errors import EdgeServeError, Overloaded
from edge_serve.messages.infer import Lease
from edge_serve.protocol.http1.errors import ContentTooLarge, RequestTimeout
from edge_serve.records import entity

_log = logging.getLogger(__name__)

#: bytes by which the claim of a chunked body grows
STEP = 1 << 20

#: lower limit of the bytes that waiting bodies may send before they are admitted
_EARLY = 8 << 20

#: time over which a sender's speed is measured
_WINDOW_NS = 5_000_000_000

#: seconds after which a refused client may try again
_RETRY_AFTER = 5


class Pace:
    """The speed of one client, measured while others lack memory that it has."""

    __slots__ = ("_before", "_since_ns")

    def __init__(self, moved: int, now_ns: int) -> None:
        self._before = moved
        self._since_ns = now_ns

    def is_slow(self, moved: int, now_ns: int, rate: int, window_ns: float = _WINDOW_NS) -> bool:
        """Return whether a measurement has ended, and the client was slower than `rate` in it.

        Args:
            moved: bytes sent or received so far, by any count that grows with them.
            rate: bytes per second.
            window_ns: the duration of a measurement.
        """
        waited, size = now_ns - self._since_ns, moved - self._before
        if waited < window_ns:
            return False
        self._before, self._since_ns = moved, now_ns
        return size * 1e9 < rate * waited


@entity
class Claim:
    """The share of one body in the budget.

    Attributes:
        size: bytes that the body has, or waits for.
        granted: whether the body has them.
    """

    _memory: BodyMemory
    _age: int
    size: int
    _wake: Callable[[], None] | None
    _evict: Evict | None
    granted: bool = False
    _early: int = 0
    #: since when it waits, as far as `check_time` has seen
    _waiting_since_ns: int | None = None
    _pace: Pace | None = None

    def grow(self, total: int, step: int = STEP) -> int:
        """Claim memory for a body of `total` bytes, in steps. Return the bytes that it may have before the next call.

        Raises:
            Overloaded: there is no memory, and no younger chunked body. ContentTooLarge: there never will be.
        """
        return self._memory._grow(self, -(-total // step) * step, total)

    def check_time(self, received: int, now_ns: int, rate: int, wait: float) -> EdgeServeError | None:
        """Return the error for a body that waited too long, or arrives too slowly while others lack memory; else None.

        Called at intervals while the body is incomplete.

        Args:
            received: bytes received so far, by any count that grows with them.
            rate: bytes per second that a sender has to reach while others lack memory; 0 = no limit.
            wait: seconds for which the body may wait.
        """
        memory = self._memory
        if not self.granted:
            if self._waiting_since_ns is None:
                self._waiting_since_ns = now_ns
            return memory._refuse_waited(wait) if now_ns - self._waiting_since_ns >= wait * 1e9 else None
        if not (rate and memory.is_short(now_ns)):
            self._pace = None
            return None
        if self._pace is None:
            self._pace = Pace(received, now_ns)
        return memory._refuse_slow(rate) if self._pace.is_slow(received, now_ns, rate) else None

    def settle(self) -> None:
        """Mark the body as complete: it is no longer refused to make room for others."""
        self._memory._growing.pop(self._age, None)

    def release(self) -> None:
        """Release the memory, or stop waiting for it. A second call does nothing."""
        self._memory._release(self)


Evict = Callable[[Overloaded], None]


class Releasable(Protocol):
    """A claim, or any other resource to release together with a lease."""

    def release(self) -> None: ...


class ClaimedLease:
    """A lease of tensor memory that releases a claim together with itself."""

    __slots__ = ("_claim", "_lease", "arena", "offset", "view")

    def __init__(self, lease: Lease, claim: Releasable) -> None:
        self._lease = lease
        self._claim = claim
        self.view = lease.view
        self.offset = lease.offset
        self.arena = lease.arena

    def release(self) -> None:
        """Release the lease and the claim."""
        self._lease.release()
        self._claim.release()


class ClaimOnly:
    """The lease of a body in ordinary memory: it releases the body's claim, and has no tensor memory."""

    __slots__ = ("_claim",)

    view = memoryview(b"")
    offset = -1
    arena = None

    def __init__(self, claim: Claim) -> None:
        self._claim = claim

    def release(self) -> None:
        """Release the lease and the claim."""
        self._claim.release()


class BodyMemory:
    """The memory budget that all request bodies share.

    Args:
        limit: bytes for all bodies together.
        shortages: returns how many requests were refused so far for lack of tensor memory, which bodies need as well.

    Attributes:
        used: bytes claimed.
        refused: number of refused bodies, by reason.
    """

    def __init__(self, limit: int = 1 << 62, shortages: Callable[[], int] = lambda: 0) -> None:
        self.limit = limit
        self._shortages = shortages
        self.used = 0
        self.refused = {"too_large": 0, "waited": 0, "evicted": 0, "slow": 0}
        #: bytes that waiting bodies may send before they are admitted
        self._early = 0
        self._waiting: deque[Claim] = deque()
        #: incomplete chunked bodies, by age
        self._growing: dict[int, Claim] = {}
        self._ages = 0
        #: refusals for lack of memory that `is_short` has seen, and until when they count
        self._lacked = 0
        self._short_until_ns = 0

    def is_short(self, now_ns: int) -> bool:
        """Return whether bodies wait for memory, or were refused lately, so that slow clients are refused.

        Bodies without a length do not wait, and no request waits for tensor memory: their clients were told to try
        again.
        """
        lacked = self.refused["evicted"] + self._shortages()
        if lacked != self._lacked:
            self._lacked, self._short_until_ns = lacked, now_ns + 2 * _WINDOW_NS
        return bool(self._waiting) or now_ns < self._short_until_ns

    @property
    def waiting(self) -> int:
        """Number of bodies that wait for memory."""
        return len(self._waiting)

    def claim(self, size: int, wake: Callable[[], None], early: int = 0) -> Claim:
        """Claim memory for a body of known length; if it is not `granted` at once, `wake` is called when it is.

        Args:
            early: bytes that may arrive before the claim is granted, where the sender cannot be stopped. All waiting
                bodies together may have a quarter of the limit for them, and at least 8 MiB.

        Raises:
            ContentTooLarge: the body exceeds the budget. Overloaded: too many bytes arrive early.
        """
        if size > self.limit:
            raise self._refuse_too_large(size)
        claim = self._new(size, wake, None)
        if self._waiting or self.used + size > self.limit:
            if early and self._early + early > max(self.limit // 4, _EARLY):
                raise self.refuse()
            claim._early = early
            self._early += early
            self._waiting.append(claim)
        else:
            self._take(claim)
        return claim

    def claim_growing(self, evict: Evict) -> Claim:
        """Return a claim for a new chunked body; `evict` is called with the error when an older body needs the room."""
        claim = self._new(0, None, evict)
        claim.granted = True
        self._growing[claim._age] = claim
        return claim

    def refuse(self) -> Overloaded:
        """Count a body for which there is no memory now, and return the error to answer."""
        self.refused["evicted"] += 1
        return Overloaded("there is no memory for this body now, try again later", _RETRY_AFTER)

    def _new(self, size: int, wake: Callable[[], None] | None, evict: Evict | None) -> Claim:
        self._ages += 1
        return Claim(self, self._ages, size, wake, evict)

    def _take(self, claim: Claim) -> None:
        self.used += claim.size
        claim.granted = True
        self._release_early(claim)

    def _release_early(self, claim: Claim) -> None:
        self._early -= claim._early
        claim._early = 0

    def _refuse_waited(self, seconds: float) -> Overloaded:
        self.refused["waited"] += 1
        return Overloaded(f"there was no memory for this body for {seconds:g} seconds, try again later", _RETRY_AFTER)

    def _refuse_slow(self, rate: int) -> RequestTimeout:
        self.refused["slow"] += 1
        return RequestTimeout(
            f"upload aborted: slower than {rate} bytes/s while other requests lacked memory; send faster, or retry "
            "later"
        )

    def _refuse_too_large(self, size: int) -> ContentTooLarge:
        self.refused["too_large"] += 1
        return ContentTooLarge(
            f"a body of {size} bytes is larger than the {self.limit} bytes that all bodies may have together "
            "(--request-memory-bytes)"
        )

    def _grow(self, claim: Claim, size: int, total: int) -> int:
        if total > self.limit:
            raise self._refuse_too_large(total)
        size = min(size, self.limit)
        missing = self.used + size - claim.size - self.limit
        evicted = self._find_younger(claim, missing) if missing > 0 else []
        for one in evicted:
            del self._growing[one._age]
            self._reclaim(one)
        self.used += size - claim.size
        claim.size = size
        for one in evicted:
            assert one._evict is not None, "growing claims have it"
            try:
                one._evict(self.refuse())
            except Exception:  # the others have lost their memory too, and this body has its own
                _log.exception("refusing an evicted body failed")
        return size

    def _find_younger(self, claim: Claim, missing: int) -> list[Claim]:
        """Return the youngest chunked bodies that have `missing` bytes together.

        Raises:
            Overloaded: all that are younger than `claim` have less.
        """
        found: list[Claim] = []
        for one in reversed(self._growing.values()):
            if one is claim:
                break
            found.append(one)
            missing -= one.size
            if missing <= 0:
                return found
        raise self.refuse()

    def _release(self, claim: Claim) -> None:
        self._growing.pop(claim._age, None)
        if claim.granted:
            self._reclaim(claim)
            self._grant()
        elif claim.size:
            claim.size = 0
            self._release_early(claim)
            self._waiting.remove(claim)
            self._grant()  # others behind it may fit

    def _reclaim(self, claim: Claim) -> None:
        self.used -= claim.size
        claim.size = 0

    def _grant(self) -> None:
        waiting = self._waiting
        while waiting and self.used + waiting[0].size <= self.limit:
            claim = waiting.popleft()
            self._take(claim)
            assert claim._wake is not None, "waiting claims have it"
            claim._wake()


@entity
class ReaderPace:
    """The speed of a client that reads an answer, while others lack the tensor memory that the answer is in.

    Args:
        rate: bytes per second that the client has to reach; 0 = no limit.
        window: seconds of a measurement. A kernel takes bytes in portions of more than a megabyte, so it is long.
    """

    _memory: BodyMemory
    _rate: int
    _window: float
    _pace: Pace | None = None

    def is_slow(self, taken: int, now_ns: int, *, leased: bool) -> bool:
        """Return, and count, whether the client was slow in a measurement that has ended. Called at intervals.

        Args:
            taken: bytes that the client has taken so far, by any count that grows with them.
            leased: bytes that wait for the client are in leased memory.
        """
        memory = self._memory
        if not (leased and self._rate and memory.is_short(now_ns)):
            self._pace = None
            return False
        if self._pace is None:
            self._pace = Pace(taken, now_ns)
        slow = self._pace.is_slow(taken, now_ns, self._rate, self._window * 1e9)
        memory.refused["slow"] += slow
        return slow
