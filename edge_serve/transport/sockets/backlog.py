"""Flow control of a response stream: when unread bytes pause its sender, and when the sender resumes."""

from __future__ import annotations

#: unread bytes above which the stream is paused; the connection has `HttpLimits.unsent` more
HOLD_ABOVE = 1024 * 1024
#: unread bytes at which the stream resumes: enough for the client until the model's next response
GO_ON_BELOW = 256 * 1024
#: unread bytes above which a stream ends whose sender cannot be paused
MAX_UNREAD = 16 * 1024 * 1024
#: memory that a waiting event takes besides its bytes
_EVENT_BYTES = 48


class Backlog:
    """Counts the bytes of the events that wait for one client.

    Attributes:
        held: the sender is paused; set by the caller, which knows whether the sender could be paused.
    """

    __slots__ = ("_bytes", "held")

    def __init__(self) -> None:
        self._bytes = 0
        self.held = False

    def add(self, size: int) -> None:
        """Add an event of `size` bytes."""
        self._bytes += size + _EVENT_BYTES

    def take(self, size: int) -> None:
        """Remove an event of `size` bytes, which the connection has taken."""
        self._bytes -= size + _EVENT_BYTES

    def must_hold(self) -> bool:
        """Return whether to pause the sender now."""
        return not self.held and self._bytes > HOLD_ABOVE

    def may_go_on(self) -> bool:
        """Return whether to resume the sender now."""
        return self.held and self._bytes <= GO_ON_BELOW

    def is_too_much(self) -> bool:
        """Return whether to end the stream, because its sender could not be paused.

        A paused stream may exceed the limit by the responses that were on their way.
        """
        return not self.held and self._bytes > MAX_UNREAD
