from __future__ import annotations

import gzip
import zlib

import pytest

from edge_serve.errors import InvalidArgument
from edge_serve.messages.tensors import Buffer
from edge_serve.protocol.inference.compression import UnsupportedEncoding, choose, compress, decompress, is_compressed

TEXT = b'{"inputs":[]}' * 50


@pytest.mark.parametrize(("name", "expected"), [("", False), ("identity", False), ("gzip", True), ("deflate", True)])
def test_content_encodings(name: str, expected: bool) -> None:
    assert is_compressed(name) is expected


@pytest.mark.parametrize("name", ["br", "GZIP", "gzip, deflate"])
def test_unknown_content_encodings(name: str) -> None:
    with pytest.raises(UnsupportedEncoding, match=r"^Unsupported compression type$"):
        is_compressed(name)


@pytest.mark.parametrize("data", [gzip.compress(TEXT, mtime=0), zlib.compress(TEXT)])
def test_either_format_is_inflated(data: bytes) -> None:
    assert decompress(data, len(TEXT)) == TEXT
    assert decompress(memoryview(data), 10_000) == TEXT


def test_the_limit_holds_before_memory_is_taken() -> None:
    bomb = zlib.compress(bytes(50_000_000))
    with pytest.raises(InvalidArgument, match="Decompressed data size exceeds the maximum allowed value of 1000 bytes"):
        decompress(bomb, 1000)
    with pytest.raises(InvalidArgument, match="Decompressed data size exceeds"):
        decompress(gzip.compress(TEXT, mtime=0), len(TEXT) - 1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "nothing to be decompressed"),
        (TEXT, "neither gzip nor deflate data"),
        (gzip.compress(TEXT, mtime=0)[:-9], "ends too early"),
        (gzip.compress(TEXT, mtime=0) * 2, "goes on for .* bytes after its end; compress it as a whole"),
        (zlib.compress(TEXT) + b"x", "goes on for 1 bytes"),
        (gzip.compress(TEXT, mtime=0)[:-8] + bytes(8), "neither gzip nor deflate data"),
    ],
)
def test_bodies_that_cannot_be_inflated_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        decompress(data, 10_000)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("gzip", "gzip"), ("deflate", "deflate"), ("gzip, deflate", "gzip"), ("deflate, gzip", "deflate"),
        ("br", "identity"), ("*", "identity"), ("identity", "identity"), ("gzip;q=0", "identity"), ("GZIP", "identity"),
        ("deflate;q=0.5, gzip;q=1.0", "gzip"), ("identity;q=0.5, *;q=0", "identity"), ("gzip;q=x", "identity"),
        ("identity, gzip", "identity"), ("br, gzip;q=0.1", "gzip"), ("", "identity"), (";q=1", "identity"),
        ("br," * 15 + "gzip", "gzip"), ("br," * 16 + "gzip", "identity"),
    ],
)  # fmt: skip
def test_the_encoding_of_the_reply(header: str, expected: str) -> None:
    assert choose(header) == expected


def test_replies_are_compressed_across_their_buffers() -> None:
    buffers: list[Buffer] = [b"head", memoryview(TEXT), b""]
    assert gzip.decompress(compress(buffers, "gzip")) == b"head" + TEXT
    assert zlib.decompress(compress(buffers, "deflate")) == b"head" + TEXT
