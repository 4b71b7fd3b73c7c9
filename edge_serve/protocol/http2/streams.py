"""The streams of a connection: their table, the DATA frames that they receive, and the allowance for cheap frames.

Each of the known floods (CVE-2019-9511 to 9518, CVE-2023-44487, CVE-2025-8671) repeats a cheap frame. All of them share
one token bucket, `Allowance`, which no ordinary client empties: 10,000 tokens, and 2,000 more a second. Each frame of
an answer adds four, because a busy client of gRPC's C core sends one or two pings and window updates for each.
"""

from __future__ import annotations

import logging
from typing import Protocol

from edge_serve.aio.memo import Memo
from edge_serve.clock import Clock
from edge_serve.protocol.http2 import frames
from edge_serve.protocol.http2.frames import END_STREAM, PADDED, Code, ConnectionFault, StreamFault
from edge_serve.protocol.http2.heads import StreamHead
from edge_serve.protocol.http2.stream import CONNECTION_WINDOW, DataSender, FrameOutput, Http2Stream

log = logging.getLogger(__name__)

_FULL = 10_000
_PER_SECOND = 2_000
_PER_ANSWER = 4

#: price of a frame that changes nothing, or that is answered with a few bytes
TRIFLE = 1
#: price of a request that its client cancelled (rapid reset) or provoked us to reset, or that was refused
WASTED_REQUEST = 5


class Allowance:
    """The token bucket of one connection. Reads the clock and the count of answers only when it is empty.

    Args:
        sender: counts the frames of answers.
    """

    __slots__ = ("_answered", "_clock", "_left", "_sender", "_since_ns")

    def __init__(self, clock: Clock, sender: DataSender) -> None:
        self._clock = clock
        self._sender = sender
        self._left = float(_FULL)
        self._since_ns = clock.now_ns()
        self._answered = sender.sent

    def spend(self, points: int) -> None:
        """Take `points` tokens out of the bucket.

        Raises:
            ConnectionFault: the bucket is empty.
        """
        self._left -= points
        if self._left >= 0:
            return
        now_ns, answered = self._clock.now_ns(), self._sender.sent
        earned = (now_ns - self._since_ns) / 1e9 * _PER_SECOND + (answered - self._answered) * _PER_ANSWER
        self._left = min(_FULL, self._left + earned)
        self._since_ns, self._answered = now_ns, answered
        if self._left < 0:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")


#: heads and messages of one connection that are handled in one turn of the event loop: 32 unary requests
PER_TURN = 64

#: entries of the table of streams that the server closed before the client, whose last frames are ignored
_MAX_RECENT = 1024


class StreamHost(Protocol):
    """Owner of a connection: opens its streams and answers for the socket."""

    def open_stream(self, stream_id: int, head: StreamHead) -> Http2Stream:
        """Return a new stream for a request."""

    def on_ping(self) -> None:
        """Handle a PING, which is answered already.

        Raises:
            ConnectionFault: the client sends too many.
        """

    def on_pong(self, payload: bytes) -> None:
        """Handle the answer to a PING of the server."""

    def on_idle(self) -> None:
        """Handle that a connection that drains has closed its last stream."""


