"""Heads, trailers, statuses and message prefixes of gRPC over HTTP/2 (grpc/grpc doc/PROTOCOL-HTTP2.md), as bytes.

The blocks that every reply repeats are constant bytes, because they do not use HPACK's dynamic table.
"""

from __future__ import annotations

import re
import struct
import zlib

from edge_serve.errors import EdgeServeError, InvalidArgument, Unsupported
from edge_serve.messages.tensors import Buffer
from edge_serve.protocol.http2.frames import DATA, END_HEADERS, END_STREAM, FRAME_HEAD, HEADERS
from edge_serve.protocol.http2.heads import encode, encode_literal

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

#: bytes of `grpc-message`; clients accept 8 KiB of trailers
_MAX_TEXT = 4096
#: the longest timeout, 30 years, because a worker's deadline is a 64-bit number of nanoseconds
_LONGEST_NS = 10**18
_UNITS = {b"H": 3600_000_000_000, b"M": 60_000_000_000, b"S": 1_000_000_000, b"m": 1_000_000, b"u": 1_000, b"n": 1}
_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
_CONTENT_TYPE = (b"content-type", b"application/grpc")
_ACCEPT = (b"grpc-accept-encoding", ",".join(ENCODINGS).encode())


class MessageTooLarge(EdgeServeError):
    """The message has more bytes than the server accepts."""

    http_status, grpc_code = 413, "RESOURCE_EXHAUSTED"


def _encode_head(encoding: str) -> bytes:
    named = [(b"grpc-encoding", encoding.encode())] if encoding else []
    return encode(200, [_CONTENT_TYPE, _ACCEPT, *named])


#: the header block before the first message, by the encoding that it names
HEADS = {encoding: _encode_head(encoding) for encoding in ("", "gzip", "deflate")}
_OK = encode(None, [(b"grpc-status", b"0")])
_PLAIN_HEAD = HEADS[""]

_WHOLE = struct.Struct(f">HBBBI{len(_PLAIN_HEAD)}sHBBBIBI")
_TAIL = struct.Struct(f">HBBBI{len(_OK)}s")
#: bytes of a unary reply other than its message
WHOLE_OVERHEAD = _WHOLE.size + _TAIL.size


def build_head(stream: int, encoding: str = "") -> bytes:
    """Build the HEADERS frame of an answer that has messages."""
    block = HEADS[encoding]
    return FRAME_HEAD.pack(len(block) >> 8, len(block) & 0xFF, HEADERS, END_HEADERS, stream) + block


def build_reply_start(stream: int, size: int) -> bytes:
    """Build the frames before the only message, of `size` bytes, of a reply: HEADERS, and the start of DATA."""
    whole = size + PREFIX.size
    return _WHOLE.pack(
        0, len(_PLAIN_HEAD), HEADERS, END_HEADERS, stream, _PLAIN_HEAD,
        whole >> 8, whole & 0xFF, DATA, 0, stream, 0, size,
    )  # fmt: skip


def build_ok(stream: int) -> bytes:
    """Build the trailers of a successful call."""
    return _TAIL.pack(0, len(_OK), HEADERS, END_HEADERS | END_STREAM, stream, _OK)


def build_fault(stream: int, code: str, text: str, *, started: bool) -> bytes:
    """Build the trailers of a failed call, with the fields of a head unless that is sent already (`started`)."""
    fields = encode_literal(b"grpc-status", b"%d" % STATUS.get(code, STATUS["UNKNOWN"]))
    if text:
        fields += encode_literal(b"grpc-message", quote(text))
    block = fields if started else encode(200, [_CONTENT_TYPE]) + fields
    return FRAME_HEAD.pack(len(block) >> 8, len(block) & 0xFF, HEADERS, END_HEADERS | END_STREAM, stream) + block


def build_refusal(stream: int, status: int) -> bytes:
    """Build the answer to a request that is not a gRPC call: an HTTP status."""
    block = encode(status, [])
    return FRAME_HEAD.pack(0, len(block), HEADERS, END_HEADERS | END_STREAM, stream) + block


def quote(text: str) -> bytes:
    """Encode a `grpc-message`: percent-encoding for all but printable ASCII."""
    quoted = bytearray()
    for byte in text.encode("utf-8", "replace"):
        quoted += b"%c" % byte if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
        if len(quoted) >= _MAX_TEXT:
            break
    return bytes(quoted)


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
    return message


def deflate(message: bytes, encoding: str) -> tuple[int, bytes]:
    """Compress a message; return its flag and its bytes, uncompressed if compression saves nothing."""
    deflater = zlib.compressobj(wbits=zlib.MAX_WBITS | 16 if encoding == "gzip" else zlib.MAX_WBITS)
    small = deflater.compress(message) + deflater.flush()
    return (1, small) if len(small) < len(message) else (0, message)


def too_large(size: int, limit: int) -> MessageTooLarge:
    """Return the error for a message of `size` bytes, in gRPC's own words."""
    return MessageTooLarge(f"Received message larger than max ({size} vs. {limit})")
