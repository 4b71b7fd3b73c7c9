"""The phases of an HTTP connection, and the objects that all connections of a server share."""

from __future__ import annotations

import asyncio
import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edge_serve.protocol.http1.head import HeadParser
from edge_serve.transport.door.door import DoorCounters
from edge_serve.transport.door.shared_limits import SharedLimits
from edge_serve.transport.http.limits import HttpLimits

if TYPE_CHECKING:
    from edge_serve.transport.http.connection import HttpConnection


class HttpPhase(enum.IntEnum):
    """Phases of a connection. It only moves down this list."""

    OPEN = 0
    #: no further request is read: the last one asked for it, or was refused, or the server is draining
    LAST = 1
    #: all answers are sent; received bytes are discarded until the client closes or `linger_timeout` is over, because
    #: closing with unread bytes would reset the connection and lose the reply (RFC 9112 9.6)
    LINGER = 2
    CLOSED = 3


class HttpWait(enum.IntEnum):
    """Reasons for which a connection waits, each with its timeout."""

    FRESH = 0
    IDLE = 1
    HEAD = 2
    BODY = 3
    ANSWER = 4
    WRITE = 5
    LINGER = 6


@dataclass(slots=True)
class HttpCounters(DoorCounters):
    """Counters of an HTTP door: those of every door, and requests by status."""

    requests: dict[int, int] = field(default_factory=dict)


class HttpDoorState:
    """Objects that all connections of a server share.

    Args:
        gone: called with each connection that is closed.

    Attributes:
        now_ns: the clock, while traces need the start time of each request; else None.
    """

    __slots__ = ("buffer", "counters", "gone", "limits", "loop", "now_ns", "parser", "sharing", "timeouts", "view")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: HttpLimits,
        sharing: SharedLimits,
        counters: HttpCounters,
        gone: Callable[[HttpConnection], None],
    ) -> None:
        self.loop = loop
        self.sharing = sharing
        self.limits = limits
        self.counters = counters
        self.gone = gone
        self.now_ns: Callable[[], int] | None = None
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
