"""Frames of HTTP/2 (RFC 9113 4 and 6) and the header blocks in them, and the errors of a connection and of a stream.

Header blocks are decoded with HPACK (RFC 7541), checked as RFC 9113 8 asks, and encoded for answers. A client sends the
same bytes for the same head as long as its dynamic table does not change. So the decoder keeps a memo of decoded blocks
until a block changes the table, and a repeated head costs one look-up.
"""

from __future__ import annotations

import enum
import logging
import re
import struct
from collections.abc import Iterable

from hpack import Decoder, HPACKError, OversizedHeaderListError

from edge_serve.aio.memo import Memo
from edge_serve.records import slotted

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

#: payload length (upper 16 bits, lower 8), type, flags, stream; the top bit of the stream has no meaning
FRAME_HEAD = struct.Struct(">HBBBI")
HEAD_SIZE = FRAME_HEAD.size
_WORD = struct.Struct(">I")
_SETTING = struct.Struct(">HI")
_GOAWAY = struct.Struct(">II")

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

#: flags; ACK is END_STREAM's bit on other frames
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITIZED = 0x1, 0x1, 0x4, 0x8, 0x20

MAX_WINDOW = 2**31 - 1
MAX_STREAM = 2**31 - 1


class Http2Setting(enum.IntEnum):
    """Identifiers of the settings (RFC 9113 6.5.2)."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Code(enum.IntEnum):
    """Error codes (RFC 9113 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class ConnectionFault(Exception):
    """Connection error (RFC 9113 5.4.1): the client broke a rule, and the connection is closed."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class StreamFault(Exception):
    """Stream error (RFC 9113 5.4.2): the client broke a rule on one stream; the other streams continue."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.name)
        self.code = code


def build_frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Build a frame."""
    size = len(payload)
    return FRAME_HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def build_settings(values: Iterable[tuple[Http2Setting, int]]) -> bytes:
    """Build a SETTINGS frame."""
    return build_frame(SETTINGS, 0, 0, b"".join([_SETTING.pack(*pair) for pair in values]))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Parse a SETTINGS frame into pairs of identifier and value, in order, unknown settings included.

    Raises:
        ConnectionFault: the length is not a multiple of an entry's.
    """
    if len(payload) % _SETTING.size:
        raise ConnectionFault(Code.FRAME_SIZE_ERROR, f"a SETTINGS frame of {len(payload)} bytes")
    return list(_SETTING.iter_unpack(payload))


def build_window_update(stream: int, increment: int) -> bytes:
    """Build a WINDOW_UPDATE frame; stream 0 is the connection."""
    return build_frame(WINDOW_UPDATE, 0, stream, _WORD.pack(increment))


def build_rst_stream(stream: int, code: Code) -> bytes:
    """Build a RST_STREAM frame."""
    return build_frame(RST_STREAM, 0, stream, _WORD.pack(code))


def build_goaway(last_stream: int, code: Code, text: str = "") -> bytes:
    """Build a GOAWAY frame; `text` is for people."""
    return build_frame(GOAWAY, 0, 0, _GOAWAY.pack(last_stream, code) + text.encode()[:256])


def strip_padding(data: bytes, start: int, stop: int, flags: int) -> tuple[int, int]:
    """Return where the payload of a frame begins and ends without its padding.

    Raises:
        ConnectionFault: the padding is longer than the frame.
    """
    if not flags & PADDED:
        return start, stop
    if start == stop:
        raise ConnectionFault(Code.FRAME_SIZE_ERROR, "a padded frame without its padding")
    padding = data[start]
    if start + 1 + padding > stop:
        raise ConnectionFault(Code.PROTOCOL_ERROR, "more padding than payload (RFC 9113 6.1)")
    return start + 1, stop - padding


def read_word(payload: bytes, kind: str) -> int:
    """Parse the only number, of 32 bits, in a RST_STREAM or WINDOW_UPDATE frame.

    Raises:
        ConnectionFault: the payload is not 4 bytes long.
    """
    if len(payload) != _WORD.size:
        raise ConnectionFault(Code.FRAME_SIZE_ERROR, f"a {kind} frame of {len(payload)} bytes")
    number: int = _WORD.unpack(payload)[0]
    return number


# its debug lines contain every header, tokens included, which do not belong in a log
logging.getLogger("hpack").setLevel(logging.INFO)

Fields = list[tuple[bytes, bytes]]

#: a request with a longer header list is refused (RFC 7541 4.1 counts 32 bytes beside name and value)
MAX_LIST = 16 * 1024
#: a longer one is not decoded, so the dynamic tables of both sides differ, and the connection is closed
_HARD_LIST = 4 * MAX_LIST
_TABLE_SIZE = 4096
_MAX_HEADS = 64

#: three dynamic table size updates (RFC 7541 6.3), of which a block may begin with two (4.2); `hpack` takes any number
_SIZE_UPDATES = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\x00-\x7f]){3}")

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
#: RFC 9113 8.2.1 forbids blanks at both ends too, but gRPC's clients send them and its servers accept them
_FORBIDDEN_IN_VALUE = re.compile(rb"[\0\r\n]")
#: RFC 9113 8.2.2
_OF_A_CONNECTION = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))


