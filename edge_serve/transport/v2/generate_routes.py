"""The requests of `generate` and `generate_stream`: decodes them, and calls the service. `generate` has the answers.

As for `infer`, the loop decodes small requests, and a codec process those that would block the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from edge_serve.errors import EdgeServeError
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.tensors import Buffer
from edge_serve.observe.tracing.tracing import Tracing
from edge_serve.protocol.inference.cost import LOOP_LIMITS, NO_LIMITS, TooExpensive
from edge_serve.protocol.v2 import generate
from edge_serve.transport.door.exchange import Exchange
from edge_serve.transport.http.replies import refuse
from edge_serve.transport.v2.codec_offload import CodecTicket, run_for_client, run_in_codec
from edge_serve.transport.v2.generate import GenerateAnswer, Writer, check_encoding
from edge_serve.transport.v2.head import V2Request
from edge_serve.transport.v2.infer import InferService, ServedVersion, start_trace
from edge_serve.workers.codec.codec import Codec
from edge_serve.workers.codec.job import Body, Encoded, Refused

#: makes the answer: `Single` or `EventStream`
Form = Callable[[Exchange, "Writer | None"], GenerateAnswer]


class Generation:
    """Answers generate requests.

    Args:
        codec: None = the loop does all coding.

    Attributes:
        tracing: set while requests are traced.
    """

    def __init__(self, service: InferService, max_input_size: int, codec: Codec | None) -> None:
        self.tracing: Tracing | None = None
        self._service = service
        self._max_input_size = max_input_size
        self._codec = codec
        self._limits = NO_LIMITS if codec is None else LOOP_LIMITS

    def handle(self, exchange: Exchange, v2_request: V2Request, form: Form) -> None:
        """Answer a request, now or later.

        Raises:
            EdgeServeError: the request was refused before it reached the model.
        """
        if self.tracing is not None:
            start_trace(exchange, self.tracing.now_ns())
        route = v2_request.route
        served = self._service.lookup(route.model, route.version)
        check_encoding(exchange.head.get("content-encoding"))
        body = exchange.body
        try:
            request = generate.read(body, served.signature, route.version, self._max_input_size, self._limits)
        except TooExpensive:
            self._decode_in_codec(exchange, v2_request, served, form)
            return
        if exchange.lease is not None:
            exchange.lease.release()  # the request has no view of its text
            exchange.lease = None
        self._run(exchange, v2_request, request, served, form)

    def _run(
        self, exchange: Exchange, v2_request: V2Request, request: InferRequest, served: ServedVersion, form: Form
    ) -> None:
        answer = form(exchange, self._make_writer(served))
        answer.on_error = partial(self._service.count_client_error, v2_request.route.model, v2_request.route.version)
        ticket = self._service.infer(served, request, answer.on_response, exchange.arrival)
        if answer.refusal is not None:
            self._refuse(exchange, v2_request, answer.refusal)
        else:
            answer.accept(ticket)

    def _refuse(self, exchange: Exchange, v2_request: V2Request, error: EdgeServeError) -> None:
        self._service.count_client_error(v2_request.route.model, v2_request.route.version, error)
        refuse(exchange, error, v2_request.error_type)

    # ---- in a codec process -------------------------------------------------------------------------------------

    def _decode_in_codec(self, exchange: Exchange, v2_request: V2Request, served: ServedVersion, form: Form) -> None:
        assert self._codec is not None, "without a codec nothing is too expensive"
        body = Body(
            served.signature,
            v2_request.route.version,
            served.arena,
            exchange.body,
            exchange.lease,
            None,
            False,
            self._max_input_size,
            generate=True,
        )

        def on_read(outcome: InferRequest | Refused) -> None:
            if isinstance(outcome, Refused):
                self._refuse(exchange, v2_request, outcome.error)
            else:
                self._run(exchange, v2_request, outcome, served, form)

        run_for_client(exchange, served, partial(self._codec.decode, body), on_read)

    def _make_writer(self, served: ServedVersion) -> Writer | None:
        codec = self._codec
        if codec is None:
            return None

        def write(response: InferResponse, then: Callable[[bytes | EdgeServeError], None]) -> CodecTicket | None:
            def on_written(outcome: Encoded | Refused) -> None:
                then(outcome.error if isinstance(outcome, Refused) else _take_text(outcome))

            request = InferRequest(response.model_name)
            encode = partial(codec.encode, response, request, served.signature, "identity", generate=True)
            return run_in_codec(served, encode, on_written)

        return write


def _take_text(encoded: Encoded) -> bytes:
    """Copy the JSON text out of its memory, and release that."""
    buffers: list[Buffer] = encoded.buffers
    text = b"".join(buffers)
    encoded.lease.release()
    return text
