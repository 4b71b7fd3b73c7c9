"""Inference over HTTP while requests are traced: what the door sees of one (server src/http_server.cc, `StartTrace`).

`v2` takes these in place of `Inference` and `Generation` as long as something is traced, so that what is not traced
pays nothing. A stream is sent chunk by chunk, and each has a start and an end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edge_serve.clock import Clock
from edge_serve.messages.infer import InferRequest
from edge_serve.messages.tensors import Buffer
from edge_serve.messages.trace import Arrival
from edge_serve.observe.tracing.tracing import Tracing
from edge_serve.transport.door.exchange import Exchange
from edge_serve.transport.http.exchange import HttpExchange
from edge_serve.transport.v2.generate import GenerateAnswer, StreamTicket, Writer
from edge_serve.transport.v2.generate_routes import Generation
from edge_serve.transport.v2.head import V2Request
from edge_serve.transport.v2.infer import Inference, InferService, OnResponse, ServedVersion
from edge_serve.workers.codec.codec import Codec

_START, _END = "HTTP_SEND_START", "HTTP_SEND_END"


class TracedExchange:
    """An exchange that tells an arrival what becomes of it; implements `exchange.Exchange`."""

    def __init__(self, exchange: Exchange, now_ns: int) -> None:
        begun = (exchange.begun_ns if isinstance(exchange, HttpExchange) else 0) or now_ns
        self.arrival = Arrival([("HTTP_RECV_START", begun), ("HTTP_RECV_END", now_ns)])
        self.head, self.body, self.lease, self.extra = exchange.head, exchange.body, exchange.lease, exchange.extra
        self._exchange = exchange
        self._on_cancelled: Callable[[], None] | None = None
        exchange.on_cancelled = self._abandoned

    def reply(
        self,
        status: int,
        buffers: Sequence[Buffer] = (),
        *,
        content_type: str | None = "application/json",
        headers: Sequence[tuple[str, str]] = (),
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        """See `Exchange`."""
        arrival = self.arrival
        arrival.mark(_START)

        def sent() -> None:
            arrival.mark(_END)
            arrival.leave()
            if on_sent is not None:
                on_sent()

        self._exchange.reply(status, buffers, content_type=content_type, headers=headers, on_sent=sent)

    def start(self, status: int, *, content_type: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        """See `Exchange`."""
        self._exchange.start(status, content_type=content_type, headers=headers)

    def write(self, data: Buffer) -> bool:
        """See `Exchange`."""
        self.arrival.mark(_START)
        go_on = self._exchange.write(data)
        self.arrival.mark(_END)
        return go_on

    def end(self) -> None:
        """See `Exchange`."""
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

    def _abandoned(self) -> None:
        self.arrival.leave()
        if self._on_cancelled is not None:
            self._on_cancelled()


class TracedInference(Inference):
    """Answers infer requests."""

    def __init__(
        self, service: InferService, max_input_size: int, clock: Clock, codec: Codec | None, tracing: Tracing
    ) -> None:
        super().__init__(service, max_input_size, clock, codec)
        self._tracing = tracing

    def handle(self, exchange: Exchange, v2_request: V2Request) -> None:
        """See `Inference.handle`."""
        super().handle(TracedExchange(exchange, self._tracing.now_ns()), v2_request)

    def _run(self, exchange: Exchange, v2_request: V2Request, request: InferRequest, served: ServedVersion) -> None:
        assert isinstance(exchange, TracedExchange), "`handle` makes it one"
        self._tracing.arrival = exchange.arrival
        try:
            super()._run(exchange, v2_request, request, served)
        finally:
            self._tracing.arrival = None


class TracedGeneration(Generation):
    """Answers generate requests."""

    def __init__(self, service: InferService, max_input_size: int, codec: Codec | None, tracing: Tracing) -> None:
        super().__init__(service, max_input_size, codec)
        self._tracing = tracing

    def handle(
        self, exchange: Exchange, v2_request: V2Request, form: Callable[[Exchange, Writer | None], GenerateAnswer]
    ) -> None:
        """See `Generation.handle`."""
        super().handle(TracedExchange(exchange, self._tracing.now_ns()), v2_request, form)

    def _run(
        self, request: InferRequest, answer: GenerateAnswer, infer: Callable[[InferRequest, OnResponse], StreamTicket]
    ) -> None:
        assert isinstance(answer.exchange, TracedExchange), "`handle` makes it one"
        self._tracing.arrival = answer.exchange.arrival
        try:
            super()._run(request, answer, infer)
        except BaseException:
            answer.exchange.arrival.leave()  # whoever handles it has the exchange below
            raise
        finally:
            self._tracing.arrival = None