class StreamTable:
    """The open streams of a connection, and the recently closed ones.

    Attributes:
        open: the open streams, by number.
        last: number of the newest stream that was accepted.
        over: the connection reads no more: the last GOAWAY has been pushed, or the socket is closed.
        draining: GOAWAY has asked the client to open no more streams.
        turn: heads and messages that may still be handled in this turn of the event loop.
        unread: complete frames wait for the next turn.
    """

    __slots__ = ("allowance", "draining", "host", "last", "open", "over", "recent", "sender", "turn", "unread")

    def __init__(self, host: StreamHost, output: FrameOutput, clock: Clock, unsent: int) -> None:
        self.host = host
        self.sender = DataSender(output, unsent)
        self.allowance = Allowance(clock, self.sender)
        self.open: dict[int, Http2Stream] = {}
        self.last = 0
        self.over = self.draining = self.unread = False
        self.turn = PER_TURN
        #: streams that were reset, oldest first: frames for them may still arrive
        self.recent: Memo[int, None] = Memo(_MAX_RECENT)

    def fail(self, fault: ConnectionFault) -> None:
        """Close the connection with GOAWAY, which gives the reason."""
        self.push(frames.build_goaway(self.last, fault.code, fault.text))
        self.close_all()

    def close_all(self) -> None:
        """Close all streams without a frame, because the connection ends."""
        self.over = True
        for stream in list(self.open.values()):
            try:
                self.close(stream)
            except Exception:  # the other streams, and the connection, have memory to release
                log.exception("closing stream %d failed", stream.id)

    def widen(self, stream: Http2Stream, increment: int) -> None:
        """Enlarge the receive window of a stream."""
        increment = min(increment, frames.MAX_WINDOW - max(0, stream.receivable))
        stream.receivable += increment
        self.push(frames.build_window_update(stream.id, increment))

    def close_answered(self, stream: Http2Stream) -> None:
        """Close a stream whose answer is complete."""
        stream.closed = True
        del self.open[stream.id]
        if not stream.ended:
            self.push(frames.build_rst_stream(stream.id, Code.NO_ERROR))  # RFC 9113 8.1: the rest is not needed
            self.recent.add(stream.id, None)
        if self.draining and not self.open:
            self.host.on_idle()

    def reset(self, stream: Http2Stream, code: Code) -> None:
        """Close a stream with RST_STREAM."""
        if stream.closed:
            return
        self.push(frames.build_rst_stream(stream.id, code))
        self.recent.add(stream.id, None)
        self.close(stream)

    def reset_number(self, stream_id: int, code: Code) -> None:
        """Push RST_STREAM for an error on a stream, which may not be open.

        Raises:
            ConnectionFault: the client has caused too many.
        """
        stream = self.open.get(stream_id)
        if stream is not None:
            self.reset(stream, code)
        else:
            self.push(frames.build_rst_stream(stream_id, code))
            self.recent.add(stream_id, None)
        self.allowance.spend(WASTED_REQUEST)

    def close(self, stream: Http2Stream) -> None:
        """Close a stream without a frame, and call its `on_gone`."""
        stream.closed = True
        self.open.pop(stream.id, None)
        self.sender.remove(stream)
        stream.on_gone()
        if self.draining and not self.open and not self.over:
            self.host.on_idle()

    def charge(self, price: int) -> None:
        """Subtract `price` from the turn and from the allowance.

        Raises:
            ConnectionFault: the allowance is spent.
        """
        self.turn -= price
        self.allowance.spend(price)

    def push(self, data: bytes) -> None:
        """Push frames other than DATA, which need no window."""
        self.sender.output.push((data,), len(data))

    def end_request(self, stream: Http2Stream) -> None:
        """Handle END_STREAM: the request is complete.

        Raises:
            StreamFault: it is shorter than its `content-length`.
        """
        stream.ended = True
        if stream.due > 0:
            raise StreamFault(Code.PROTOCOL_ERROR)  # RFC 9113 8.1.1: less than content-length says
        stream.on_end()

    def check_known(self, stream_id: int, kind: str) -> None:
        """Check that a stream that is not open was open once.

        Raises:
            ConnectionFault: it was not.
        """
        if stream_id == 0 or (stream_id > self.last and stream_id not in self.recent):
            raise ConnectionFault(Code.PROTOCOL_ERROR, f"{kind} on stream {stream_id}, which does not exist")


#: a frame with at least this many bytes missing is received straight into its message's memory
_PLACED_FROM = 32 * 1024


