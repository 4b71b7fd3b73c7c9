"""Exchanges that record the timestamps of traced requests (server src/http_server.cc, `StartTrace`).

While requests are traced, `Inference` and `Generation` answer through such an exchange. A stream has timestamps for
each of its chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edge_serve.messages.tensors import Buffer
from edge_serve.messages.trace import Arrival
from edge_serve.transport.door.exchange import Exchange
from edge_serve.transport.http.exchange import HttpExchange

_START, _END = "HTTP_SEND_START", "HTTP_SEND_END"


class TracedExchange:
    """An exchange that records its timestamps in an `Arrival`; implements `exchange.Exchange`."""

    def __init__(self, exchange: Exchange, now_ns: int) -> None:
        begun = (exchange.begun_ns if isinstance(exchange, HttpExchange) else 0) or now_ns
        self.arrival = Arrival([("HTTP_RECV_START", begun), ("HTTP_RECV_END", now_ns)])
        self.head, self.body, self.lease, self.extra = exchange.head, exchange.body, exchange.lease, exchange.extra
        self._exchange = exchange
        self._on_cancelled: Callable[[], None] | None = None
        exchange.on_cancelled = self._cancel

    def reply(
        self,
        status: int,
        buffers: Sequence[Buffer] = (),
        *,
        content_type: str | None = "application/json",
        headers: Sequence[tuple[str, str]] = (),
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        """Send a whole answer, and record when."""
        arrival = self.arrival
        arrival.mark(_START)

        def sent() -> None:
            arrival.mark(_END)
            arrival.leave()
            if on_sent is not None:
                on_sent()

        self._exchange.reply(status, buffers, content_type=content_type, headers=headers, on_sent=sent)

    def start(self, status: int, *, content_type: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        """Start a chunked answer."""
        self._exchange.start(status, content_type=content_type, headers=headers)

    def write(self, data: Buffer) -> bool:
        """Send a chunk, and record when."""
        self.arrival.mark(_START)
        may_continue = self._exchange.write(data)
        self.arrival.mark(_END)
        return may_continue

    def end(self) -> None:
        """End a chunked answer, and the trace of the door."""
        self._exchange.end()
        self.arrival.leave()

    @property
    def on_cancelled(self) -> Callable[[], None] | None:
        """See `Exchange`."""
        return self._on_cancelled

    @on_cancelled.setter
    def on_cancelled(self, call: Callable[[], None] | None) -> None:
        self._on_cancelled = call

    @property
    def on_drained(self) -> Callable[[], None] | None:
        """See `Exchange`."""
        return self._exchange.on_drained

    @on_drained.setter
    def on_drained(self, call: Callable[[], None] | None) -> None:
        self._exchange.on_drained = call

    @property
    def behind(self) -> bool:
        """See `Exchange`."""
        return self._exchange.behind

    def _cancel(self) -> None:
        self.arrival.leave()
        if self._on_cancelled is not None:
            self._on_cancelled()
