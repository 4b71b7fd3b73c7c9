"""Frames of HTTP/2 (RFC 9113 4 and 6), and the errors of a connection and of a stream. Header blocks are in `heads`."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable

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
