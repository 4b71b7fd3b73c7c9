"""The frames of answers as another HPACK and HTTP/2 see them; time-outs, texts and compression."""

from __future__ import annotations

import gzip
import urllib.parse
import zlib

import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from edge_serve.errors import EdgeServeError, InvalidArgument, Unsupported
from edge_serve.protocol.grpc import wire as grpc_wire
from edge_serve.protocol.grpc.wire import MessageTooLarge
from edge_serve.protocol.http2.frames import FRAME_HEAD


def frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """(kind, flags, stream, payload) of each."""
    found = []
    while data:
        upper, lower, kind, flags, stream = FRAME_HEAD.unpack_from(data)
        end = 9 + (upper << 8 | lower)
        assert end <= len(data)
        found.append((kind, flags, stream, data[9:end]))
        data = data[end:]
    return found


def fields_of(block: bytes) -> dict[str, str]:
    return {str(name): str(value) for name, value in Decoder().decode(block)}


@pytest.mark.parametrize("size", [0, 1, 255, 16_379, 100_000])
def test_a_whole_reply(size: int) -> None:
    message = bytes(size)
    reply = grpc_wire.build_reply_start(7, size) + message + grpc_wire.build_ok(7)
    (head, data, trailers) = frames(reply)

    assert len(reply) == size + grpc_wire.WHOLE_OVERHEAD
    assert (head[:3], data[:3], trailers[:3]) == ((1, 4, 7), (0, 0, 7), (1, 5, 7))
    assert data[3] == b"\0" + size.to_bytes(4, "big") + message
    fields = fields_of(head[3])
    assert fields == {
        ":status": "200", "content-type": "application/grpc", "grpc-accept-encoding": "identity,deflate,gzip",
    }  # fmt: skip
    assert fields_of(trailers[3]) == {"grpc-status": "0"}


def test_a_head_alone_is_the_same() -> None:
    assert grpc_wire.build_reply_start(9, 0).startswith(grpc_wire.build_head(9))
    ((_, _, _, block),) = frames(grpc_wire.build_head(9, "gzip"))
    assert fields_of(block)["grpc-encoding"] == "gzip"


@pytest.mark.parametrize("started", [False, True])
def test_a_fault_says_what_and_why(started: bool) -> None:
    ((kind, flags, stream, block),) = frames(grpc_wire.build_fault(5, "NOT_FOUND", "no such thing", started=started))
    fields = fields_of(block)

    assert (kind, flags, stream) == (1, 5, 5)
    assert (fields["grpc-status"], fields["grpc-message"]) == ("5", "no such thing")
    assert (":status" in fields) is not started
    assert "grpc-message" not in fields_of(frames(grpc_wire.build_fault(5, "UNKNOWN", "", started=True))[0][3])


@given(st.text(max_size=200))
def test_texts_come_back(text: str) -> None:
    quoted = grpc_wire.quote(text)

    assert all(0x20 <= byte <= 0x7E for byte in quoted)
    assert urllib.parse.unquote_to_bytes(quoted) == text.encode("utf-8", "replace")


@pytest.mark.parametrize("text", ["x" * 100_000, "\u20ac" * 100_000, "x" * 4095 + "\u20ac"])
def test_long_texts_are_cut_between_characters_of_the_quoting(text: str) -> None:
    quoted = grpc_wire.quote(text)

    assert len(quoted) <= 4100
    assert text.encode().startswith(urllib.parse.unquote_to_bytes(quoted))


@pytest.mark.parametrize(
    ("text", "ns"), [(b"1n", 1), (b"20u", 20_000), (b"3m", 3_000_000), (b"5S", 5 * 10**9), (b"1M", 60 * 10**9),
                     (b"1H", 3600 * 10**9), (b"99999999H", 10**18)],
)  # fmt: skip
def test_time_outs(text: bytes, ns: int) -> None:
    assert grpc_wire.read_timeout(text) == ns


@pytest.mark.parametrize("text", [b"", b"5", b"S", b"-1S", b"123456789S", b"1s", b"1.5S", b"1S "])
def test_what_is_no_time_out(text: bytes) -> None:
    with pytest.raises(InvalidArgument, match="grpc-timeout is"):
        grpc_wire.read_timeout(text)


def test_encodings() -> None:
    assert [grpc_wire.check_encoding(name) for name in ("identity", "gzip", "deflate")] == ["", "gzip", "deflate"]
    with pytest.raises(Unsupported, match="expected one of identity, deflate, gzip"):
        grpc_wire.check_encoding("br")


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_messages_are_deflated_when_that_helps(encoding: str) -> None:
    message = b"abc" * 1000
    flag, small = grpc_wire.deflate(message, encoding)
    assert flag == 1
    assert (gzip if encoding == "gzip" else zlib).decompress(small) == message
    assert grpc_wire.inflate(small, encoding, 3000) == message
    assert grpc_wire.deflate(b"abc", encoding) == (0, b"abc")
    with pytest.raises(MessageTooLarge, match=r"\(2999"):
        grpc_wire.inflate(small, encoding, 2998)


@given(st.binary(max_size=50), st.sampled_from(["gzip", "deflate"]))
def test_garbage_is_refused(data: bytes, encoding: str) -> None:
    try:
        grpc_wire.inflate(data, encoding, 1000)
    except EdgeServeError:
        return
    assert zlib.decompressobj(47).decompress(data) is not None
