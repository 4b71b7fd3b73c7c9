"""One stream of a connection: what the connection knows of it, and what it tells whoever answers the request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from edge_serve.messages.tensors import Buffer

if TYPE_CHECKING:
    from edge_serve.protocol.http2.connection import Http2

#: what a client may send on a new stream before it has to wait
INITIAL_WINDOW = 1024 * 1024


class Chunk:
    """Bytes of a stream that wait for the client's windows.

    Attributes:
        left: bytes of `parts` together; size: what it was at first.
        tail: the trailers that follow, if these are the stream's last bytes.
        told: the stream knows that it waits, and wants to hear when it does not.
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
        ended: the client has sent everything.
        closed: all is over: the answer is handed over completely, or the stream was reset, or the connection is gone.
        receivable: bytes that the client may still send; sendable: bytes that it still takes. Both may be negative
            after a change of settings.
        due: bytes that must still come, when the head has said how many; -1 = it has not.
        queue: what waits for `sendable`.
    """

    __slots__ = ("closed", "connection", "due", "ended", "id", "queue", "receivable", "sendable")

    def __init__(self, connection: Http2, stream_id: int, due: int = -1) -> None:
        self.connection = connection
        self.id = stream_id
        self.ended = False
        self.closed = False
        self.receivable = INITIAL_WINDOW
        self.sendable = connection.sender.initial
        self.due = due
        self.queue: deque[Chunk] | None = None

    # What the connection tells. None of these may raise anything but StreamFault and ConnectionFault.

    def on_open(self) -> None:
        """The connection knows it now: it may be answered."""

    def on_data(self, data: bytes, start: int, stop: int) -> None:
        """Bytes of the request: `data[start:stop]`, never empty."""

    def place(self, size: int) -> memoryview | None:
        """Where the next bytes may be received straight to, `size` of them at most; None = they come by `on_data`."""

    def on_placed(self, size: int) -> None:
        """So many bytes have been put there."""

    def on_end(self) -> None:
        """The request is complete."""

    def on_gone(self) -> None:
        """Nobody waits for the answer any more."""

    def on_taken(self, size: int) -> None:
        """A message of `size` bytes that had to wait is on its way."""

    # What the application asks for.

    def widen(self, size: int) -> None:
        """Let the client send at least `size` bytes more."""
        if size > self.receivable and not self.ended and not self.closed:
            self.connection.credit(self, size - self.receivable)

    def replenish(self) -> None:
        """What has come was used: the client may go on."""
        if self.receivable <= INITIAL_WINDOW // 2:
            self.widen(INITIAL_WINDOW)
