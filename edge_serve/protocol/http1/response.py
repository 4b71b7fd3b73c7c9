"""The head of a response: values in, bytes out. Small, because most bodies are: no Date, no Server (as in Triton)."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

KEEP = b"Connection: keep-alive\r\n"
CLOSE = b"Connection: close\r\n"

#: replies that have no body and say no length (RFC 9110 8.6)
BODILESS = frozenset((204, 304))

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_beginnings: dict[tuple[int, str | None], bytes] = {}
#: whole heads, because most replies of a server are of few shapes
_heads: dict[tuple[object, ...], bytes] = {}
_MOST_HEADS = 512
_LONGEST_HEAD = 512


def response_head(
    status: int,
    content_type: str | None,
    length: int | None,
    headers: Sequence[tuple[str, str]] = (),
    connection: bytes = b"",
) -> bytes:
    """Status line and header fields.

    Args:
        length: None: the body is chunked, or delimited by the end of the connection when `connection` is CLOSE and
            the caller does not say otherwise in `headers`.
        connection: KEEP, CLOSE or nothing.

    Raises:
        ValueError: a header that would end its line early.
    """
    key = (status, content_type, length, headers, connection)
    head = _heads.get(key) if type(headers) is tuple else None
    if head is None:
        head = _make(status, content_type, length, headers, connection)
        if type(headers) is tuple and len(head) <= _LONGEST_HEAD:
            if len(_heads) >= _MOST_HEADS:
                _heads.clear()
            _heads[key] = head
    return head


def _make(
    status: int, content_type: str | None, length: int | None, headers: Sequence[tuple[str, str]], connection: bytes
) -> bytes:
    beginning = _beginnings.get((status, content_type))
    if beginning is None:
        beginning = _begin(status, content_type)
    if headers:
        connection += _lines(headers)
    if length is None or status in BODILESS:
        return b"%b%b\r\n" % (beginning, connection)
    return b"%b%bContent-Length: %d\r\n\r\n" % (beginning, connection, length)


def chunk_head(length: int) -> bytes:
    """What stands before the data of a chunk (RFC 9112 7.1); CR LF follows the data."""
    return b"%x\r\n" % length


LAST_CHUNK = b"0\r\n\r\n"


def _begin(status: int, content_type: str | None) -> bytes:
    beginning = _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status
    if content_type is not None:
        beginning += _lines((("Content-Type", content_type),))
    if len(_beginnings) < 256:
        _beginnings[status, content_type] = beginning
    return beginning


def _lines(headers: Sequence[tuple[str, str]]) -> bytes:
    text = "".join([f"{name}: {value}\r\n" for name, value in headers])
    if text.count("\n") != len(headers) or text.count("\r") != len(headers) or "\0" in text:
        raise ValueError(f"a response header has a line break in it: {headers!r}")
    return text.encode("latin-1", "replace")
