"""One request on an HTTP connection, and the methods to answer it."""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from edge_serve.messages.infer import Lease
from edge_serve.messages.tensors import Buffer
from edge_serve.messages.trace import Arrival
from edge_serve.protocol.http1.head import BODILESS, CLOSE, KEEP, LAST_CHUNK, RequestHead, chunk_head, response_head
from edge_serve.transport.door.body_memory import Claim

if TYPE_CHECKING:
    from edge_serve.transport.http.connection import HttpConnection

_log = logging.getLogger(__name__)


class Progress(enum.IntEnum):
    """State of the answer."""

    WAITING = 0
    STREAMING = 1
    DONE = 2


class HttpExchange:
    """Implements `Exchange` (transport/door/exchange.py), which has the contract.

    Attributes:
        connection: None once the answer is complete, or the client has disconnected.
        closes: the connection closes after this answer.
        blocked: `write` returned False, and `on_drained` is due.
        claim: the share of the body in the memory budget.
        extra: additional header fields of the answer.
        held: parts of the answer that wait for the answer of an earlier request of the connection.
    """

    __slots__ = (
        "arrival", "blocked", "body", "claim", "closes", "connection", "extra", "head", "held", "held_size", "lease",
        "on_cancelled", "on_drained", "progress",
    )  # fmt: skip

    def __init__(self, connection: HttpConnection, head: RequestHead, body: Buffer, lease: Lease | None) -> None:
        self.connection: HttpConnection | None = connection
        self.head = head
        self.body = body
        self.lease = lease
        self.claim: Claim | None = None
        self.extra: Sequence[tuple[str, str]] = ()
        self.arrival: Arrival | None = None
        self.on_cancelled: Callable[[], None] | None = None
        self.on_drained: Callable[[], None] | None = None
        self.progress = Progress.WAITING
        self.closes = False
        self.blocked = False
        self.held: list[tuple[Sequence[Buffer], int, Callable[[], None] | None]] = []
        self.held_size = 0

    def reply(
        self,
        status: int,
        buffers: Sequence[Buffer] = (),
        *,
        content_type: str | None = "application/json",
        headers: Sequence[tuple[str, str]] = (),
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        if self.arrival is not None:
            on_sent = self.arrival.sending(on_sent)
        connection = self._start_answer()
        if connection is None:
            if on_sent is not None:
                on_sent()
            return
        size = 0
        for buffer in buffers:
            size += buffer.nbytes if type(buffer) is memoryview else len(buffer)
        if self.extra:
            headers = (*headers, *self.extra)
        head = response_head(status, content_type, size, headers, self._choose_connection_field(connection))
        self.progress = Progress.DONE
        connection.count(status)
        if self.head.method == "HEAD" or status in BODILESS:
            connection.send(self, (head,), len(head), on_sent)
        else:
            connection.send(self, (head, *buffers), len(head) + size, on_sent)

    def start(self, status: int, *, content_type: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        connection = self._start_answer()
        if connection is None:
            return
        headers = (*headers, *self.extra)
        if self.head.version == "1.0":  # RFC 9112 6.3: the end of the connection ends the body
            self.closes = True
            head = response_head(status, content_type, None, headers, CLOSE)
        else:
            headers = (*headers, ("Transfer-Encoding", "chunked"))
            head = response_head(status, content_type, None, headers, self._choose_connection_field(connection))
        self.progress = Progress.STREAMING
        connection.count(status)
        connection.send(self, (head,), len(head), None)

    def write(self, data: Buffer) -> bool:
        connection = self.connection
        if connection is None:
            return True
        if self.progress is not Progress.STREAMING:
            raise RuntimeError("write before start, or after end")
        if not data or self.head.method == "HEAD":  # an empty chunk would end the body
            return True
        data = bytes(data)  # copies memory that the caller may reuse; bytes are not copied
        if self.arrival is not None:
            self.arrival.mark("HTTP_SEND_START")
        if self.head.version == "1.0":
            may_continue = connection.send(self, (data,), len(data), None)
        else:
            head = chunk_head(len(data))
            may_continue = connection.send(self, (head, data, b"\r\n"), len(head) + len(data) + 2, None)
        if self.arrival is not None:
            self.arrival.mark("HTTP_SEND_END")
        self.blocked = not may_continue
        return may_continue

    def end(self) -> None:
        connection = self.connection
        if connection is None:
            return
        if self.progress is not Progress.STREAMING:
            raise RuntimeError("end before start, or a second time")
        self.progress = Progress.DONE
        if self.head.version == "1.0" or self.head.method == "HEAD":
            connection.send(self, (), 0, None)
        else:
            connection.send(self, (LAST_CHUNK,), len(LAST_CHUNK), None)
        if self.arrival is not None:
            self.arrival.release()

    @property
    def begun_ns(self) -> int:
        """Time of the first bytes of the request, while it is handled; 0 while nothing is traced."""
        return 0 if self.connection is None else self.connection.begun_ns

    @property
    def behind(self) -> bool:
        return bool(self.held)

    def cancel(self) -> None:
        """Cancel the request of a client that disconnected, unless it is answered, and release its buffers."""
        self.connection = None
        if self.claim is not None:
            self.claim.release()
        held, self.held = self.held, []
        for _, _, on_sent in held:
            if on_sent is not None:
                on_sent()
        on_cancelled, self.on_cancelled = self.on_cancelled, None
        if self.progress is not Progress.DONE:
            if self.arrival is not None:
                self.arrival.release()
            if on_cancelled is not None:
                on_cancelled()

    def _start_answer(self) -> HttpConnection | None:
        if self.progress is not Progress.WAITING:
            raise RuntimeError("a request can be answered only once")
        return self.connection

    def _choose_connection_field(self, connection: HttpConnection) -> bytes:
        if connection.is_last(self):
            self.closes = True
            return CLOSE
        return KEEP if self.head.version == "1.0" else b""


def cancel_all(exchanges: deque[HttpExchange]) -> None:
    """Remove and cancel the exchanges of a closed connection, even if the application raises for one of them."""
    while exchanges:
        exchange = exchanges.popleft()
        try:
            exchange.cancel()
        except Exception:
            _log.exception("cancelling %s %s failed", exchange.head.method, exchange.head.path)
