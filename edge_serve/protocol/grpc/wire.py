"""Statuses, message prefixes, timeouts, and compression of gRPC over HTTP/2 (grpc/grpc doc/PROTOCOL-HTTP2.md).

And the numbers of protobuf, for messages that are encoded without it.
"""

from __future__ import annotations

import re
import struct
import zlib

from edge_serve.errors import EdgeServeError, InvalidArgument, Unsupported
from edge_serve.messages.tensors import Buffer

#: the number of each status (grpc doc/statuscodes.md)
STATUS = {
    "OK": 0, "CANCELLED": 1, "UNKNOWN": 2, "INVALID_ARGUMENT": 3, "DEADLINE_EXCEEDED": 4, "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6, "PERMISSION_DENIED": 7, "RESOURCE_EXHAUSTED": 8, "FAILED_PRECONDITION": 9, "ABORTED": 10,
    "OUT_OF_RANGE": 11, "UNIMPLEMENTED": 12, "INTERNAL": 13, "UNAVAILABLE": 14, "DATA_LOSS": 15,
    "UNAUTHENTICATED": 16,
}  # fmt: skip

#: the prefix of each message: 1 if it is compressed, and its length
PREFIX = struct.Struct(">BI")
#: the supported message encodings
ENCODINGS = ("identity", "deflate", "gzip")

#: the longest timeout, 30 years, because a worker's deadline is a 64-bit number of nanoseconds
_LONGEST_NS = 10**18
_UNITS = {b"H": 3600_000_000_000, b"M": 60_000_000_000, b"S": 1_000_000_000, b"m": 1_000_000, b"u": 1_000, b"n": 1}
_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")


class MessageTooLarge(EdgeServeError):
    """The message has more bytes than the server accepts."""

    http_status, grpc_code = 413, "RESOURCE_EXHAUSTED"


def encode_varint(value: int) -> bytes:
    """Encode `value` seven bits at a time, the lowest first, as protobuf does."""
    if value < 0x80:
        return bytes((value,))
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def read_timeout(value: bytes) -> int:
    """Read a `grpc-timeout` as nanoseconds.

    Raises:
        InvalidArgument: the value is malformed.
    """
    found = _TIMEOUT.fullmatch(value)
    if found is None:
        raise InvalidArgument(f"grpc-timeout is '{value.decode('latin-1')}', expected up to 8 digits and one of HMSmun")
    return min(int(found[1]) * _UNITS[found[2]], _LONGEST_NS)


def check_encoding(name: str) -> str:
    """Return the `grpc-encoding` of a request, "" for identity.

    Raises:
        Unsupported: the encoding is not offered.
    """
    if name not in ENCODINGS:
        raise Unsupported(f"grpc-encoding '{name}' is not offered, expected one of {', '.join(ENCODINGS)}")
    return "" if name == "identity" else name


def inflate(data: Buffer, encoding: str, limit: int) -> bytes:
    """Inflate a compressed message.

    Raises:
        InvalidArgument: the data is malformed. MessageTooLarge: the message is larger than `limit`.
    """
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 16 if encoding == "gzip" else zlib.MAX_WBITS)
    try:
        message = inflater.decompress(data, limit + 1)
    except zlib.error as error:
        raise InvalidArgument(f"a message that is no {encoding} data as grpc-encoding says: {error}") from error
    if len(message) > limit:
        raise too_large(len(message), limit)
    if not inflater.eof:
        raise InvalidArgument(f"a {encoding} message that ends too early")
    if inflater.unused_data:
        raise InvalidArgument(f"a {encoding} message that goes on for {len(inflater.unused_data)} bytes after its end")
    return message


def deflate(message: bytes, encoding: str) -> tuple[int, bytes]:
    """Compress a message; return its flag and its bytes, uncompressed if compression saves nothing."""
    deflater = zlib.compressobj(wbits=zlib.MAX_WBITS | 16 if encoding == "gzip" else zlib.MAX_WBITS)
    small = deflater.compress(message) + deflater.flush()
    return (1, small) if len(small) < len(message) else (0, message)


def too_large(size: int, limit: int) -> MessageTooLarge:
    """Return the error for a message of `size` bytes, in gRPC's own words."""
    return MessageTooLarge(f"Received message larger than max ({size} vs. {limit})")
