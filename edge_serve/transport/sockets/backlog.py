"""How much of a stream may wait for its client: when its sender has to stand still, and when it may go on."""

from __future__ import annotations

#: bytes that wait for a client before its stream is held; the connection has `HttpLimits.unsent` more
HOLD_ABOVE = 1024 * 1024
#: bytes that are left when it goes on: what the client reads while the news travels to the model
GO_ON_BELOW = 256 * 1024
#: bytes that wait where nobody can be held
MAX_UNREAD = 16 * 1024 * 1024
#: what a waiting event takes besides its bytes
_EVENT_BYTES = 48


class Backlog:
    """Counts the events that wait for one client.

    Attributes:
        held: the sender was told to wait; set by the caller, who knows whether that was possible.
    """

    __slots__ = ("_bytes", "held")

    def __init__(self) -> None:
        self._bytes = 0
        self.held = False

    def add(self, size: int) -> None:
        """An event of `size` bytes waits."""
        self._bytes += size + _EVENT_BYTES

    def take(self, size: int) -> None:
        """It was handed to the connection."""
        self._bytes -= size + _EVENT_BYTES

    def must_hold(self) -> bool:
        """The sender should wait from now on."""
        return not self.held and self._bytes > HOLD_ABOVE

    def may_go_on(self) -> bool:
        """The sender need not wait any more."""
        return self.held and self._bytes <= GO_ON_BELOW

    def is_too_much(self) -> bool:
        """The stream has to end, because nothing holds it. What is held may go above: responses were on their way."""
        return not self.held and self._bytes > MAX_UNREAD
