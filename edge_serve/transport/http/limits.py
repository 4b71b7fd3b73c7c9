"""What one HTTP server gives to its clients, at most."""

from __future__ import annotations

from dataclasses import dataclass

from edge_serve.protocol.http1.head import MessageLimits


@dataclass(frozen=True, slots=True)
class HttpLimits(MessageLimits):
    """Limits of messages (see `MessageLimits`) and of connections. Times are seconds.

    Attributes:
        connections: open at once; a further one takes the place of an idle one, or is told 503 and closed.
        pipelined: requests of one connection that wait for their answers; beyond it nothing is read from it.
        unsent: bytes waiting for a slow reader; beyond it nothing is read from it and `Exchange.write` says False.
        receive_buffer: bytes of the buffer that all connections share. A large body is received straight into its
            place except for what came in this buffer together with the head.
        idle_timeout: between requests.
        head_timeout: from the first byte of a head to its last; and from the start of a connection to its first byte.
        body_timeout: in which at least 1 KiB more of a body must arrive.
        body_rate: bytes a second below which a sender loses its memory while others wait for it; 0 = none.
        memory_wait: for which a request may wait for memory.
        write_timeout: in which the client must take at least a byte of what waits for it.
        handshake_timeout: from the start of a connection to the end of its TLS handshake.
        linger_timeout: for which bytes are thrown away after the last reply, so that the client gets to read it.
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
        """How often timeouts are looked at: they end at most two intervals late."""
        shortest = min(self.head_timeout, self.body_timeout, self.write_timeout, self.linger_timeout, self.memory_wait)
        return min(1.0, max(0.01, min(shortest, self.idle_timeout) / 4))