@slotted
class StreamHead:
    """A request head.

    Attributes:
        fields: the fields after the pseudo-fields, in order.
        content_length: the value of that field; -1 = there is none.
        too_large: the list has more than MAX_LIST bytes, and the request is to be refused.
        meaning: the application's interpretation of the head; None = it has not read it yet.
    """

    method: bytes
    path: bytes
    fields: Fields
    content_length: int = -1
    too_large: bool = False
    meaning: object = None


class HeaderBlockReader:
    """Decodes the header blocks of one connection, in the order in which they arrive."""

    __slots__ = ("_decoder", "_heads")

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=_HARD_LIST)
        self._decoder.max_allowed_table_size = _TABLE_SIZE
        self._heads: Memo[bytes, StreamHead] = Memo(_MAX_HEADS)

    def read(self, block: bytes) -> StreamHead:
        """Decode the header block of a request.

        Raises:
            ConnectionFault: the block cannot be decoded. StreamFault: the head is malformed (RFC 9113 8.1.1).
        """
        head = self._heads.get(block)
        if head is not None:
            return head
        fields, unchanged = self.decode(block)
        head = _read_head(fields)
        if unchanged:
            self._heads.add(block, head)
        return head

    def clear(self) -> None:
        """Clear the memo: heads that repeat are decoded again, and have no `meaning`."""
        self._heads.clear()

    def decode(self, block: bytes) -> tuple[Fields, bool]:
        """Return the fields, and whether the dynamic table is unchanged.

        Raises:
            ConnectionFault: the block cannot be decoded.
        """
        if _SIZE_UPDATES.match(block):
            raise ConnectionFault(Code.COMPRESSION_ERROR, "more than two table size updates (RFC 7541 4.2)")
        table = self._decoder.header_table
        entries = table.dynamic_entries
        before = entries[0] if entries else None, len(entries), table.maxsize
        try:
            fields = [(bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True)]
        except OversizedHeaderListError as error:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, str(error)) from error
        except (HPACKError, IndexError, ValueError) as error:
            raise ConnectionFault(Code.COMPRESSION_ERROR, "a header block that cannot be decoded") from error
        newest = entries[0] if entries else None
        unchanged = newest is before[0] and len(entries) == before[1] and table.maxsize == before[2]
        if not unchanged:
            self._heads.clear()
        return fields, unchanged


def _read_head(fields: Fields) -> StreamHead:
    pseudo: dict[bytes, bytes] = {}
    position = 0
    for name, value in fields:
        if not name.startswith(b":"):
            break
        if name not in _PSEUDO or name in pseudo:
            raise StreamFault(Code.PROTOCOL_ERROR)
        pseudo[name] = value
        position += 1
    rest = fields[position:]
    _check(rest)
    method, path = pseudo.get(b":method"), pseudo.get(b":path")
    if not method or not path or not pseudo.get(b":scheme"):
        raise StreamFault(Code.PROTOCOL_ERROR)
    size = sum(len(name) + len(value) + 32 for name, value in fields)
    return StreamHead(method, path, rest, _read_content_length(rest), size > MAX_LIST)


def _check(fields: Iterable[tuple[bytes, bytes]]) -> None:
    for name, value in fields:
        allowed = _NAME.fullmatch(name) and name not in _OF_A_CONNECTION and not _FORBIDDEN_IN_VALUE.search(value)
        if not allowed or (name == b"te" and value != b"trailers"):
            raise StreamFault(Code.PROTOCOL_ERROR)


def _read_content_length(fields: Fields) -> int:
    values = {value for name, value in fields if name == b"content-length"}
    if not values:
        return -1
    text = values.pop()
    if values or not text.isdigit() or len(text) > 18:
        raise StreamFault(Code.PROTOCOL_ERROR)
    return int(text)


def encode_literal(name: bytes, value: bytes) -> bytes:
    """Encode a field as a literal without indexing and without Huffman coding (RFC 7541 6.2.2)."""
    return b"\0" + _encode_text(name) + _encode_text(value)


def encode_varint(value: int) -> bytes:
    """Encode `value` seven bits at a time, the lowest first, as protobuf and HPACK do."""
    if value < 0x80:
        return bytes((value,))
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _encode_text(value: bytes) -> bytes:
    size = len(value)
    return (bytes((size,)) if size < 0x7F else b"\x7f" + encode_varint(size - 0x7F)) + value


#: `:status` in the static table (RFC 7541 appendix A)
_STATUS = {200: b"\x88", 204: b"\x89", 206: b"\x8a", 304: b"\x8b", 400: b"\x8c", 404: b"\x8d", 500: b"\x8e"}


def encode(status: int | None, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode a header block; without a status, a block of trailers."""
    first = b"" if status is None else _STATUS.get(status) or b"\x08" + _encode_text(b"%d" % status)
    return first + b"".join([encode_literal(*field) for field in fields])