class DataReader:
    """Reads the DATA frames of one connection within the receive windows.

    Attributes:
        accepted: DATA frames of open streams so far.
    """

    __slots__ = ("_receivable", "_rest", "_rest_ends", "_rest_padding", "_rest_stream", "_skip", "_table", "accepted")

    def __init__(self, table: StreamTable) -> None:
        self._table = table
        self._receivable = CONNECTION_WINDOW
        self.accepted = 0
        #: bytes missing of a large frame: of its payload, of its padding, of a frame of unknown type
        self._rest = self._rest_padding = self._skip = 0
        #: the stream of the large frame; None = its payload is discarded
        self._rest_stream: Http2Stream | None = None
        self._rest_ends = False

    def place(self) -> memoryview | None:
        """Return memory for the next bytes of the connection; None = pass them to `receive`."""
        stream = self._rest_stream
        if self._rest < _PLACED_FROM or stream is None or stream.closed or self._table.over:
            return None
        return stream.place(self._rest)

    def receive_placed(self, size: int) -> None:
        """Note that `size` bytes have been received into the memory of `place`.

        Raises:
            ConnectionFault: the stream found an error of the connection.
        """
        stream = self._rest_stream
        assert stream is not None, "place has returned its memory"
        self._rest -= size
        try:
            stream.on_placed(size)
            self._end_rest()
        except StreamFault as fault:
            self._table.reset(stream, fault.code)

    @property
    def midway(self) -> bool:
        """A large frame is incomplete."""
        return bool(self._rest or self._rest_padding or self._skip)

    def read_data(self, data: bytes, start: int, stop: int, flags: int, stream_id: int) -> None:
        """Read a complete DATA frame, whose payload is `data[start:stop]`.

        Raises:
            ConnectionFault, StreamFault: the frame breaks a rule.
        """
        stream = self._account(stream_id, stop - start)
        if flags & PADDED:
            length = stop - start
            start, stop = frames.strip_padding(data, start, stop, flags)
            if stream is not None:
                self._return_padding(stream, length - (stop - start), flags)
        if stream is None:
            return
        if start < stop:
            if stream.due >= 0:
                _subtract(stream, stop - start)
            stream.on_data(data, start, stop)
        elif not flags & END_STREAM:
            self._table.allowance.spend(TRIFLE)
        if flags & END_STREAM and not stream.closed:
            self._table.end_request(stream)

    def _account(self, stream_id: int, length: int) -> Http2Stream | None:
        """Subtract a frame from the receive windows, and return its stream; None = the stream is closed."""
        table = self._table
        receivable = self._receivable - length
        if receivable <= CONNECTION_WINDOW // 2:
            if receivable < 0:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "more DATA than the connection's window allows")
            table.push(frames.build_window_update(0, CONNECTION_WINDOW - receivable))
            receivable = CONNECTION_WINDOW
        self._receivable = receivable
        stream = table.open.get(stream_id)
        if stream is None:
            table.check_known(stream_id, "DATA")
            if stream_id not in table.recent:
                raise ConnectionFault(Code.STREAM_CLOSED, f"DATA on stream {stream_id}, which is closed")
            table.allowance.spend(TRIFLE)
            return None
        if stream.ended:
            raise StreamFault(Code.STREAM_CLOSED)
        stream.receivable -= length
        if stream.receivable < 0:
            raise StreamFault(Code.FLOW_CONTROL_ERROR)
        self.accepted += 1
        return stream

    def _return_padding(self, stream: Http2Stream, size: int, flags: int) -> None:
        """Reopen the stream's window for padding and its length, which no message takes (RFC 9113 6.9.1)."""
        if not flags & END_STREAM:
            self._table.widen(stream, size)

    def begin_rest(self, data: bytes, start: int, length: int, kind: int, flags: int, stream_id: int) -> bool:
        """Read the first piece of a large frame; return False if frames of this type must be read as a whole."""
        if kind != frames.DATA:
            if kind <= frames.CONTINUATION:
                return False
            self._skip = length
        else:
            padding = data[start] + 1 if flags & PADDED else 0
            if padding > length:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "more padding than payload (RFC 9113 6.1)")
            self._rest_stream = None
            try:
                stream = self._account(stream_id, length)
                if stream is not None and stream.due >= 0:
                    _subtract(stream, length - padding)
                if padding and stream is not None:
                    self._return_padding(stream, padding, flags)
                self._rest_stream = stream
            except StreamFault as fault:
                self._table.reset_number(stream_id, fault.code)
            self._rest = length - padding
            self._rest_padding = max(0, padding - 1)
            self._rest_ends = bool(flags & END_STREAM)
            start += 1 if padding else 0
        self.continue_rest(data, start)
        return True

    def continue_rest(self, data: bytes, start: int = 0) -> int:
        """Read the next piece of a large frame, and return the position after it."""
        size = min(self._rest, len(data) - start)
        stream = self._rest_stream
        if size:
            self._rest -= size
            if stream is not None and not stream.closed:
                try:
                    stream.on_data(data, start, start + size)
                except StreamFault as fault:
                    self._table.reset(stream, fault.code)
            start += size
        padding = min(self._rest_padding, len(data) - start)
        self._rest_padding -= padding
        start += padding
        skipped = min(self._skip, len(data) - start)
        self._skip -= skipped
        self._end_rest()
        return start + skipped

    def _end_rest(self) -> None:
        if self._rest or self._rest_padding:
            return
        stream, self._rest_stream = self._rest_stream, None
        if stream is not None and self._rest_ends and not stream.closed:
            self._rest_ends = False
            try:
                self._table.end_request(stream)
            except StreamFault as fault:
                self._table.reset(stream, fault.code)


def _subtract(stream: Http2Stream, size: int) -> None:
    """Subtract a frame from the `content-length` of the head."""
    stream.due -= size
    if stream.due < 0:
        raise StreamFault(Code.PROTOCOL_ERROR)
