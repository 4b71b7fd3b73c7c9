"""The streams of one connection, and how they end: what all parts of the state machine share."""

from __future__ import annotations

from typing import Protocol

from edge_serve.clock import Clock
from edge_serve.protocol.http2 import frames as frames
from edge_serve.protocol.http2.allowance import WASTED_REQUEST, Allowance
from edge_serve.protocol.http2.frames import MAX_WINDOW, Code, ConnectionFault, StreamFault
from edge_serve.protocol.http2.heads import StreamHead
from edge_serve.protocol.http2.send import DataSender, FrameOutput
from edge_serve.protocol.http2.stream import Http2Stream

#: streams that we have ended before the client, whose last frames are passed over
_MAX_RECENT = 1024


class StreamHost(Protocol):
    """What owns a connection."""

    def open_stream(self, stream_id: int, head: StreamHead) -> Http2Stream:
        """A request has begun."""

    def on_ping(self) -> None:
        """The client asks whether we are there; it is told.

        Raises:
            ConnectionFault: it asks too often.
        """

    def on_pong(self, payload: bytes) -> None:
        """The client has answered a PING of ours."""

    def on_idle(self) -> None:
        """The last stream of a connection that is leaving is over."""


class Streams:
    """The streams of a connection.

    Attributes:
        streams: those that are open, by their number.
        last: the number of the newest stream that was taken.
        over: nothing is read any more; GOAWAY has been pushed, or the connection is gone.
        leaving: GOAWAY has told the client to begin nothing new.
    """

    __slots__ = ("allowance", "host", "last", "leaving", "over", "recent", "sender", "streams")

    def __init__(self, host: StreamHost, output: FrameOutput, clock: Clock, unsent: int) -> None:
        self.host = host
        self.sender = DataSender(output, unsent)
        self.allowance = Allowance(clock, self.sender)
        self.streams: dict[int, Http2Stream] = {}
        self.last = 0
        self.over = self.leaving = False
        #: streams that were ended by us
        self.recent: dict[int, None] = {}

    def fail(self, fault: ConnectionFault) -> None:
        """End the connection, and say why."""
        self.push(frames.goaway(self.last, fault.code, fault.text))
        self.lose()

    def lose(self) -> None:
        """The connection is gone: tell all streams."""
        self.over = True
        for stream in list(self.streams.values()):
            self.forget(stream)

    def credit(self, stream: Http2Stream, increment: int) -> None:
        """Let the client send more on a stream."""
        increment = min(increment, MAX_WINDOW - max(0, stream.receivable))
        stream.receivable += increment
        self.push(frames.window_update(stream.id, increment))

    def done(self, stream: Http2Stream) -> None:
        """The answer is handed over completely."""
        stream.closed = True
        del self.streams[stream.id]
        if not stream.ended:
            self.push(frames.rst_stream(stream.id, Code.NO_ERROR))  # RFC 9113 8.1: the rest is not needed
            self.remember(stream.id)
        if self.leaving and not self.streams:
            self.host.on_idle()

    def reset(self, stream: Http2Stream, code: Code) -> None:
        """End a stream without an answer."""
        if stream.closed:
            return
        self.push(frames.rst_stream(stream.id, code))
        self.remember(stream.id)
        self.forget(stream)

    def reset_number(self, stream_id: int, code: Code) -> None:
        """RST_STREAM for a fault on a stream, which may not be there.

        Raises:
            ConnectionFault: that has come too often.
        """
        stream = self.streams.get(stream_id)
        if stream is not None:
            self.reset(stream, code)
        else:
            self.push(frames.rst_stream(stream_id, code))
            self.remember(stream_id)
        self.allowance.spend(WASTED_REQUEST)

    def forget(self, stream: Http2Stream) -> None:
        """The stream is over, and nobody waits for it."""
        stream.closed = True
        self.streams.pop(stream.id, None)
        self.sender.forget(stream)
        stream.on_gone()
        if self.leaving and not self.streams and not self.over:
            self.host.on_idle()

    def remember(self, stream_id: int) -> None:
        """Frames of this stream may still come, and are to be passed over."""
        if len(self.recent) >= _MAX_RECENT:
            del self.recent[next(iter(self.recent))]
        self.recent[stream_id] = None

    def push(self, data: bytes) -> None:
        """Send frames that no window holds back."""
        self.sender.output.push((data,), len(data))

    def end(self, stream: Http2Stream) -> None:
        """The client has sent all of it.

        Raises:
            StreamFault: it has not.
        """
        stream.ended = True
        if stream.due > 0:
            raise StreamFault(Code.PROTOCOL_ERROR)  # RFC 9113 8.1.1: less than content-length says
        stream.on_end()

    def check_known(self, stream_id: int, kind: str) -> None:
        """A stream that is not open was so once.

        Raises:
            ConnectionFault: never.
        """
        if stream_id == 0 or (stream_id > self.last and stream_id not in self.recent):
            raise ConnectionFault(Code.PROTOCOL_ERROR, f"{kind} on stream {stream_id}, which does not exist")
