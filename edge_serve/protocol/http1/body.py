"""Bodies of requests: the decoder of the chunked transfer coding (RFC 9112 7.1), and ordinary memory.

A large body has pages of its own. The kernel provides them when they are written to, so a declared length costs
nothing, and growing moves no bytes. A bytearray would be copied, or cleared, as a whole.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable

from edge_serve.messages.tensors import INLINE_BYTES, Buffer
from edge_serve.protocol.http1.errors import BadRequest, ContentTooLarge, FieldsTooLarge
from edge_serve.protocol.http1.head import FIELD, SINGLE, TOKEN, MessageLimits, refuse_field

#: larger bodies have pages of their own
LARGE = 1 << 20


def pages(size: int) -> mmap.mmap:
    """Map `size` bytes, whose pages the kernel provides when they are written to."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class BodyBuffer:
    """A growing buffer of bytes; `len` returns their number."""

    __slots__ = ("_pages", "_size", "_small")

    def __init__(self) -> None:
        self._small = bytearray()
        self._pages: mmap.mmap | None = None
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def extend(self, data: memoryview) -> None:
        """Append bytes."""
        size = self._size + len(data)
        if size <= LARGE:
            self._small += data
        else:
            self._reserve(size)[self._size : size] = data
        self._size = size

    def _reserve(self, size: int) -> mmap.mmap:
        if self._pages is None:
            self._pages = pages(max(4 * LARGE, size))
            self._pages[: self._size] = self._small
            self._small = bytearray()
        elif size > len(self._pages):
            self._pages.resize(max(2 * len(self._pages), size))
        return self._pages

    def take(self) -> Buffer:
        """Return all bytes, and leave the buffer empty."""
        small, size = self._small, self._size
        found: Buffer = small if self._pages is None else memoryview(self._pages)[:size]
        self._small, self._pages, self._size = bytearray(), None, 0
        return found


#: size, then extensions. No blanks around `;` and `=`, and no escapes in quotes: implementations differ about them.
_SIZE_LINE = re.compile(
    rf"""([0-9A-Fa-f]{{1,16}})((?:;{TOKEN}(?:={TOKEN}|="[\t\x20\x21\x23-\x5b\x5d-\x7e]*")?)*)""".encode()
)

_NOT_IN_TRAILERS = SINGLE | {"connection", "proxy-connection", "keep-alive", "upgrade", "te", "trailer", "expect"}

#: Chunks decoded in one call. A buffer of one-byte chunks would otherwise block the loop for tens of milliseconds.
_CHUNKS_PER_CALL = 1000


class ChunkedDecoder:
    """Decodes one body.

    Args:
        grow: called with a new size of the body; returns the size up to which it need not be called again, or raises.

    Attributes:
        body: the bytes decoded so far.
        done: the last chunk and the trailer section have been read.
        rested: the last call stopped early so that others can run; call again without further data.
    """

    __slots__ = (
        "_allowed", "_chunks", "_extensions", "_grow", "_left", "_limits", "_trailers", "body", "done", "rested",
    )  # fmt: skip

    def __init__(self, limits: MessageLimits, grow: Callable[[int], int]) -> None:
        self.body = BodyBuffer()
        self.done = False
        self.rested = False
        self._limits = limits
        self._grow = grow
        self._allowed = INLINE_BYTES
        self._chunks = 0
        self._extensions = 0
        #: missing bytes of the current chunk and its CR LF; 0: a size line is next
        self._left = 0
        #: bytes of trailer fields so far; None before the last chunk
        self._trailers: int | None = None

    def feed(self, data: bytearray, pos: int, end: int) -> int:
        """Decode `data[pos:end]`, and return the position reached. Pass the rest again, followed by more data.

        Raises:
            EdgeServeError: the coding is malformed, or the body exceeds a limit.
        """
        self.rested = False
        view = memoryview(data)
        budget = _CHUNKS_PER_CALL
        while not self.done:
            if self._left:
                pos = self._take(view, pos, end)
                if self._left:
                    return pos
            at = data.find(b"\n", pos, end)
            if at < 0:
                self._check_unfinished_line(end - pos)
                return pos
            if at == pos or data[at - 1] != 13:
                raise BadRequest("a line of the chunked body ends with LF alone, expected CR LF")
            if self._trailers is not None:
                self._read_trailer_line(bytes(view[pos : at + 1]))
            elif budget:
                budget -= 1
                self._read_size_line(bytes(view[pos : at - 1]))
            else:
                self.rested = True
                return pos
            pos = at + 1
        return pos

    def _take(self, view: memoryview, pos: int, end: int) -> int:
        """Copy chunk data into the body; `_left` includes the CR LF after it."""
        data_left = self._left - 2
        if data_left > 0:
            taken = min(data_left, end - pos)
            if len(self.body) + taken > self._allowed:
                self._allowed = self._grow(len(self.body) + taken)
            self.body.extend(view[pos : pos + taken])
            self._left -= taken
            pos += taken
            if taken < data_left:
                return pos
        line_end = b"\r\n"[: end - pos]
        if view[pos : pos + len(line_end)] != line_end:
            raise BadRequest("chunk data is not followed by CR LF: it is longer than its size says")
        if len(line_end) < 2:
            return pos
        self._left = 0
        return pos + 2

    def _read_size_line(self, line: bytes) -> None:
        match = _SIZE_LINE.fullmatch(line)
        if match is None or len(line) > self._limits.chunk_line:
            raise BadRequest(f"chunk size line {line[:32].decode('latin-1')!r}, expected a hexadecimal number")
        if match[2]:
            self._extensions += len(match[2])
            if self._extensions > self._limits.chunk_extensions:
                raise BadRequest(f"chunk extensions of more than {self._limits.chunk_extensions} bytes")
        size = int(match[1], 16)
        if size == 0:
            self._trailers = 0
            return
        self._chunks += 1
        if self._chunks > self._limits.chunks:  # Triton's text (ChunkCountIncrement in server src/http_server.cc)
            raise BadRequest(
                f"Chunked request body exceeds maximum of {self._limits.chunks} non-empty chunks. "
                "Send fewer or larger HTTP chunks."
            )
        if len(self.body) + size > self._limits.body:
            raise ContentTooLarge(f"the chunked body is larger than {self._limits.body} bytes")
        self._left = size + 2

    def _read_trailer_line(self, line: bytes) -> None:
        """Check a trailer field and discard it (RFC 9110 6.5.1): none may change framing or routing."""
        if line == b"\r\n":
            self.done = True
            return
        assert self._trailers is not None
        self._trailers += len(line)
        if self._trailers > self._limits.trailers:
            raise FieldsTooLarge(f"trailer fields of more than {self._limits.trailers} bytes")
        text = line.decode("latin-1")
        match = FIELD.fullmatch(text)
        if match is None:
            refuse_field(text[:-2])
        if match[1].lower() in _NOT_IN_TRAILERS:
            raise BadRequest(f"trailer field {match[1]} belongs in the head")

    def _check_unfinished_line(self, length: int) -> None:
        if self._trailers is None and length > self._limits.chunk_line:
            raise BadRequest(f"a chunk size line is longer than {self._limits.chunk_line} bytes")
        if self._trailers is not None and self._trailers + length > self._limits.trailers:
            raise FieldsTooLarge(f"trailer fields of more than {self._limits.trailers} bytes")
