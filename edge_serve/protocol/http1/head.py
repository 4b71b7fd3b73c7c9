"""The heads of HTTP/1.1: request heads from bytes, response heads into bytes. No sockets, no clock.

The parser is strict. Where RFC 9112 leaves a choice to the recipient, it refuses the request, because each leniency
is a place where a proxy and this server may see different requests (request smuggling).
tests/protocol/http1/test_oracles.py compares it with h11 and llhttp. Response heads have no Date and no Server, as in
Triton, to be small.

Start with `HeadParser.parse`; `reader` turns a stream of bytes into heads and bodies.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import NoReturn

from edge_serve.aio.memo import Memo
from edge_serve.protocol.http1 import errors

END_OF_HEAD = b"\r\n\r\n"

TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
#: one `name: value` line. No blank before the colon, no folding, no control characters (RFC 9112 5). Blanks around the
#: value are stripped afterwards, because matching them would backtrack.
FIELD = re.compile(rf"({TOKEN}):([\t\x20-\x7e\x80-\xff]*)\r\n")

#: clients send names that are not ASCII unencoded, and Triton answers them
_REQUEST_LINE = re.compile(rf"({TOKEN}) ([\x21-\x7e\x80-\xff]+) HTTP/([0-9]\.[0-9])\r\n")
_NOT_ASCII = re.compile(r"[\x80-\xff]")
_VERSION_AT_END = re.compile(r" HTTP/[0-9.]+$")
_TOKEN_BYTES = frozenset(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_ABSOLUTE = re.compile(r"https?://[0-9a-z.\-_~:\[\]]+(?=[/?]|$)", re.IGNORECASE)
_LENGTH = re.compile(r"[0-9]{1,18}")

_NOT_HTTP = "this is not HTTP: a request begins with a method name"
_LF_ALONE = "a line of the head ends with LF alone, expected CR LF"

#: fields of which a second copy could change the framing or the origin (RFC 9112 3.2, 6.3)
SINGLE = frozenset(("content-length", "transfer-encoding", "host"))
_TAB_IN_SINGLE = re.compile(rf"\n(?:{'|'.join(sorted(SINGLE))}):[^\r\n]*\t", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """Limits of a request, beyond which it is refused.

    Attributes:
        request_line: bytes of the request line; beyond it 414.
        head: bytes of request line and header fields together; beyond it 431.
        fields: number of header fields; beyond it 431.
        chunks: number of non-empty chunks of one body, as in Triton; beyond it 400.
        chunk_line: bytes of one chunk-size line with its extensions.
        chunk_extensions: bytes of all chunk extensions of one body.
        trailers: bytes of all trailer fields.
        body: bytes of a body in ordinary memory; beyond it 413.
    """

    request_line: int = 16 * 1024
    head: int = 64 * 1024
    fields: int = 100
    chunks: int = 65536
    chunk_line: int = 1024
    chunk_extensions: int = 16 * 1024
    trailers: int = 8 * 1024
    body: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class RequestHead:
    """Request line and header fields. Requests with equal bytes share one object: never change it.

    Attributes:
        target: the request target as received.
        path: path of the target, percent-encoded, without scheme and host.
        query: the part after `?`, "" if there is none.
        version: "1.1" or "1.0".
        headers: (name, value) as received, in order; values are latin-1, without blanks around them.
        fields: the same by lower-case name; repeated fields are joined with ", " (RFC 9110 5.3).
        content_length: None without that header; the request then has no body unless it is chunked.
        expect_continue: the client waits for `100 Continue` before it sends the body.
    """

    method: str
    target: str
    path: str
    query: str
    version: str
    headers: tuple[tuple[str, str], ...]
    fields: dict[str, str]
    content_length: int | None
    chunked: bool
    keep_alive: bool
    expect_continue: bool

    def get(self, name: str) -> str | None:
        """Return the value of a field, None if it is absent. Fastest if `name` is lower-case."""
        value = self.fields.get(name)
        return self.fields.get(name.lower()) if value is None else value


#: the head of an exchange whose request could not be read
NO_HEAD = RequestHead("", "", "", "", "1.1", (), {}, None, False, False, False)


class HeadParser:
    """Parses heads, with a memo of recent ones: clients mostly repeat theirs, which costs one dict look-up."""

    _MEMO_HEADS = 512
    _MEMO_HEAD_BYTES = 2048

    def __init__(self, limits: MessageLimits) -> None:
        self.limits = limits
        self._memo: Memo[bytes, RequestHead] = Memo(self._MEMO_HEADS)

    def parse(self, raw: bytes) -> RequestHead:
        """Parse a head, which ends with the first empty line.

        Raises:
            EdgeServeError: one of `http1.errors`.
        """
        head = self._memo.get(raw)
        if head is None:
            head = self._parse(raw)
            if len(raw) <= self._MEMO_HEAD_BYTES:
                self._memo.add(raw, head)
        return head

    def check_beginning(self, data: bytearray | bytes, start: int, end: int, scanned: int) -> None:
        """Refuse bytes that cannot become a head, so that their client need not wait for the timeout.

        Args:
            scanned: end of the bytes that an earlier call has checked.

        Raises:
            EdgeServeError: one of `http1.errors`.
        """
        if end > start and data[start] not in _TOKEN_BYTES and data[start] != 13:
            raise errors.BadRequest(_NOT_HTTP)
        at = data.find(b"\n", scanned, end)
        while at >= 0:
            if at == start or data[at - 1] != 13:
                raise errors.BadRequest(_LF_ALONE)
            at = data.find(b"\n", at + 1, end)
        if end - start > self.limits.request_line and data.find(b"\n", start, start + self.limits.request_line) < 0:
            raise errors.TargetTooLong(f"the request line is longer than {self.limits.request_line} bytes")
        if end - start > self.limits.head:
            raise errors.FieldsTooLarge(f"the request head is larger than {self.limits.head} bytes")

    def _parse(self, raw: bytes) -> RequestHead:
        text = raw.decode("latin-1")
        line = _REQUEST_LINE.match(text)
        if line is None or line.end() > self.limits.request_line:
            _refuse_line(text.partition("\r\n")[0], self.limits)
        method, target, version = line.groups()
        if version not in ("1.1", "1.0"):
            raise errors.VersionUnsupported(f"HTTP/{version} is not supported: use HTTP/1.1 or HTTP/1.0")
        if method == "CONNECT":
            raise errors.FramingUnsupported("CONNECT is not supported: this server is not a proxy")
        if len(text) > self.limits.head:
            raise errors.FieldsTooLarge(f"the request head is larger than {self.limits.head} bytes")
        if "\t" in text and _TAB_IN_SINGLE.search(text):
            raise errors.BadRequest(
                "a header that decides about framing contains a tab, which implementations read differently"
            )
        headers = self._headers(text, line.end())
        fields = _join_by_name(headers)
        chunked = _check_chunked(fields, version)
        length = _read_content_length(fields)
        path, query = _split(target if target.isascii() else _encode_percent(target))
        keep_alive = _read_keep_alive(fields.get("connection", ""), version)
        expect = _read_expect(fields, version) and (chunked or bool(length))
        return RequestHead(method, target, path, query, version, headers, fields, length, chunked, keep_alive, expect)

    def _headers(self, text: str, at: int) -> tuple[tuple[str, str], ...]:
        headers: list[tuple[str, str]] = []
        end = len(text) - 2
        while at < end:
            match = FIELD.match(text, at)
            if match is None:
                refuse_field(text[at:].partition("\r\n")[0])
            headers.append((match[1], match[2].strip(" \t")))
            at = match.end()
        most = self.limits.fields
        if len(headers) > most:
            raise errors.FieldsTooLarge(f"the request has {len(headers)} header fields, expected at most {most}")
        return tuple(headers)


def refuse_field(line: str) -> NoReturn:
    """Raise the error that explains why a line is not a header field."""
    if "\n" in line:
        raise errors.BadRequest(_LF_ALONE)
    if line[:1] in " \t":
        raise errors.BadRequest("a header line begins with a blank: folded header lines are obsolete and refused")
    name = line.partition(":")[0]
    if ":" in line and name != name.rstrip(" \t"):
        raise errors.BadRequest(f"there is a blank between the header name {name.rstrip()[:64]!r} and its colon")
    raise errors.BadRequest(f"not a header line: {line[:64]!r}")


def _refuse_line(line: str, limits: MessageLimits) -> NoReturn:
    if ord(line[:1] or " ") not in _TOKEN_BYTES:
        raise errors.BadRequest(_NOT_HTTP)
    if "\n" in line:
        raise errors.BadRequest(_LF_ALONE)
    if len(line) + 2 > limits.request_line:
        raise errors.TargetTooLong(f"the request line is longer than {limits.request_line} bytes")
    if _VERSION_AT_END.search(line) is None:
        raise errors.BadRequest(
            f"the request line {_decode_utf8(line[:64])!r} does not end with a version such as HTTP/1.1"
        )
    raise errors.BadRequest(f"not a request line: {_decode_utf8(line[:64])!r}")


def _decode_utf8(text: str) -> str:
    return text.encode("latin-1").decode("utf-8", "replace")


def _join_by_name(headers: tuple[tuple[str, str], ...]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for name, value in headers:
        key = name.lower()
        before = fields.get(key)
        if before is None:
            fields[key] = value
        elif key in SINGLE:
            raise errors.BadRequest(f"more than one {name} header")
        else:
            fields[key] = f"{before}, {value}"
    return fields


def _check_chunked(fields: dict[str, str], version: str) -> bool:
    coding = fields.get("transfer-encoding")
    if coding is None:
        return False
    # RFC 9112 6.1 and 6.3: both lengths, or a coding that HTTP/1.0 does not have, is an attack or an error.
    if "content-length" in fields:
        raise errors.BadRequest("both Content-Length and Transfer-Encoding are given")
    if version == "1.0":
        raise errors.BadRequest("Transfer-Encoding in an HTTP/1.0 request")
    if coding.lower() != "chunked":
        raise errors.FramingUnsupported(f"transfer coding {coding[:64]!r} is not supported, expected 'chunked'")
    return True


def _read_content_length(fields: dict[str, str]) -> int | None:
    value = fields.get("content-length")
    if value is None:
        return None
    if _LENGTH.fullmatch(value) is None:
        raise errors.BadRequest(f"Content-Length is {value[:64]!r}, expected a number")
    return int(value)


def _read_keep_alive(connection: str, version: str) -> bool:
    if not connection:
        return version == "1.1"
    options = [option.strip(" \t").lower() for option in connection.split(",")]
    return "close" not in options and (version == "1.1" or "keep-alive" in options)


def _read_expect(fields: dict[str, str], version: str) -> bool:
    value = fields.get("expect")
    if value is None or version == "1.0":  # RFC 9110 10.1.1: a server ignores it from an HTTP/1.0 client
        return False
    if value.lower() != "100-continue":
        raise errors.ExpectationFailed(f"expectation {value[:64]!r} is not supported, expected '100-continue'")
    return True


def _encode_percent(target: str) -> str:
    """Percent-encode the bytes that are not ASCII."""
    return _NOT_ASCII.sub(lambda match: f"%{ord(match[0]):02X}", target)


def _split(target: str) -> tuple[str, str]:
    """Return path and query of a target in origin, absolute or asterisk form (RFC 9112 3.2)."""
    if target[0] != "/" and target != "*":
        absolute = _ABSOLUTE.match(target)
        if absolute is None:
            raise errors.BadRequest(f"request target {target[:64]!r} is neither a path nor an http:// URI")
        target = target[absolute.end() :]
        if target[:1] != "/":
            target = f"/{target}"
    path, _, query = target.partition("?")
    return path, query


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
