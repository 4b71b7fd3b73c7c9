"""Table of a connection's streams: how each of them closes, and the state that all readers of frames share."""

from __future__ import annotations

from typing import Protocol

from edge_serve.aio.memo import Memo
from edge_serve.clock import Clock
from edge_serve.protocol.http2 import frames as frames
from edge_serve.protocol.http2.allowance import WASTED_REQUEST, Allowance
from edge_serve.protocol.http2.frames import MAX_WINDOW, Code, ConnectionFault, StreamFault
from edge_serve.protocol.http2.heads import StreamHead
from edge_serve.protocol.http2.send import DataSender, FrameOutput
from edge_serve.protocol.http2.stream import Http2Stream

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
    """

    __slots__ = ("allowance", "draining", "host", "last", "open", "over", "recent", "sender")

    def __init__(self, host: StreamHost, output: FrameOutput, clock: Clock, unsent: int) -> None:
        self.host = host
        self.sender = DataSender(output, unsent)
        self.allowance = Allowance(clock, self.sender)
        self.open: dict[int, Http2Stream] = {}
        self.last = 0
        self.over = self.draining = False
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
            self.close(stream)

    def widen(self, stream: Http2Stream, increment: int) -> None:
        """Enlarge the receive window of a stream."""
        increment = min(increment, MAX_WINDOW - max(0, stream.receivable))
        stream.receivable += increment
        self.push(frames.build_window_update(stream.id, increment))

    def close_answered(self, stream: Http2Stream) -> None:
        """Close a stream whose answer is complete."""
        stream.closed = True
        del self.open[stream.id]
        if not stream.ended:
            self.push(frames.build_rst_stream(stream.id, Code.NO_ERROR))  # RFC 9113 8.1: the rest is not needed
            self.add_recent(stream.id)
        if self.draining and not self.open:
            self.host.on_idle()

    def reset(self, stream: Http2Stream, code: Code) -> None:
        """Close a stream with RST_STREAM."""
        if stream.closed:
            return
        self.push(frames.build_rst_stream(stream.id, code))
        self.add_recent(stream.id)
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
            self.add_recent(stream_id)
        self.allowance.spend(WASTED_REQUEST)

    def close(self, stream: Http2Stream) -> None:
        """Close a stream without a frame, and call its `on_gone`."""
        stream.closed = True
        self.open.pop(stream.id, None)
        self.sender.remove(stream)
        stream.on_gone()
        if self.draining and not self.open and not self.over:
            self.host.on_idle()

    def add_recent(self, stream_id: int) -> None:
        """Add a stream to the recently closed ones, whose frames are ignored."""
        self.recent.add(stream_id, None)

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
