"""What all gRPC connections of a door use together, and what they are given at most."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edge_serve.clock import Clock
from edge_serve.transport.door.shared_limits import SharedLimits
from edge_serve.transport.grpc.keepalive import KeepaliveSettings

if TYPE_CHECKING:
    from edge_serve.transport.grpc.connection import GrpcConnection


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """What one gRPC door gives to its clients, at most. Times are seconds.

    Attributes:
        connections: open at once; a further one is closed.
        unsent: bytes waiting for a slow reader, beyond which its streams wait.
        stalled: bytes, beyond which nothing is read from it: answers to what it asks for would be too many.
        receive_buffer: bytes of the buffer that all connections share.
        greeting_timeout: from the connection to the client's first frame.
        message_timeout: in which at least 1 KiB more of a message must arrive.
        body_rate: bytes a second below which a sender loses its memory while others wait for it; 0 = none.
        memory_wait: for which a message may wait for memory.
        write_timeout: in which the client must take at least a byte of what waits for it.
        handshake_timeout: from the start of a connection to the end of its TLS handshake.
        leave_timeout: in which a client must notice that it is asked to leave.
        linger_timeout: for which bytes are thrown away at the end, so that the client gets to read why.
    """

    connections: int = 4096
    unsent: int = 256 * 1024
    stalled: int = 1024 * 1024
    receive_buffer: int = 64 * 1024
    greeting_timeout: float = 20.0
    message_timeout: float = 30.0
    body_rate: int = 64 * 1024
    memory_wait: float = 30.0
    write_timeout: float = 60.0
    handshake_timeout: float = 10.0
    leave_timeout: float = 1.0
    linger_timeout: float = 3.0


class GrpcDoorState:
    """What all connections of a door use together.

    Args:
        gone: told of each connection that is closed.
    """

    __slots__ = ("clock", "gone", "inflating", "keepalive", "limits", "loop", "max_message", "sharing", "view")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        limits: GrpcLimits,
        keepalive: KeepaliveSettings,
        max_message: int,
        sharing: SharedLimits,
        gone: Callable[[GrpcConnection], None],
    ) -> None:
        self.loop = loop
        self.clock = clock
        self.limits = limits
        self.keepalive = keepalive
        self.max_message = max_message
        self.sharing = sharing
        self.gone = gone
        #: held while a large message is inflated
        self.inflating = asyncio.Lock()
        self.view = memoryview(bytearray(limits.receive_buffer))
