"""Header blocks of HTTP/2: decoded with HPACK (RFC 7541), checked as RFC 9113 8 asks, and encoded for answers.

A client sends the same bytes for the same head as long as its dynamic table does not change. So the decoder keeps a
memo of decoded blocks until a block changes the table, and a repeated head costs one look-up.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable

from hpack import Decoder, HPACKError, OversizedHeaderListError
from hpack.hpack import encode_integer

from edge_serve.aio.memo import Memo
from edge_serve.protocol.http2.frames import Code, ConnectionFault, StreamFault
from edge_serve.records import slotted

# its debug lines contain every header, tokens included, which do not belong in a log
logging.getLogger("hpack").setLevel(logging.INFO)

Fields = list[tuple[bytes, bytes]]

#: a request with a longer header list is refused (RFC 7541 4.1 counts 32 bytes beside name and value)
MAX_LIST = 16 * 1024
#: a longer one is not decoded, so the dynamic tables of both sides differ, and the connection is closed
_HARD_LIST = 4 * MAX_LIST
_TABLE_SIZE = 4096
#: entries of the memo of a connection, which an idle one keeps, and bytes of all their header lists
_MAX_HEADS, _MAX_KEPT = 64, 128 * 1024

#: fields and bytes of a header list that cost one token (see `Allowance`), by whichever of them is more. One byte of a
#: block can be a field of 4 KiB, out of the dynamic table. A list of MAX_LIST costs as much for its bytes as the answer
#: of a unary call earns.
_FIELDS_PER_TOKEN, _BYTES_PER_TOKEN = 16, 2048

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
    """Decodes the header blocks of one connection, in the order in which they arrive.

    Args:
        charge: called with the price of each decoded block that is larger than an ordinary one; may raise
            ConnectionFault.
    """

    __slots__ = ("_charge", "_decoder", "_heads", "_kept")

    def __init__(self, charge: Callable[[int], None]) -> None:
        self._charge = charge
        self._decoder = Decoder(max_header_list_size=_HARD_LIST)
        self._decoder.max_allowed_table_size = _TABLE_SIZE
        self._heads: Memo[bytes, StreamHead] = Memo(_MAX_HEADS)
        #: bytes that were added to the memo since it was empty, those of evicted entries too
        self._kept = 0

    def read(self, block: bytes) -> StreamHead:
        """Decode the header block of a request.

        Raises:
            ConnectionFault: the block cannot be decoded, or `charge` refuses it. StreamFault: the head is malformed
                (RFC 9113 8.1.1).
        """
        head = self._heads.get(block)
        if head is not None:
            return head
        fields, size, unchanged = self.decode(block)
        head = _read_head(fields, size)
        if unchanged and not head.too_large:
            self._add(block, head, size)
        return head

    def clear(self) -> None:
        """Clear the memo: heads that repeat are decoded again, and have no `meaning`."""
        self._heads.clear()
        self._kept = 0

    def decode(self, block: bytes) -> tuple[Fields, int, bool]:
        """Return the fields, the bytes of their list (see MAX_LIST), and whether the dynamic table is unchanged.

        Raises:
            ConnectionFault: the block cannot be decoded, or `charge` refuses it.
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
        size = sum([len(name) + len(value) + 32 for name, value in fields])
        if len(fields) >= _FIELDS_PER_TOKEN or size >= _BYTES_PER_TOKEN:
            self._charge(max(len(fields) // _FIELDS_PER_TOKEN, size // _BYTES_PER_TOKEN))
        newest = entries[0] if entries else None
        unchanged = newest is before[0] and len(entries) == before[1] and table.maxsize == before[2]
        if not unchanged:
            self.clear()
        return fields, size, unchanged

    def _add(self, block: bytes, head: StreamHead, size: int) -> None:
        if self._kept + size > _MAX_KEPT:
            self.clear()
        self._kept += size
        self._heads.add(block, head)


def _read_head(fields: Fields, size: int) -> StreamHead:
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


def _encode_text(value: bytes) -> bytes:
    return bytes(encode_integer(len(value), 7)) + value


#: `:status` in the static table (RFC 7541 appendix A)
_STATUS = {200: b"\x88", 204: b"\x89", 206: b"\x8a", 304: b"\x8b", 400: b"\x8c", 404: b"\x8d", 500: b"\x8e"}


def encode(status: int | None, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode a header block; without a status, a block of trailers."""
    first = b"" if status is None else _STATUS.get(status) or b"\x08" + _encode_text(b"%d" % status)
    return first + b"".join([encode_literal(*field) for field in fields])
