"""The bytes that a connection has not sent yet: buffers in order, of which large ones are never copied."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from edge_serve.messages.tensors import Buffer
from edge_serve.transport.sockets.client_connection import StreamSocket

#: Below this many bytes one joined `send` is cheaper than `sendmsg` with several buffers.
JOIN_BELOW = 64 * 1024

#: Buffers of one `sendmsg`; Linux takes up to 1024 (IOV_MAX).
_VECTOR = 64


#: Bytes sent in one turn of the event loop.
AT_ONCE = 1 << 20


class SendQueue:
    """Send queue of one connection.

    Attributes:
        pending: pushed bytes that the kernel has not taken.
        taken: bytes that the kernel has taken so far; write timeouts are measured on it.
    """

    __slots__ = ("_callbacks", "_parts", "_sock", "pending", "taken")

    def __init__(self, sock: StreamSocket) -> None:
        self._sock = sock
        self._parts: deque[Buffer] = deque()
        #: (value of `taken` at which the callback is due, callback), in order
        self._callbacks: deque[tuple[int, Callable[[], None]]] = deque()
        self.pending = 0
        self.taken = 0

    @property
    def is_leased(self) -> bool:
        """Whether pending buffers are in memory that is released when they are sent."""
        return bool(self._callbacks)

    def push(self, parts: Sequence[Buffer], size: int, on_sent: Callable[[], None] | None = None) -> None:
        """Append buffers with `size` bytes in all; `on_sent` is called when the kernel has taken the last of them."""
        self._parts.extend(parts)
        self.pending += size
        if on_sent is not None:
            self._callbacks.append((self.taken + self.pending, on_sent))

    def flush(self) -> None:
        """Send until the queue is empty, the kernel takes no more, or `AT_ONCE` bytes are sent.

        Callbacks that are due are called at the end. The limit keeps a fast reader from blocking the loop.

        Raises:
            OSError: the connection is broken.
        """
        end = self.taken + AT_ONCE
        while self.pending and self.taken < end:
            try:
                sent = self._send()
            except (BlockingIOError, InterruptedError):
                break
            self.taken += sent
            self.pending -= sent
        if self._callbacks:
            self._call_due(self.taken)

    def discard(self) -> None:
        """Discard all buffers and call all callbacks: the connection is closed."""
        self._parts.clear()
        self.pending = 0
        self._call_due(None)

    def _send(self) -> int:
        parts = self._parts
        if self.pending > AT_ONCE:
            sent = self._sock.sendmsg(_take_first(parts))
        elif len(parts) == 1:
            sent = self._sock.send(parts[0])
        elif self.pending < JOIN_BELOW:
            joined = b"".join(parts)
            parts.clear()
            parts.append(joined)
            sent = self._sock.send(joined)
        else:
            sent = self._sock.sendmsg(islice(parts, _VECTOR))
        if sent == self.pending:
            parts.clear()
        else:
            self._remove(sent)
        return sent

    def _remove(self, sent: int) -> None:
        parts = self._parts
        while True:
            first = memoryview(parts[0])
            if sent < first.nbytes:
                break
            sent -= first.nbytes
            parts.popleft()
        if sent:
            parts[0] = first.cast("B")[sent:]

    def _call_due(self, taken: int | None) -> None:
        callbacks = self._callbacks
        while callbacks and (taken is None or callbacks[0][0] <= taken):
            callbacks.popleft()[1]()


def _take_first(parts: Iterable[Buffer]) -> list[Buffer]:
    """Return views of the first `AT_ONCE` bytes of the parts."""
    found: list[Buffer] = []
    left = AT_ONCE
    for part in islice(parts, _VECTOR):
        view = memoryview(part).cast("B")
        found.append(view[:left])
        left -= view.nbytes
        if left <= 0:
            break
    return found
