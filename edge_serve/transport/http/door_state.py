"""The states of a connection, and what all connections of a server use together."""

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
    """A connection only ever moves down this list."""

    OPEN = 0
    #: no further request is read: the last one said so, or was refused, or the server is draining
    LAST = 1
    #: everything is said; bytes are thrown away until the client closes or `linger_timeout` is over, because closing
    #: with unread bytes would reset the connection and take the reply with it (RFC 9112 9.6)
    LINGER = 2
    CLOSED = 3


class HttpWait(enum.IntEnum):
    """What a connection is waiting for, each with its timeout."""

    FRESH = 0
    IDLE = 1
    HEAD = 2
    BODY = 3
    ANSWER = 4
    WRITE = 5
    LINGER = 6


@dataclass(slots=True)
class HttpCounters(DoorCounters):
    """And requests, by status."""

    requests: dict[int, int] = field(default_factory=dict)


class HttpDoorState:
    """What all connections of a server use together.

    Args:
        gone: told of each connection that is closed.

    Attributes:
        now_ns: the clock when it is asked for that the begin of each request be noted, for traces; None = it is not.
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
