"""Compresses and decompresses gzip and deflate bodies (server src/data_compressor.h, and `CompressionTypeUsed` in
src/http_server.cc)."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from edge_serve.errors import InvalidArgument, Unsupported
from edge_serve.messages.tensors import Buffer
from edge_serve.protocol.inference.cost import TooExpensive

#: 32 added to the window bits: zlib detects the format, so that either name works for either format
_DETECT = zlib.MAX_WBITS | 32
_GZIP = zlib.MAX_WBITS | 16
#: entries of an Accept-Encoding that are read; browsers send about five
_MOST_ENTRIES = 16


class UnsupportedEncoding(Unsupported):
    """An unsupported Content-Encoding. The reply lists the supported ones in `Accept-Encoding`."""

    def __init__(self) -> None:
        super().__init__("Unsupported compression type")


def is_compressed(content_encoding: str) -> bool:
    """Return whether a body with this Content-Encoding has to be decompressed.

    Raises:
        UnsupportedEncoding: the encoding is neither identity, gzip nor deflate.
    """
    if content_encoding in ("", "identity"):
        return False
    if content_encoding in ("gzip", "deflate"):
        return True
    raise UnsupportedEncoding


def decompress(data: Buffer, limit: int, most: int = 1 << 62) -> bytes:
    """Decompress a body.

    Args:
        most: largest size, before and after, that this process decompresses.

    Raises:
        TooExpensive: the body is larger than `most`.
        InvalidArgument: the body is empty, malformed, cut short, goes on after its end, or is larger than `limit` once
            decompressed.
    """
    if not len(data):
        raise InvalidArgument("nothing to be decompressed")
    if len(data) > most:
        raise TooExpensive
    inflater = zlib.decompressobj(_DETECT)
    try:
        inflated = inflater.decompress(data, min(limit, most) + 1)
    except zlib.error as error:
        raise InvalidArgument(
            f"the request body is neither gzip nor deflate data as Content-Encoding says: {error}"
        ) from error
    if most < len(inflated) <= limit:
        raise TooExpensive
    if len(inflated) > limit:
        raise InvalidArgument(
            f"Decompressed data size exceeds the maximum allowed value of {limit} bytes. Use --http-max-input-size to "
            "increase the limit."
        )
    if not inflater.eof:
        raise InvalidArgument("the compressed request body ends too early")
    if inflater.unused_data:
        raise InvalidArgument(
            f"the compressed request body goes on for {len(inflater.unused_data)} bytes after its end; compress it as "
            "a whole (one member of gzip)"
        )
    return inflated


def choose(accept_encoding: str) -> str:
    """Return `gzip`, `deflate` or `identity`: the highest weight, and the first of equal ones, as Triton does.

    Entries after the sixteenth are ignored, so that a long header does not occupy the event loop.
    """
    best, best_weight = "identity", 0.0
    for entry in accept_encoding.split(",", _MOST_ENTRIES)[:_MOST_ENTRIES]:
        name, has_weight, text = entry.lstrip(" ").partition(";q=")
        try:
            weight = float(text) if has_weight else 1.0
        except ValueError:
            continue
        if name in ("identity", "deflate", "gzip") and weight > best_weight:
            best, best_weight = name, weight
    return best


def compress(buffers: Iterable[Buffer], encoding: str) -> bytes:
    """Compress the joined `buffers` with `gzip` or `deflate` (in the zlib format)."""
    deflater = zlib.compressobj(wbits=_GZIP if encoding == "gzip" else zlib.MAX_WBITS)
    return b"".join([*map(deflater.compress, buffers), deflater.flush()])
