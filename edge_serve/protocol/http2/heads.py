"""Header blocks of one connection: HPACK (RFC 7541) and what RFC 9113 8 asks of a request head.

A client that repeats itself sends the same bytes for the same head as long as its dynamic table stays as it is. So
blocks are remembered with what they mean, until a block changes the table: the hot path is one look-up.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass

from hpack import Decoder, HPACKError, OversizedHeaderListError

from edge_serve.protocol.http2.frames import Code, ConnectionFault, StreamFault

# its debug lines have every header in them, tokens included: not for the log of a program that logs everything
logging.getLogger("hpack").setLevel(logging.INFO)

Fields = list[tuple[bytes, bytes]]

#: a header list of more bytes (RFC 7541 4.1 counts 32 beside name and value) is answered with a refusal
MAX_LIST = 16 * 1024
#: and one of more than this ends the connection: its table would not be ours any more
_HARD_LIST = 4 * MAX_LIST
_TABLE_SIZE = 4096
_MAX_REMEMBERED = 64

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
#: RFC 9113 8.2.1 forbids blanks at both ends too; gRPC's clients send them, and its servers take them
_FORBIDDEN_IN_VALUE = re.compile(rb"[\0\r\n]")
#: RFC 9113 8.2.2
_OF_A_CONNECTION = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))


@dataclass(slots=True)
class StreamHead:
    """A request head.

    Attributes:
        fields: what follows the pseudo-fields, in order.
        content_length: as said; -1 = not said.
        too_large: the list has more than MAX_LIST bytes: refuse it.
        meaning: what the application has understood of it, None before it has looked.
    """

    method: bytes
    path: bytes
    fields: Fields
    content_length: int = -1
    too_large: bool = False
    meaning: object = None


class HeaderBlockReader:
    """Decodes the header blocks of one connection, in their order."""

    __slots__ = ("_decoder", "_heads")

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=_HARD_LIST)
        self._decoder.max_allowed_table_size = _TABLE_SIZE
        self._heads: dict[bytes, StreamHead] = {}

    def read(self, block: bytes) -> StreamHead:
        """The request head of a block.

        Raises:
            ConnectionFault: the block cannot be decoded. StreamFault: it is no request head (RFC 9113 8.1.1).
        """
        head = self._heads.get(block)
        if head is not None:
            return head
        fields, unchanged = self._decode(block)
        head = _head(fields)
        if unchanged:
            if len(self._heads) >= _MAX_REMEMBERED:
                self._heads.clear()
            self._heads[block] = head
        return head

    def forget(self) -> None:
        """Let heads be new that come again."""
        self._heads.clear()

    def skip(self, block: bytes) -> None:
        """Take note of what a block does to the table: trailers of a request, or of a stream that has gone.

        Raises:
            ConnectionFault: the block cannot be decoded.
        """
        self._decode(block)

    def _decode(self, block: bytes) -> tuple[Fields, bool]:
        """The fields, and whether the table is as it was before."""
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


def _head(fields: Fields) -> StreamHead:
    pseudo: dict[bytes, bytes] = {}
    position = 0
    for name, value in fields:
        if not name.startswith(b":"):
            break
        if name not in _PSEUDO or name in pseudo:
            raise StreamFault(Code.PROTOCOL_ERROR)
        pseudo[name] = value
        position += 1
    rest = [(bytes(name), bytes(value)) for name, value in fields[position:]]
    _check(rest)
    method, path = pseudo.get(b":method"), pseudo.get(b":path")
    if not method or not path or not pseudo.get(b":scheme"):
        raise StreamFault(Code.PROTOCOL_ERROR)
    size = sum(len(name) + len(value) + 32 for name, value in fields)
    return StreamHead(bytes(method), bytes(path), rest, _content_length(rest), size > MAX_LIST)


def _check(fields: Iterable[tuple[bytes, bytes]]) -> None:
    for name, value in fields:
        if not _NAME.fullmatch(name) or name in _OF_A_CONNECTION or _FORBIDDEN_IN_VALUE.search(value):
            raise StreamFault(Code.PROTOCOL_ERROR)
        if name == b"te" and value != b"trailers":
            raise StreamFault(Code.PROTOCOL_ERROR)


def _content_length(fields: Fields) -> int:
    values = {value for name, value in fields if name == b"content-length"}
    if not values:
        return -1
    text = values.pop()
    if values or not text.isdigit() or len(text) > 18:
        raise StreamFault(Code.PROTOCOL_ERROR)
    return int(text)


def literal(name: bytes, value: bytes) -> bytes:
    """A field as our encoder writes all of them: literal, without indexing, not Huffman coded (RFC 7541 6.2.2)."""
    return b"\0" + _text(name) + _text(value)


def _text(value: bytes) -> bytes:
    size = len(value)
    if size < 0x7F:
        return bytes((size,)) + value
    prefix = bytearray((0x7F,))
    size -= 0x7F
    while size > 0x7F:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    prefix.append(size)
    return bytes(prefix) + value


#: `:status` in the static table (RFC 7541 appendix A)
_STATUS = {200: b"\x88", 204: b"\x89", 206: b"\x8a", 304: b"\x8b", 400: b"\x8c", 404: b"\x8d", 500: b"\x8e"}


def encode(status: int | None, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A header block; without a status it is trailers."""
    parts = []
    if status is not None:
        parts.append(_STATUS.get(status) or b"\x08" + _text(b"%d" % status))
    return b"".join([*parts, *(literal(*field) for field in fields)])
