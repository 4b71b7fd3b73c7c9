"""Flow control of a response stream: when unread bytes pause its sender, and when the sender resumes."""

from __future__ import annotations

#: unread bytes above which the stream is paused; the connection has `HttpLimits.unsent` more
PAUSE_ABOVE = 1024 * 1024
#: unread bytes at which the stream resumes: enough for the client until the model's next response
RESUME_BELOW = 256 * 1024
#: unread bytes above which a stream ends whose sender cannot be paused
MAX_UNREAD = 16 * 1024 * 1024
#: memory that a waiting event takes besides its bytes
_EVENT_BYTES = 256


class Backlog:
    """Counts the bytes of the events that wait for one client.

    Attributes:
        paused: the senders were paused, as far as they can be, and are to be resumed.
    """

    __slots__ = ("_all_wait", "_bytes", "paused")

    def __init__(self) -> None:
        self._bytes = 0
        self._all_wait = False
        self.paused = False

    def add(self, size: int) -> None:
        """Add an event of `size` bytes."""
        self._bytes += size + _EVENT_BYTES

    def take(self, size: int, events: int = 1) -> None:
        """Remove an event of `size` bytes, which the connection has taken; with 0 events, a part of one."""
        self._bytes -= size + events * _EVENT_BYTES

    def must_pause(self) -> bool:
        """Return whether to pause the senders now, and call `pause` then.

        True again for each event while one of them cannot be paused, and above MAX_UNREAD in any case: a request that
        could be paused while it waited for a swap may have got a version that cannot be paused.
        """
        return self._bytes > PAUSE_ABOVE and not (self._all_wait and self._bytes <= MAX_UNREAD)

    def pause(self, all_wait: bool) -> None:
        """Note that the senders were paused, and whether that was possible for all of them."""
        self.paused, self._all_wait = True, all_wait

    def resume(self) -> bool:
        """Return whether to resume the senders now. If so, they do not count as paused any more."""
        if not self.paused or self._bytes > RESUME_BELOW:
            return False
        self.paused = self._all_wait = False
        return True

    def is_too_much(self) -> bool:
        """Return whether to end the stream, because a sender could not be paused.

        A paused stream may exceed the limit by the responses that were on their way.
        """
        return not self._all_wait and self._bytes > MAX_UNREAD
