"""The head of a response: values in, bytes out. It has no Date and no Server, as in Triton, to be small."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from edge_serve.aio.memo import Memo

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

KEEP = b"Connection: keep-alive\r\n"
CLOSE = b"Connection: close\r\n"

#: statuses of replies without body and length (RFC 9110 8.6)
BODILESS = frozenset((204, 304))

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_LONGEST_HEAD = 512
#: whole heads, because a server's replies have few different ones
_heads: Memo[tuple[object, ...], bytes] = Memo(512)


def response_head(
    status: int,
    content_type: str | None,
    length: int | None,
    headers: Sequence[tuple[str, str]] = (),
    connection: bytes = b"",
) -> bytes:
    """Encode status line and header fields.

    Args:
        length: None: the body is chunked if `headers` say so, or else ends with the connection (`connection` is CLOSE).
        connection: KEEP, CLOSE or nothing.

    Raises:
        ValueError: a header contains a line break.
    """
    key = (status, content_type, length, headers, connection)
    head = _heads.get(key) if type(headers) is tuple else None
    if head is None:
        head = _encode(status, content_type, length, headers, connection)
        if type(headers) is tuple and len(head) <= _LONGEST_HEAD:
            _heads.add(key, head)
    return head


def _encode(
    status: int, content_type: str | None, length: int | None, headers: Sequence[tuple[str, str]], connection: bytes
) -> bytes:
    beginning = _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status
    if content_type is not None:
        beginning += _encode_fields((("Content-Type", content_type),))
    if headers:
        connection += _encode_fields(headers)
    if length is None or status in BODILESS:
        return b"%b%b\r\n" % (beginning, connection)
    return b"%b%bContent-Length: %d\r\n\r\n" % (beginning, connection, length)


def chunk_head(length: int) -> bytes:
    """Encode the size line before the data of a chunk (RFC 9112 7.1); CR LF follows the data."""
    return b"%x\r\n" % length


LAST_CHUNK = b"0\r\n\r\n"


def _encode_fields(headers: Sequence[tuple[str, str]]) -> bytes:
    text = "".join([f"{name}: {value}\r\n" for name, value in headers])
    if text.count("\n") != len(headers) or text.count("\r") != len(headers) or "\0" in text:
        raise ValueError(f"a response header has a line break in it: {headers!r}")
    return text.encode("latin-1", "replace")
