"""Every broken rule of RFC 9113 has its code, and ends what it should: the connection or one stream."""

from __future__ import annotations

import pytest

from edge_serve.protocol.http2 import frames
from edge_serve.protocol.http2.connection import MAX_FRAME
from edge_serve.protocol.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITIZED,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Code,
    Http2Setting,
)
from edge_serve.protocol.http2.heads import encode_literal
from edge_serve.protocol.http2.stream import INITIAL_WINDOW
from tests.protocol.http2_scene import BLOCK, Scene, answer, data, headers

frame = frames.build_frame


def declared(length: bytes) -> bytes:
    """Build a HEADERS frame with a `content-length`."""
    return headers(1, block=BLOCK + encode_literal(b"content-length", length))


FAULTS: dict[str, tuple[bytes | str | Code | None, ...]] = {
    "other protocol": (None, b"GET / HTTP/1.1\r\n", Code.PROTOCOL_ERROR),
    "no settings first": (None, PREFACE + headers(1), Code.PROTOCOL_ERROR),
    "frame too long": (b"", frames.FRAME_HEAD.pack(MAX_FRAME >> 8, 1, DATA, 0, 1), Code.FRAME_SIZE_ERROR),
    "head too long": (b"", frames.FRAME_HEAD.pack(0x200, 0, HEADERS, 0, 1), Code.ENHANCE_YOUR_CALM),
    "data on 0": (b"", data(0, b"x"), Code.PROTOCOL_ERROR),
    "data on idle": (b"", data(1, b"x"), Code.PROTOCOL_ERROR),
    "data after end and answer": (headers(1, end=True), "answer 1", data(1, b"x"), Code.STREAM_CLOSED),
    "head after end and answer": (headers(1, end=True), "answer 1", headers(1), Code.STREAM_CLOSED),
    "even number": (b"", headers(2), Code.PROTOCOL_ERROR),
    "stream 0": (b"", headers(0), Code.PROTOCOL_ERROR),
    "older number": (headers(5), headers(3), Code.STREAM_CLOSED),
    "interrupted block": (frame(HEADERS, 0, 1, BLOCK), data(1, b"x"), Code.PROTOCOL_ERROR),
    "block of another": (frame(HEADERS, 0, 1, BLOCK), frame(CONTINUATION, 4, 3, b""), Code.PROTOCOL_ERROR),
    "continuation of nothing": (b"", frame(CONTINUATION, END_HEADERS, 1, BLOCK), Code.PROTOCOL_ERROR),
    "endless block": (frame(HEADERS, 0, 1, BLOCK), frame(CONTINUATION, 0, 1, bytes(16_000)) * 5,
                      Code.ENHANCE_YOUR_CALM),
    "bad hpack": (b"", headers(1, block=b"\xff\xff\xff\xff"), Code.COMPRESSION_ERROR),
    "index 0": (b"", headers(1, block=b"\x80"), Code.COMPRESSION_ERROR),
    "unknown index": (b"", headers(1, block=b"\xc1"), Code.COMPRESSION_ERROR),
    "header bomb": (b"", headers(1, block=BLOCK + b"\x40\x01a\x7f\x81\x1e" + bytes(3968) + b"\xbe" * 5000),
                    Code.ENHANCE_YOUR_CALM),
    "too much padding": (headers(1), frame(DATA, PADDED, 1, b"\x05abc"), Code.PROTOCOL_ERROR),
    "no padding": (headers(1), frame(DATA, PADDED, 1), Code.FRAME_SIZE_ERROR),
    "no priority": (b"", frame(HEADERS, PRIORITIZED | END_HEADERS, 1, b"abc"), Code.FRAME_SIZE_ERROR),
    "size updates": (b"", headers(1, block=b"\x20\x3f\xe1\x1f\x20" + BLOCK), Code.COMPRESSION_ERROR),
    "many settings": (b"", frames.build_settings([(Http2Setting.ENABLE_PUSH, 0)] * 171), Code.ENHANCE_YOUR_CALM),
    "settings on a stream": (b"", frame(SETTINGS, 0, 1), Code.PROTOCOL_ERROR),
    "settings cut": (b"", frame(SETTINGS, 0, 0, b"abc"), Code.FRAME_SIZE_ERROR),
    "settings ack with some": (b"", frame(SETTINGS, ACK, 0, bytes(6)), Code.FRAME_SIZE_ERROR),
    "push 2": (b"", frames.build_settings([(Http2Setting.ENABLE_PUSH, 2)]), Code.PROTOCOL_ERROR),
    "window 2^31": (b"", frames.build_settings([(Http2Setting.INITIAL_WINDOW_SIZE, 1 << 31)]), Code.FLOW_CONTROL_ERROR),
    "small frames": (b"", frames.build_settings([(Http2Setting.MAX_FRAME_SIZE, 16_383)]), Code.PROTOCOL_ERROR),
    "ping on a stream": (b"", frame(PING, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
    "ping of 7": (b"", frame(PING, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
    "window of 3": (b"", frame(WINDOW_UPDATE, 0, 0, bytes(3)), Code.FRAME_SIZE_ERROR),
    "window by 0": (b"", frame(WINDOW_UPDATE, 0, 0, bytes(4)), Code.PROTOCOL_ERROR),
    "window too wide": (b"", frames.build_window_update(0, 2**31 - 1), Code.FLOW_CONTROL_ERROR),
    "window of idle": (b"", frames.build_window_update(9, 5), Code.PROTOCOL_ERROR),
    "reset of idle": (b"", frames.build_rst_stream(9, Code.CANCEL), Code.PROTOCOL_ERROR),
    "reset of 0": (b"", frames.build_rst_stream(0, Code.CANCEL), Code.PROTOCOL_ERROR),
    "reset of 5": (headers(1), frame(RST_STREAM, 0, 1, bytes(5)), Code.FRAME_SIZE_ERROR),
    "push": (headers(1), frame(PUSH_PROMISE, 4, 1, bytes(4)), Code.PROTOCOL_ERROR),
    "priority on 0": (b"", frame(PRIORITY, 0, 0, bytes(5)), Code.PROTOCOL_ERROR),
    "goaway on a stream": (b"", frame(GOAWAY, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_rule_ends_the_connection_with_its_code(name: str) -> None:
    *before, wrong, code = FAULTS[name]
    scene = Scene(greeted=before[0] is not None)
    for what in before:
        if isinstance(what, bytes):
            scene.send(what)
        elif what is not None:
            answer(scene, 1)
    assert scene.fault() is None
    assert isinstance(wrong, bytes)
    scene.send(wrong)

    assert scene.fault() == code
    assert all(stream.gone or stream.closed for stream in scene.streams.values())
    scene.send(headers(99), b"whatever follows")  # is not read
    assert 99 not in scene.streams


STREAM_FAULTS = {
    "no path": (headers(1, block=b"\x83\x86"), Code.PROTOCOL_ERROR),
    "no method": (headers(1, block=b"\x86\x84"), Code.PROTOCOL_ERROR),
    "no scheme": (headers(1, block=b"\x83\x84"), Code.PROTOCOL_ERROR),
    "path twice": (headers(1, block=b"\x83\x86\x84\x84"), Code.PROTOCOL_ERROR),
    "a status": (headers(1, block=b"\x83\x86\x84\x88"), Code.PROTOCOL_ERROR),
    "pseudo behind": (headers(1, block=b"\x83\x86" + encode_literal(b"a", b"b") + b"\x84"), Code.PROTOCOL_ERROR),
    "upper case": (headers(1, block=BLOCK + encode_literal(b"Name", b"")), Code.PROTOCOL_ERROR),
    "connection": (headers(1, block=BLOCK + encode_literal(b"connection", b"close")), Code.PROTOCOL_ERROR),
    "te": (headers(1, block=BLOCK + encode_literal(b"te", b"gzip")), Code.PROTOCOL_ERROR),
    "value": (headers(1, block=BLOCK + encode_literal(b"a", b"b\nc")), Code.PROTOCOL_ERROR),
    "content-length": (declared(b"3x"), Code.PROTOCOL_ERROR),
    "too little": (declared(b"3") + data(1, b"12", end=True), Code.PROTOCOL_ERROR),
    "too much": (declared(b"3") + data(1, b"1234"), Code.PROTOCOL_ERROR),
    "trailers without end": (headers(1) + headers(1), Code.PROTOCOL_ERROR),
    "data after end": (headers(1, end=True) + data(1, b"x"), Code.STREAM_CLOSED),
    "head after end": (headers(1, end=True) + headers(1, end=True), Code.STREAM_CLOSED),
    "window by 0": (headers(1) + frame(WINDOW_UPDATE, 0, 1, bytes(4)), Code.PROTOCOL_ERROR),
    "window too wide": (headers(1) + frames.build_window_update(1, 2**31 - 1), Code.FLOW_CONTROL_ERROR),
    "priority of 4": (headers(1) + frame(PRIORITY, 0, 1, bytes(4)), Code.FRAME_SIZE_ERROR),
    "beyond the window": (headers(1) + data(1, bytes(INITIAL_WINDOW // 2)) * 3, Code.FLOW_CONTROL_ERROR),
}  # fmt: skip


def test_a_window_update_by_0_on_an_answered_stream_ends_only_that_stream() -> None:
    scene = Scene()
    scene.send(headers(1, end=True))
    answer(scene, 1)
    scene.send(frame(WINDOW_UPDATE, 0, 1, bytes(4)), headers(3, end=True))

    assert scene.fault() is None
    assert scene.streams[3].complete


@pytest.mark.parametrize("name", STREAM_FAULTS)
def test_a_broken_rule_of_a_stream_ends_that_stream(name: str) -> None:
    wrong, code = STREAM_FAULTS[name]
    scene = Scene()
    scene.send(wrong)

    assert scene.reset(1) == code
    assert all(stream.gone for stream in scene.streams.values())
    scene.send(data(1, b"still on its way"), headers(3, end=True))
    assert scene.fault() is None
    assert scene.streams[3].complete
