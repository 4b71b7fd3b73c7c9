"""One stream of a connection, and the DATA frames of its answer within the client's windows (RFC 9113 5.2).

`Http2Stream` has a stream's windows and state, and the events that the connection reports to it. `DataSender` writes
the answers of all streams, one frame of each in turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from edge_serve.messages.tensors import Buffer
from edge_serve.protocol.http2.frames import DATA, FRAME_HEAD, HEAD_SIZE, MAX_WINDOW, Code, ConnectionFault, StreamFault

if TYPE_CHECKING:
    from edge_serve.protocol.http2.streams import StreamTable

#: bytes that a client may send on all streams together; renewed when half of them are used
CONNECTION_WINDOW = 16 * 1024 * 1024
#: receive window of a new stream, in bytes
INITIAL_WINDOW = 1024 * 1024
#: bytes of the padding of a DATA frame, with its length
MAX_PADDING = 256


#: bytes up to which the parts of a message are copied, because an object for each of them takes more memory
_JOINED = 1024


class Chunk:
    """Bytes of a stream that wait for the client's windows.

    Attributes:
        left: bytes in `parts`; size: bytes at first.
        tail: the trailers that follow, if these are the stream's last bytes.
        told: `send` has reported that the bytes wait, so `on_taken` is due when they are sent.
    """

    __slots__ = ("left", "on_sent", "parts", "size", "tail", "told")

    def __init__(self, parts: Sequence[Buffer], size: int, on_sent: Callable[[], None] | None) -> None:
        #: from the last one to the first
        self.parts: list[Buffer]
        if size <= _JOINED:
            self.parts = [b"".join(parts)] if size else []
        else:
            self.parts = [memoryview(part).cast("B") for part in reversed(parts) if len(part)]
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
        progress: bytes of waiting messages that were sent so far.
    """

    __slots__ = ("closed", "due", "ended", "id", "progress", "queue", "receivable", "sendable", "table")

    def __init__(self, table: StreamTable, stream_id: int, due: int = -1) -> None:
        self.table = table
        self.id = stream_id
        self.ended = False
        self.closed = False
        self.receivable = INITIAL_WINDOW
        self.sendable = table.sender.initial
        self.due = due
        self.queue: deque[Chunk] | None = None
        self.progress = 0

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

    @property
    def is_leased(self) -> bool:
        """Whether waiting messages are in memory that is released when they are sent."""
        return any(chunk.on_sent is not None for chunk in self.queue or ())

    # Requests of the application.

    def widen(self, size: int) -> None:
        """Enlarge the receive window to at least `size` bytes."""
        if size > self.receivable and not self.ended and not self.closed:
            self.table.widen(self, size - self.receivable)

    def replenish(self) -> None:
        """Reopen the receive window when at most half of it is left."""
        if self.receivable <= INITIAL_WINDOW // 2:
            self.widen(INITIAL_WINDOW)


#: a window, and the largest frame, before either side has changed them (RFC 9113 6.5.2, 6.9.2)
DEFAULT_WINDOW, _DEFAULT_FRAME = 65_535, 16_384


class FrameOutput(Protocol):
    """Queue of bytes for the client, implemented by `transport.sockets.send_queue.SendQueue`.

    Attributes:
        pending: bytes pushed that the kernel has not accepted.
    """

    pending: int

    def push(self, parts: Sequence[Buffer], size: int, on_sent: Callable[[], None] | None = None) -> None: ...


