"""The limits of an HTTP server, and the objects that its connections share."""

from __future__ import annotations

import asyncio
import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edge_serve.protocol.http1.head import HeadParser, MessageLimits
from edge_serve.records import slotted
from edge_serve.transport.door.door import ConnectionLimits, DoorCounters
from edge_serve.transport.door.shared_limits import SharedLimits

if TYPE_CHECKING:
    from edge_serve.transport.http.connection import HttpConnection


@dataclass(frozen=True, slots=True)
class HttpLimits(MessageLimits, ConnectionLimits):
    """Limits of messages, of connections, and of HTTP connections. Times are seconds.

    Attributes:
        pipelined: unanswered requests of one connection; beyond it the server reads nothing from it.
        idle_timeout: between requests.
        head_timeout: from the first byte of a head to its last; and from the start of a connection to its first byte.
        body_timeout: in which at least 1 KiB more of a body must arrive.
    """

    pipelined: int = 16
    idle_timeout: float = 300.0
    head_timeout: float = 20.0
    body_timeout: float = 30.0

    def sweep_interval(self) -> float:
        """Return the seconds between two checks of the timeouts, which are at most two intervals late."""
        shortest = min(self.head_timeout, self.body_timeout, self.write_timeout, self.linger_timeout, self.memory_wait)
        return min(1.0, max(0.01, min(shortest, self.idle_timeout) / 4))


class HttpWait(enum.IntEnum):
    """Reasons for which a connection waits, each with its timeout."""

    FRESH = 0
    IDLE = 1
    HEAD = 2
    BODY = 3
    ANSWER = 4
    WRITE = 5
    LINGER = 6


@slotted
class HttpCounters(DoorCounters):
    """Counters of an HTTP door: those of every door, and requests by status."""

    requests: dict[int, int] = field(default_factory=dict)


@slotted
class HttpDoorState:
    """Objects that all connections of a server share.

    Attributes:
        gone: called with each connection that is closed.
        now_ns: the clock, while traces need the start time of each request; else None.
        view: the buffer that all connections receive into.
    """

    loop: asyncio.AbstractEventLoop
    limits: HttpLimits
    sharing: SharedLimits
    counters: HttpCounters
    gone: Callable[[HttpConnection], None]
    now_ns: Callable[[], int] | None = None
    parser: HeadParser = field(init=False)
    timeouts: dict[HttpWait, float] = field(init=False)
    buffer: bytearray = field(init=False)
    view: memoryview = field(init=False)

    def __post_init__(self) -> None:
        limits = self.limits
        self.parser = HeadParser(limits)
        self.timeouts = {
            HttpWait.FRESH: limits.head_timeout,
            HttpWait.IDLE: limits.idle_timeout,
            HttpWait.HEAD: limits.head_timeout,
            HttpWait.BODY: limits.body_timeout,
            HttpWait.ANSWER: math.inf,
            HttpWait.WRITE: limits.write_timeout,
            HttpWait.LINGER: limits.linger_timeout,
        }
        self.buffer = bytearray(limits.receive_buffer)
        self.view = memoryview(self.buffer)
