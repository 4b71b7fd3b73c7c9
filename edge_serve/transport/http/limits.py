"""Limits of one HTTP server."""

from __future__ import annotations

from dataclasses import dataclass

from edge_serve.protocol.http1.head import MessageLimits


@dataclass(frozen=True, slots=True)
class HttpLimits(MessageLimits):
    """Limits of messages (see `MessageLimits`) and of connections. Times are seconds.

    Attributes:
        connections: open at once. A further one replaces an idle one, or is answered 503 and closed.
        pipelined: unanswered requests of one connection; beyond it the server reads nothing from it.
        unsent: unsent bytes of one connection; beyond it the server reads nothing and `Exchange.write` returns False.
        receive_buffer: bytes of the buffer that all connections share. A large body is received straight into its
            place, except for the bytes that arrive in this buffer together with the head.
        idle_timeout: between requests.
        head_timeout: from the first byte of a head to its last; and from the start of a connection to its first byte.
        body_timeout: in which at least 1 KiB more of a body must arrive.
        body_rate: bytes per second below which a sender is refused while other requests wait for memory; 0 = none.
        memory_wait: for which a request may wait for memory.
        write_timeout: in which the client must read at least one more byte.
        handshake_timeout: from the start of a connection to the end of its TLS handshake.
        linger_timeout: for which received bytes are discarded after the last reply, so that the client can read it.
    """

    connections: int = 4096
    pipelined: int = 16
    unsent: int = 256 * 1024
    receive_buffer: int = 64 * 1024
    idle_timeout: float = 300.0
    head_timeout: float = 20.0
    body_timeout: float = 30.0
    body_rate: int = 64 * 1024
    memory_wait: float = 30.0
    write_timeout: float = 60.0
    handshake_timeout: float = 10.0
    linger_timeout: float = 3.0

    def sweep_interval(self) -> float:
        """Return the seconds between two checks of the timeouts, which are at most two intervals late."""
        shortest = min(self.head_timeout, self.body_timeout, self.write_timeout, self.linger_timeout, self.memory_wait)
        return min(1.0, max(0.01, min(shortest, self.idle_timeout) / 4))
