"""Time-outs, encodings, and compression of messages."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_serve.errors import EdgeServeError, InvalidArgument, Unsupported
from edge_serve.protocol.grpc import wire as grpc_wire
from edge_serve.protocol.grpc.wire import MessageTooLarge


@pytest.mark.parametrize(
    ("text", "ns"), [(b"1n", 1), (b"20u", 20_000), (b"3m", 3_000_000), (b"5S", 5 * 10**9), (b"1M", 60 * 10**9),
                     (b"1H", 3600 * 10**9), (b"99999999H", 10**18)],
)  # fmt: skip
def test_time_outs(text: bytes, ns: int) -> None:
    assert grpc_wire.read_timeout(text) == ns


@pytest.mark.parametrize("text", [b"", b"5", b"S", b"-1S", b"123456789S", b"1s", b"1.5S", b"1S "])
def test_wrong_timeouts_are_refused(text: bytes) -> None:
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
