"""Limits of a gRPC door, and the state that its connections share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edge_serve.clock import Clock
from edge_serve.records import slotted
from edge_serve.transport.door.door import ConnectionLimits
from edge_serve.transport.door.shared_limits import SharedLimits
from edge_serve.transport.grpc.keepalive import KeepaliveSettings

if TYPE_CHECKING:
    from edge_serve.transport.grpc.connection import GrpcConnection


@dataclass(frozen=True, slots=True)
class GrpcLimits(ConnectionLimits):
    """Limits of connections, and of gRPC connections. Times are seconds.

    Attributes:
        stalled: bytes that wait for a slow reader, beyond which its requests are not read.
        greeting_timeout: from the connection to the client's first frame.
        message_timeout: in which at least 1 KiB more of a message must arrive.
        leave_timeout: in which a client must answer the PING that follows GOAWAY.
    """

    stalled: int = 1024 * 1024
    greeting_timeout: float = 20.0
    message_timeout: float = 30.0
    leave_timeout: float = 1.0


@slotted
class GrpcDoorState:
    """State that all connections of a door share.

    Attributes:
        gone: called with each connection that is closed.
        inflating: acquired while a large message is inflated.
        view: the buffer that all connections receive into.
    """

    loop: asyncio.AbstractEventLoop
    clock: Clock
    limits: GrpcLimits
    keepalive: KeepaliveSettings
    max_message: int
    sharing: SharedLimits
    gone: Callable[[GrpcConnection], None]
    inflating: asyncio.Lock = field(default_factory=asyncio.Lock)
    view: memoryview = field(init=False)

    def __post_init__(self) -> None:
        self.view = memoryview(bytearray(self.limits.receive_buffer))
