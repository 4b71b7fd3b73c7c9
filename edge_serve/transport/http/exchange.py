"""One request on a connection, and the way to answer it."""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from edge_serve.messages.infer import Lease
from edge_serve.messages.tensors import Buffer
from edge_serve.protocol.http1.head import RequestHead
from edge_serve.protocol.http1.response import BODILESS, CLOSE, KEEP, LAST_CHUNK, chunk_head, response_head
from edge_serve.transport.door.body_memory import Claim

_log = logging.getLogger(__name__)


class Progress(enum.IntEnum):
    """How far the answer is."""

    WAITING = 0
    STREAMING = 1
    DONE = 2


class ExchangeConnection(Protocol):
    """What an exchange needs of its connection."""

    #: when the first bytes of the newest request came; 0 = nobody looked
    begun_ns: int

    def is_last(self, exchange: HttpExchange) -> bool:
        """Whether no request follows this one, so that the reply may say so."""

    def send(self, exchange: HttpExchange, parts: Sequence[Buffer], size: int, sent: Callable[[], None] | None) -> bool:
        """Send in turn; False when too much is waiting."""

    def count(self, status: int) -> None:
        """An answer with this status has been given."""


class HttpExchange:
    """See transport/door/exchange.py for the contract.

    Attributes:
        line: None once the answer has been handed over completely, or the client has gone.
        closes: the connection ends with this answer.
        blocked: `write` said False, `on_drained` is due.
        claim: on memory for the body.
        extra: header fields of every answer, beside its own.
        held: parts given while an earlier request of the connection is still unanswered.
    """

    __slots__ = (
        "blocked",
        "body",
        "claim",
        "closes",
        "extra",
        "head",
        "held",
        "held_size",
        "lease",
        "line",
        "on_abandoned",
        "on_drained",
        "progress",
    )

    def __init__(self, line: ExchangeConnection, head: RequestHead, body: Buffer, lease: Lease | None) -> None:
        self.line: ExchangeConnection | None = line
        self.head = head
        self.body = body
        self.lease = lease
        self.claim: Claim | None = None
        self.extra: Sequence[tuple[str, str]] = ()
        self.on_abandoned: Callable[[], None] | None = None
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
        line = self._begin()
        if line is None:
            if on_sent is not None:
                on_sent()
            return
        size = 0
        for buffer in buffers:
            size += buffer.nbytes if type(buffer) is memoryview else len(buffer)
        if self.extra:
            headers = (*headers, *self.extra)
        head = response_head(status, content_type, size, headers, self._connection(line))
        self.progress = Progress.DONE
        line.count(status)
        if self.head.method == "HEAD" or status in BODILESS:
            line.send(self, (head,), len(head), on_sent)
        else:
            line.send(self, (head, *buffers), len(head) + size, on_sent)

    def start(self, status: int, *, content_type: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        line = self._begin()
        if line is None:
            return
        headers = (*headers, *self.extra)
        if self.head.version == "1.0":  # RFC 9112 6.3: it ends with the connection
            self.closes = True
            head = response_head(status, content_type, None, headers, CLOSE)
        else:
            headers = (*headers, ("Transfer-Encoding", "chunked"))
            head = response_head(status, content_type, None, headers, self._connection(line))
        self.progress = Progress.STREAMING
        line.count(status)
        line.send(self, (head,), len(head), None)

    def write(self, data: Buffer) -> bool:
        line = self.line
        if line is None:
            return True
        if self.progress is not Progress.STREAMING:
            raise RuntimeError("write before start, or after end")
        if not data or self.head.method == "HEAD":  # an empty chunk would end the body
            return True
        data = bytes(data)  # the caller may reuse its memory; bytes are not copied
        if self.head.version == "1.0":
            go_on = line.send(self, (data,), len(data), None)
        else:
            head = chunk_head(len(data))
            go_on = line.send(self, (head, data, b"\r\n"), len(head) + len(data) + 2, None)
        self.blocked = not go_on
        return go_on

    def end(self) -> None:
        line = self.line
        if line is None:
            return
        if self.progress is not Progress.STREAMING:
            raise RuntimeError("end before start, or a second time")
        self.progress = Progress.DONE
        if self.head.version == "1.0" or self.head.method == "HEAD":
            line.send(self, (), 0, None)
        else:
            line.send(self, (LAST_CHUNK,), len(LAST_CHUNK), None)

    @property
    def begun_ns(self) -> int:
        """While it is handled: when its first bytes came; 0 = nobody looked, for nothing is traced."""
        return 0 if self.line is None else self.line.begun_ns

    @property
    def behind(self) -> bool:
        return bool(self.held)

    def abandon(self) -> None:
        """The client has gone: tell the application, unless it has answered, and free the buffers it gave."""
        self.line = None
        if self.claim is not None:
            self.claim.release()
        held, self.held = self.held, []
        for _, _, on_sent in held:
            if on_sent is not None:
                on_sent()
        on_abandoned, self.on_abandoned = self.on_abandoned, None
        if on_abandoned is not None and self.progress is not Progress.DONE:
            on_abandoned()

    def _begin(self) -> ExchangeConnection | None:
        if self.progress is not Progress.WAITING:
            raise RuntimeError("a request can be answered only once")
        return self.line

    def _connection(self, line: ExchangeConnection) -> bytes:
        if line.is_last(self):
            self.closes = True
            return CLOSE
        return KEEP if self.head.version == "1.0" else b""


def abandon_all(exchanges: deque[HttpExchange]) -> None:
    """Take them off a connection that is gone, whatever the application makes of it."""
    while exchanges:
        exchange = exchanges.popleft()
        try:
            exchange.abandon()
        except Exception:
            _log.exception("abandoning %s %s failed", exchange.head.method, exchange.head.path)