class DataSender:
    """Flow control towards one client: sends DATA now, or queues it until a window opens.

    Args:
        unsent: bytes pending in `output` beyond which streams wait.

    Attributes:
        window: bytes that the client still accepts on the connection.
        initial: window of a new stream; max_frame: bytes of the largest DATA frame.
        sent: frames of answers, DATA and trailers, so far.
    """

    __slots__ = ("_ready", "_unsent", "initial", "max_frame", "output", "sent", "window")

    def __init__(self, output: FrameOutput, unsent: int) -> None:
        self.output = output
        self._unsent = unsent
        self.window = DEFAULT_WINDOW
        self.initial = DEFAULT_WINDOW
        self.max_frame = _DEFAULT_FRAME
        self.sent = 0
        #: streams with queued bytes and an open window, in the order of their turns
        self._ready: dict[Http2Stream, None] = {}

    @property
    def waiting(self) -> bool:
        """Streams have queued bytes, and may have a window for them: `pump` when `output` has room."""
        return bool(self._ready) and self.window > 0

    def reserve(self, stream: Http2Stream, size: int) -> bool:
        """Subtract `size` bytes from the windows if one frame can carry them now, and return whether it can."""
        if (
            stream.queue is None
            and size <= stream.sendable
            and size <= self.window
            and size <= self.max_frame
            and self.output.pending <= self._unsent
        ):
            self.window -= size
            stream.sendable -= size
            self.sent += 1
            return True
        return False

    def send(
        self, stream: Http2Stream, parts: Sequence[Buffer], size: int, on_sent: Callable[[], None] | None = None
    ) -> bool:
        """Send bytes. Return False if some of them are queued; `Http2Stream.on_taken` is called when they are sent.

        If earlier bytes of the stream are queued, these are only queued behind them, so `on_taken` is not called before
        this returns. The code that opens a window, or makes room in the output, calls `pump`.
        """
        if self.reserve(stream, size):
            head = FRAME_HEAD.pack(size >> 8, size & 0xFF, DATA, 0, stream.id)
            self.output.push((head, *parts), HEAD_SIZE + size, on_sent)
            return True
        chunk = Chunk(parts, size, on_sent)
        if stream.queue is not None:
            chunk.told = True
            stream.queue.append(chunk)
            return False
        stream.queue = queue = deque((chunk,))
        self._ready[stream] = None
        self.pump()
        chunk.told = chunk in queue
        return not chunk.told

    def finish(self, stream: Http2Stream, tail: bytes) -> bool:
        """Send the trailers after all queued bytes. Return False if the trailers are queued, too."""
        self.sent += 1
        if stream.queue is None:
            self.output.push((tail,), len(tail))
            stream.table.close_answered(stream)
            return True
        stream.queue[-1].tail = tail
        return False

    def pump(self) -> None:
        """Send queued bytes as far as the windows allow, a frame of each stream in turn."""
        ready, output = self._ready, self.output
        while ready and output.pending <= self._unsent:
            stream = next(iter(ready))
            del ready[stream]
            if stream.queue is None:
                continue
            left = stream.queue[0].left
            if left and (self.window <= 0 or stream.sendable <= 0):
                if stream.sendable > 0:  # the connection's window is shut, so every stream waits
                    ready[stream] = None
                    return
                continue
            self._send_frame(stream, stream.queue)
            if stream.queue is not None:
                ready[stream] = None

    def _send_frame(self, stream: Http2Stream, queue: deque[Chunk]) -> None:
        chunk = queue[0]
        size = min(chunk.left, self.max_frame, self.window, stream.sendable)
        if size > 0:
            parts: list[Buffer] = [FRAME_HEAD.pack(size >> 8, size & 0xFF, DATA, 0, stream.id)]
            _move(chunk.parts, parts, size)
            chunk.left -= size
            self.window -= size
            stream.sendable -= size
            stream.progress += size
            self.sent += 1
            self.output.push(parts, HEAD_SIZE + size)
        if chunk.left:
            return
        queue.popleft()
        self.output.push((chunk.tail,) if chunk.tail else (), len(chunk.tail), chunk.on_sent)
        if not queue:
            stream.queue = None
        if chunk.told:
            stream.on_taken(chunk.size)
        if chunk.tail and not stream.closed:
            stream.table.close_answered(stream)

    def discard(self, stream: Http2Stream) -> None:
        """Discard the queued messages, except one that is partly sent."""
        queue = stream.queue
        while queue and queue[-1].left == queue[-1].size:
            chunk = queue.pop()
            if chunk.on_sent is not None:
                chunk.on_sent()
        if not queue:
            stream.queue = None

    def remove(self, stream: Http2Stream) -> None:
        """Remove a closed stream. Its queued buffers are released after the bytes that are already in the output."""
        queue, stream.queue = stream.queue, None
        self._ready.pop(stream, None)
        for chunk in queue or ():
            if chunk.on_sent is not None:
                self.output.push((), 0, chunk.on_sent)

    # ---- frames from the client ----------------------------------------------------------------------------------

    def widen(self, increment: int) -> None:
        """Enlarge the connection's window, for a WINDOW_UPDATE frame.

        Raises:
            ConnectionFault: the window exceeds 2^31-1.
        """
        self.window += increment
        if self.window > MAX_WINDOW:
            raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "the connection's window is larger than 2^31-1")
        self.pump()

    def widen_stream(self, stream: Http2Stream, increment: int) -> None:
        """Enlarge a stream's window, for a WINDOW_UPDATE frame.

        Raises:
            StreamFault: the window exceeds 2^31-1.
        """
        stream.sendable += increment
        if stream.sendable > MAX_WINDOW:
            raise StreamFault(Code.FLOW_CONTROL_ERROR)
        if stream.queue is not None:
            self._ready[stream] = None
            self.pump()

    def change_initial(self, size: int, streams: Iterable[Http2Stream]) -> None:
        """Apply SETTINGS_INITIAL_WINDOW_SIZE to new and to open streams (RFC 9113 6.9.2).

        Raises:
            ConnectionFault: a window exceeds 2^31-1.
        """
        change = size - self.initial
        self.initial = size
        for stream in streams:
            stream.sendable += change
            if stream.sendable > MAX_WINDOW:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "a stream's window is larger than 2^31-1")
            if stream.queue is not None:
                self._ready[stream] = None


def _move(source: list[Buffer], target: list[Buffer], size: int) -> None:
    """Move `size` bytes from the end of `source`, which is in reverse order and has as many, to the end of `target`."""
    while size:
        part = source[-1]
        if len(part) <= size:
            size -= len(part)
            target.append(source.pop())
        else:
            target.append(part[:size])
            source[-1] = part[size:]
            return
