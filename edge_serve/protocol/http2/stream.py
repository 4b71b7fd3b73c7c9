"""One stream of a connection: its windows and state, and the events that the connection reports to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from edge_serve.messages.tensors import Buffer

if TYPE_CHECKING:
    from edge_serve.protocol.http2.streams import StreamTable

#: receive window of a new stream, in bytes
INITIAL_WINDOW = 1024 * 1024


class Chunk:
    """Bytes of a stream that wait for the client's windows.

    Attributes:
        left: bytes in `parts`; size: bytes at first.
        tail: the trailers that follow, if these are the stream's last bytes.
        told: `send` has reported that the bytes wait, so `on_taken` is due when they are sent.
    """

    __slots__ = ("left", "on_sent", "parts", "size", "tail", "told")

    def __init__(self, parts: Sequence[Buffer], size: int, on_sent: Callable[[], None] | None) -> None:
        self.parts = deque([memoryview(part).cast("B") for part in parts if len(part)])
        self.left = self.size = size
        self.tail = b""
        self.told = False
        self.on_sent = on_sent


class Http2Stream:
    """A request and its answer. Subclasses answer it.

    Attributes:
        ended: the client has sent the whole request.
        closed: the whole answer is sent or queued for the kernel, or the stream was reset, or the connection is closed.
        receivable: bytes that the client may still send; sendable: bytes that it still accepts. A change of settings
            can make `sendable` negative.
        due: bytes of the request that are missing by `content-length`; -1 = the head has none.
        queue: messages that wait for `sendable`; None = no message waits.
    """

    __slots__ = ("closed", "due", "ended", "id", "queue", "receivable", "sendable", "table")

    def __init__(self, table: StreamTable, stream_id: int, due: int = -1) -> None:
        self.table = table
        self.id = stream_id
        self.ended = False
        self.closed = False
        self.receivable = INITIAL_WINDOW
        self.sendable = table.sender.initial
        self.due = due
        self.queue: deque[Chunk] | None = None

    # Events from the connection. They may raise StreamFault and ConnectionFault only.

    def on_open(self) -> None:
        """Handle that the stream is in the connection's table, and may be answered."""

    def on_data(self, data: bytes, start: int, stop: int) -> None:
        """Handle bytes of the request: `data[start:stop]`, never empty."""

    def place(self, size: int) -> memoryview | None:
        """Return memory for at most `size` next bytes of the request; None = pass them to `on_data`."""

    def on_placed(self, size: int) -> None:
        """Handle `size` bytes that were received into the memory of `place`."""

    def on_end(self) -> None:
        """Handle the end of the request."""

    def on_gone(self) -> None:
        """Handle that the stream was reset, or its connection closed."""

    def on_taken(self, size: int) -> None:
        """Handle that a queued message of `size` bytes is sent."""

    # Requests of the application.

    def widen(self, size: int) -> None:
        """Enlarge the receive window to at least `size` bytes."""
        if size > self.receivable and not self.ended and not self.closed:
            self.table.widen(self, size - self.receivable)

    def replenish(self) -> None:
        """Reopen the receive window when at most half of it is left."""
        if self.receivable <= INITIAL_WINDOW // 2:
            self.widen(INITIAL_WINDOW)
