"""Limits of a gRPC door, and the state that its connections share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edge_serve.clock import Clock
from edge_serve.transport.door.shared_limits import SharedLimits
from edge_serve.transport.grpc.keepalive import KeepaliveSettings

if TYPE_CHECKING:
    from edge_serve.transport.grpc.connection import GrpcConnection


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """Limits of one gRPC door for its clients. Times are in seconds.

    Attributes:
        connections: open at once; a further one is closed.
        unsent: bytes that wait for a slow reader, beyond which its streams wait.
        stalled: bytes that wait for a slow reader, beyond which its requests are not read.
        receive_buffer: bytes of the buffer that all connections share.
        greeting_timeout: from the connection to the client's first frame.
        message_timeout: in which at least 1 KiB more of a message must arrive.
        body_rate: bytes a second below which a message loses its memory while others wait for memory; 0 = none.
        memory_wait: for which a message may wait for memory.
        write_timeout: in which the client must read at least one byte of its answers.
        handshake_timeout: from the start of a connection to the end of its TLS handshake.
        leave_timeout: in which a client must answer the PING that follows GOAWAY.
        linger_timeout: for which received bytes are discarded before closing, so that the client can read GOAWAY.
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


@dataclass(slots=True)
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
