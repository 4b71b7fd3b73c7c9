"""A connection whose streams record what they are told, and a client that writes its frames by hand."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edge_serve.messages.tensors import Buffer
from edge_serve.protocol.http2 import frames
from edge_serve.protocol.http2.connection import Http2
from edge_serve.protocol.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PREFACE,
    RST_STREAM,
    Code,
    Http2Setting,
)
from edge_serve.protocol.http2.heads import StreamHead, encode, encode_literal
from edge_serve.protocol.http2.stream import Http2Stream
from edge_serve.protocol.http2.streams import StreamTable

#: a request head as a block without the dynamic table
BLOCK = (
    b"\x83\x86"  # :method POST, :scheme http
    + b"\x04\x02/x"  # :path
    + encode_literal(b"te", b"trailers")
)


@dataclass
class Time:
    """A clock that tests move."""

    now: int = 0

    def now_ns(self) -> int:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)


@dataclass
class Wire:
    """Implements `FrameOutput`; `pending` is set by tests."""

    sent: bytearray = field(default_factory=bytearray)
    pending: int = 0
    callbacks: list[Callable[[], None]] = field(default_factory=list)

    def push(self, parts: Sequence[Buffer], size: int, on_sent: Callable[[], None] | None = None) -> None:
        data = b"".join(parts)
        assert len(data) == size
        self.sent += data
        if on_sent is not None:
            self.callbacks.append(on_sent)


class Recorder(Http2Stream):
    """Takes everything; `ends` are replies given at the end of a request."""

    def __init__(self, table: StreamTable, stream_id: int, head: StreamHead) -> None:
        super().__init__(table, stream_id, head.content_length)
        self.head = head
        self.data = b""
        self.complete = self.gone = self.fails = False
        self.taken: list[int] = []
        self.store: bytearray | None = None

    def on_data(self, data: bytes, start: int, stop: int) -> None:
        assert start < stop <= len(data)
        self.data += data[start:stop]

    def place(self, size: int) -> memoryview | None:
        return None if self.store is None else memoryview(self.store)[len(self.data) :][:size]

    def on_placed(self, size: int) -> None:
        assert self.store is not None
        self.data += bytes(self.store[len(self.data) :][:size])

    def on_end(self) -> None:
        self.complete = True

    def on_gone(self) -> None:
        self.gone = True
        if self.fails:
            raise ValueError("a fault of the application")

    def on_taken(self, size: int) -> None:
        self.taken.append(size)


@dataclass
class Scene:
    """A connection, greeted unless told otherwise."""

    greeted: bool = True
    settings: tuple[tuple[Http2Setting, int], ...] = ()
    wire: Wire = field(default_factory=Wire)
    time: Time = field(default_factory=Time)
    streams: dict[int, Recorder] = field(default_factory=dict)
    pongs: list[bytes] = field(default_factory=list)
    pings: int = 0
    idle: int = 0

    def __post_init__(self) -> None:
        self.http2 = Http2(self, self.wire, self.time, 256 * 1024)
        if self.greeted:
            self.http2.start()
            self.http2.receive(PREFACE + frames.build_settings(self.settings))
            self.wire.sent.clear()

    # the host

    def open_stream(self, stream_id: int, head: StreamHead) -> Recorder:
        self.streams[stream_id] = Recorder(self.http2.table, stream_id, head)
        return self.streams[stream_id]

    def on_ping(self) -> None:
        self.pings += 1

    def on_pong(self, payload: bytes) -> None:
        self.pongs.append(payload)

    def on_idle(self) -> None:
        self.idle += 1

    # the client

    def send(self, *data: bytes) -> None:
        self.http2.receive(b"".join(data))

    def answers(self) -> list[tuple[int, int, int, bytes]]:
        """(kind, flags, stream, payload) of the frames that were sent since."""
        found = []
        data = bytes(self.wire.sent)
        while data:
            size, kind, flags, stream = frame_head(data)
            end = 9 + size
            found.append((kind, flags, stream, data[9:end]))
            data = data[end:]
        self.wire.sent.clear()
        return found

    def fault(self) -> Code | None:
        """With what code the connection was ended."""
        for kind, _, _, payload in self.answers():
            if kind == GOAWAY:
                assert self.http2.table.over
                return goaway_of(payload)[1]
        assert not self.http2.table.over
        return None

    def reset(self, stream: int) -> Code | None:
        """With what code a stream was reset."""
        for kind, _, number, payload in self.answers():
            if kind == RST_STREAM and number == stream:
                return reset_of(payload)
        return None


def headers(stream: int, *, end: bool = False, block: bytes = BLOCK) -> bytes:
    return frames.build_frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, block)


def data(stream: int, payload: bytes, *, end: bool = False) -> bytes:
    return frames.build_frame(DATA, END_STREAM if end else 0, stream, payload)


def frame_head(data: bytes) -> tuple[int, int, int, int]:
    """(size of the payload, kind, flags, stream) of the frame that begins here."""
    upper, lower, kind, flags, stream = frames.FRAME_HEAD.unpack_from(data)
    return upper << 8 | lower, kind, flags, stream


def reset_of(payload: bytes) -> Code:
    """With what code the stream was reset."""
    return Code(struct.unpack(">I", payload)[0])


def goaway_of(payload: bytes) -> tuple[int, Code, str]:
    """Last stream, code and text."""
    last, code = struct.unpack_from(">II", payload)
    return last, Code(code), payload[8:].decode()


def answer(scene: Scene, stream: int, body: bytes = b"yes") -> None:
    """Head, body and trailers."""
    sender = scene.http2.table.sender
    scene.wire.push((frames.build_frame(HEADERS, END_HEADERS, stream, encode(200, ())),), 10)
    sender.send(scene.streams[stream], (body,), len(body))
    sender.finish(
        scene.streams[stream], frames.build_frame(HEADERS, END_HEADERS | END_STREAM, stream, encode_literal(b"s", b"0"))
    )
