"""The receiving half of a connection, without a socket: memory for the next bytes, and requests out of them.

    buffer() -> memory for the next bytes;  advance(n): n bytes are in it;  next() -> a complete request, or None

All readers of a loop share one receive buffer, so an idle connection owns no memory. After `next` has returned None,
the bytes left over must be saved with `save_unread` before another connection receives.
"""

from __future__ import annotations

from collections.abc import Callable

from edge_serve.messages.infer import Lease
from edge_serve.messages.tensors import INLINE_BYTES, Buffer
from edge_serve.protocol.http1.body import LARGE, ChunkedDecoder, pages
from edge_serve.protocol.http1.errors import ContentTooLarge
from edge_serve.protocol.http1.head import END_OF_HEAD, HeadParser, RequestHead

#: Ordinary memory of a body doubles from this size, so that a declared length alone costs nothing.
_FIRST_STEP = 256 * 1024

#: Bytes of a body received in one call: a fast sender must not block the loop.
_AT_ONCE = 512 * 1024

#: Empty lines before a request line that are ignored (RFC 9112 2.2 asks for at least one).
_EMPTY_LINES = 4


class NeedMemory(Exception):  # not an error: a result of `place`
    """There is no memory for this body now: it stays unread, and `next` is called again when there is."""


class RequestReader:
    """Reads the requests of one connection.

    Args:
        place: returns memory for a body of known length, or None for ordinary memory; raises NeedMemory or an
            EdgeServeError.
        grow: called with a new size of a chunked body; returns the size up to which it need not be called again, or
            raises.
        check: called with the head of a chunked request, and 0, before its body is read; raises an EdgeServeError to
            refuse the body. `place` checks other requests.

    Attributes:
        head: of the request whose body is incomplete, or waits for memory, or was refused; None = there is none.
        body: of the request that `next` returned last.
        lease: the memory that `body` is a view of, if `place` returned it. The caller owns it after `next`.
        received: bytes received so far; timeouts are measured on it and on `count`.
        count: requests completed so far.
    """

    __slots__ = (
        "_check",
        "_chunked",
        "_data",
        "_end",
        "_filled",
        "_grow",
        "_head",
        "_lease",
        "_length",
        "_parser",
        "_place",
        "_pos",
        "_scanned",
        "_shared",
        "_shared_view",
        "_store",
        "body",
        "count",
        "head",
        "lease",
        "received",
    )

    def __init__(
        self,
        parser: HeadParser,
        shared: bytearray,
        shared_view: memoryview,
        place: Callable[[RequestHead, int], Lease | None],
        grow: Callable[[int], int],
        check: Callable[[RequestHead, int], None],
    ) -> None:
        self._parser = parser
        self._shared = shared
        self._shared_view = shared_view
        self._place = place
        self._grow = grow
        self._check = check
        self._data = shared
        self._pos = self._end = self._scanned = 0
        self._head: RequestHead | None = None
        self._chunked: ChunkedDecoder | None = None
        self._store: memoryview | bytearray | None = None
        self._lease: Lease | None = None
        self._length = self._filled = 0
        self.head: RequestHead | None = None
        self.body: Buffer = b""
        self.lease: Lease | None = None
        self.received = 0
        self.count = 0

    @property
    def in_head(self) -> bool:
        """Whether a part of a head has been received."""
        return self._head is None and self._pos < self._end

    @property
    def in_body(self) -> bool:
        """Whether a head is complete and its body is not."""
        return self._head is not None

    @property
    def has_place(self) -> bool:
        """Whether the next bytes are received straight into the memory of the body."""
        return self._store is not None

    @property
    def unread(self) -> bool:
        """Whether `next` has not used all received bytes yet."""
        return self._pos < self._end

    @property
    def rested(self) -> bool:
        """Whether `next` returned None only to let others run: call it again soon, without waiting for bytes."""
        return self._chunked is not None and self._chunked.rested

    @property
    def awaits_continue(self) -> bool:
        """Whether the client waits for `100 Continue` before it sends the body."""
        head = self._head
        return (
            head is not None and head.expect_continue and self._filled == 0 and self._pos == self._end
            and (self._chunked is None or not self._chunked.body)
        )  # fmt: skip

    def buffer(self) -> memoryview:
        """Return the memory for the next bytes."""
        store = self._store
        if store is None:
            return self._shared_view
        if type(store) is bytearray and self._filled == len(store):
            store += bytes(min(len(store), self._length - len(store)))
        return memoryview(store)[self._filled : self._filled + _AT_ONCE]

    def advance(self, received: int) -> None:
        """Use `received` bytes that were put into `buffer()`."""
        self.received += received
        if self._store is not None:
            self._filled += received
        elif self._data is self._shared:
            self._pos, self._end, self._scanned = 0, received, 0
        else:
            self._data += self._shared_view[:received]
            self._end = len(self._data)

    def next(self) -> RequestHead | None:
        """Return the head of the next complete request, whose body is in `body` and `lease`; None: not enough bytes.

        Raises:
            EdgeServeError: the request is malformed, or was refused by `place` or `check`. Do not use the reader
                afterwards.
        """
        if self._head is not None:
            return self._continue_body(self._head)
        data, pos = self._data, self._pos
        if pos == self._end:
            return None
        at = data.find(END_OF_HEAD, max(pos, self._scanned - 3), self._end)
        if at < 0 or data[pos] == 13:
            at = self._begin_head(at)
            if at < 0:
                return None
            pos = self._pos
        head = self._parser.parse(bytes(data[pos : at + 4]))
        self._pos = self._scanned = at + 4
        if head.chunked or head.content_length:
            self.head = head
            try:
                return self._begin_body(head)
            except NeedMemory:
                self._pos, self._scanned = pos, at
                return None
        self.body = b""
        self.lease = None
        self.count += 1
        return head

    def remove_last(self) -> None:
        """Remove the last request's body, which its receiver has. Call this at intervals.

        If each request did it, the C library would return the memory to the system and fetch it again each time, which
        takes longer than to receive the body.
        """
        self.body, self.lease = b"", None

    def save_unread(self) -> None:
        """Save the bytes that `next` has not used, before the shared buffer is filled again."""
        if self._pos == self._end:
            self._data = self._shared
            self._pos = self._end = self._scanned = 0
        elif self._data is self._shared:
            self._data = bytearray(self._shared_view[self._pos : self._end])
            self._rebase()
        elif self._pos:
            del self._data[: self._pos]
            self._rebase()

    def discard(self) -> Buffer:
        """Discard the request that is being read, and release its lease. Return its body if that had no lease."""
        own = self._chunked.body.take() if self._chunked is not None else self._store
        lease, self._lease, self._store, self._chunked = self._lease, None, None, None
        self.head = self._head = None
        self._data = self._shared
        self._pos = self._end = 0
        if lease is not None:
            lease.release()
        return b"" if own is None or lease is not None else own

    def _rebase(self) -> None:
        self._scanned = max(0, self._scanned - self._pos)
        self._end -= self._pos
        self._pos = 0

    def _begin_head(self, at: int) -> int:
        """Skip empty lines, and return the end of the head; if it is missing, check the bytes and return -1."""
        data = self._data
        for _ in range(_EMPTY_LINES):
            if data[self._pos : min(self._pos + 2, self._end)] != b"\r\n":
                break
            self._pos += 2
            at = data.find(END_OF_HEAD, self._pos, self._end)
        if at < 0:
            self._parser.check_beginning(data, self._pos, self._end, max(self._pos, self._scanned))
            self._scanned = self._end
        return at

    def _begin_body(self, head: RequestHead) -> RequestHead | None:
        if head.chunked:
            self._check(head, 0)
            self._head = head
            self._chunked = ChunkedDecoder(self._parser.limits, self._grow)
            return self._continue_body(head)
        length = head.content_length or 0
        here = self._end - self._pos
        lease = self._place(head, length) if length >= INLINE_BYTES else None
        if lease is None and length > self._parser.limits.body:
            raise ContentTooLarge(f"a body of {length} bytes is larger than {self._parser.limits.body} bytes")
        if lease is None and here >= length:
            return self._take_whole_body(head, length)
        self._head, self._length, self._lease = head, length, lease
        taken = min(here, length)
        if lease is not None:
            self._store = lease.view[:length]
        elif length > LARGE:
            self._store = memoryview(pages(length))
        else:
            self._store = bytearray(min(length, max(_FIRST_STEP, taken)))
        with memoryview(self._data) as view:
            self._store[:taken] = view[self._pos : self._pos + taken]
        self._filled = taken
        self._pos += taken
        self._scanned = self._pos
        return self._continue_body(head)

    def _take_whole_body(self, head: RequestHead, length: int) -> RequestHead:
        start, end = self._pos, self._pos + length
        if self._data is self._shared:
            self.body = bytes(self._shared_view[start:end])
        else:
            with memoryview(self._data) as view:  # released at once, because `save_unread` shortens the buffer
                self.body = bytes(view[start:end])
        self._pos += length
        self._scanned = self._pos
        self.head = self.lease = None
        self.count += 1
        return head

    def _continue_body(self, head: RequestHead) -> RequestHead | None:
        if self._chunked is not None:
            self._pos = self._scanned = self._chunked.feed(self._data, self._pos, self._end)
            if not self._chunked.done:
                return None
            self.body = self._chunked.body.take()
        elif self._filled < self._length:
            return None
        else:
            assert self._store is not None
            self.body = self._store
        self.lease = self._lease
        self.head = self._head = self._chunked = self._store = self._lease = None
        self._filled = 0
        self.count += 1
        return head
