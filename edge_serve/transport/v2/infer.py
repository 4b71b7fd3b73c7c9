"""The operation `infer` over HTTP: decodes requests, calls the service, encodes responses.

A small request is decoded in the call, and its response is encoded in the callback of the worker's reply. Coding that
would block the loop (`TooExpensive`) is done in a codec process. The model version and its memory are kept meanwhile,
because the request is not in the model's queue.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from edge_serve.clock import Clock
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, Unsupported
from edge_serve.messages.infer import InferRequest, InferResponse, Lease, Room
from edge_serve.messages.log_fields import model_fields
from edge_serve.messages.signature import Signature
from edge_serve.messages.tensors import Buffer
from edge_serve.messages.trace import Arrival
from edge_serve.models.run.runner import OnResponse, Ticket
from edge_serve.observe.tracing.tracing import Tracing
from edge_serve.protocol.inference import compression
from edge_serve.protocol.inference.cost import LOOP_LIMITS, NO_LIMITS, TooExpensive
from edge_serve.protocol.v2.infer import InferDecoder, InferEncoder, parse_header_length, refuse_json_size
from edge_serve.transport.door.exchange import Exchange
from edge_serve.transport.http.replies import refuse
from edge_serve.transport.v2.codec_offload import Held, run_for_client
from edge_serve.transport.v2.head import JSON, PLAIN, V2Request
from edge_serve.transport.v2.routes import RouteGroup
from edge_serve.workers.codec.codec import Codec
from edge_serve.workers.codec.job import Body, Encoded, Refused
from edge_serve.workers.memory.arena import Arena
from edge_serve.workers.memory.regions import SharedMemoryRegions

log = logging.getLogger(__name__)

_BINARY = "application/octet-stream"
#: alignment in the arena of the first tensor of a body
_ALIGNMENT = 256


class ServedVersion(Held, Protocol):
    """A loaded model version, as `InferService.lookup` returns it."""

    @property
    def signature(self) -> Signature: ...
    @property
    def arena(self) -> Arena | None: ...


class InferService(Protocol):
    """The service (service.Service), as inference uses it over HTTP and gRPC; `infer` takes the version that `lookup`
    returned."""

    def live(self) -> bool: ...
    def lookup(self, name: str, version: str) -> ServedVersion: ...
    def lease(self, name: str, version: str, nbytes: int) -> Room | None: ...
    def infer(self, served: Any, request: InferRequest, on_response: OnResponse, arrival: Arrival | None) -> Ticket: ...
    def count_client_error(self, name: str, version: str, error: EdgeServeError) -> None: ...
    @property
    def regions(self) -> SharedMemoryRegions: ...


def lease_aligned(service: InferService, model: str, version: str, length: int, first: int) -> Room | None:
    """Return memory in the model's arena for `length` bytes, the byte `first` aligned to 256 bytes; None = no arena.

    Raises:
        Unavailable: the arena is full.
    """
    shift = -first % _ALIGNMENT
    room = service.lease(model, version, length + shift)
    if room is not None:
        room.skip(shift)
    return room


def start_trace(exchange: Exchange, now_ns: int) -> None:
    """Record when the request arrived, and from now on when its answer is sent (server src/http_server.cc,
    `StartTrace`). A stream has timestamps for each of its chunks."""
    received = [("HTTP_RECV_START", exchange.begun_ns or now_ns), ("HTTP_RECV_END", now_ns)]
    exchange.arrival = Arrival(received)


def report_unencodable(response: InferResponse) -> Internal:
    """Log the current exception, raised by the encoding of a response, and return the error for the client."""
    extra = model_fields(response.model_name, response.model_version, response.id)
    log.exception("encoding a response of model %s failed", response.model_name, extra=extra)
    return Internal("the server failed to encode the response, its log says why")


class Inference:
    """Answers infer requests.

    Args:
        codec: None = the loop does all coding.

    Attributes:
        tracing: set while requests are traced.
    """

    def __init__(self, service: InferService, max_input_size: int, clock: Clock, codec: Codec | None) -> None:
        self.tracing: Tracing | None = None
        self._service = service
        self._max_input_size = max_input_size
        self._clock = clock
        self._codec = codec
        self._limits = NO_LIMITS if codec is None else LOOP_LIMITS
        self._decoder = InferDecoder(max_input_size, self._limits, service.regions)
        self._encoder = InferEncoder(patient=codec is None)

    def check(self, v2_request: V2Request, length: int) -> None:
        """Check the length of a body that is not binary against --http-max-input-size.

        Raises:
            EdgeServeError: the body is too large.
        """
        text = v2_request.length_text
        if (v2_request.compressed or text is None) and length > self._max_input_size:
            raise refuse_json_size(length, self._max_input_size)

    def place(self, v2_request: V2Request, length: int) -> Room | None:
        """Return tensor memory for a binary body, its first tensor aligned to 256 bytes, or for one for the codec."""
        route, text, first = v2_request.route, v2_request.length_text, 0
        if v2_request.refusal is not None:
            return None
        if text is not None and not v2_request.compressed:
            try:
                first = parse_header_length(text, length) or 0
            except InvalidArgument:
                return None  # `handle` answers the error
        elif route.operation.group is not RouteGroup.INFERENCE or length <= self._limits.body:
            return None
        return lease_aligned(self._service, route.model, route.version, length, first)

    def handle(self, exchange: Exchange, v2_request: V2Request) -> None:
        """Answer a request, now or later.

        Raises:
            EdgeServeError: the request was refused before its body was decoded.
        """
        if self.tracing is not None:
            start_trace(exchange, self.tracing.now_ns())
        route = v2_request.route
        served = self._service.lookup(route.model, route.version)
        signature = served.signature
        if signature.decoupled:
            raise Unsupported("HTTP end point doesn't support models with decoupled transaction policy")
        body, lease = exchange.body, exchange.lease
        try:
            if v2_request.compressed:
                body = compression.decompress(body, self._max_input_size, self._limits.body)
            length = parse_header_length(v2_request.length_text, len(body))
            try:
                request = self._decoder.decode(
                    signature,
                    route.version,
                    body,
                    length,
                    offset=-1 if lease is None else lease.offset,
                    forwarded=v2_request.forwarded,
                )
            except EdgeServeError as error:
                if lease is not None:
                    lease.release()
                self._refuse(exchange, v2_request, error, JSON)
                return
        except TooExpensive:
            self._decode_in_codec(exchange, v2_request, served)
            return
        request.lease = lease
        if v2_request.timeout_ns:
            request.deadline_ns = self._clock.now_ns() + v2_request.timeout_ns
        self._run(exchange, v2_request, request, served)

    def _run(self, exchange: Exchange, v2_request: V2Request, request: InferRequest, served: ServedVersion) -> None:
        answered = False
        error_type = JSON  # of errors of the scheduler; as in Triton, errors of the model have another type

        def on_response(response: InferResponse) -> None:
            nonlocal answered
            answered = True
            exchange.on_cancelled = None
            try:
                if response.error is not None:
                    self._refuse(exchange, v2_request, response.error, error_type)
                elif self._write(exchange, v2_request, request, served, response):
                    return  # the exchange or the codec releases the lease
            except EdgeServeError as error:
                self._refuse(exchange, v2_request, error, PLAIN)
            except Exception:
                refuse(exchange, report_unencodable(response), PLAIN)
            if response.lease is not None:
                response.lease.release()

        ticket = self._service.infer(served, request, on_response, exchange.arrival)
        error_type = PLAIN
        if not answered:
            exchange.on_cancelled = ticket.cancel

    def _refuse(self, exchange: Exchange, v2_request: V2Request, error: EdgeServeError, content_type: str) -> None:
        self._service.count_client_error(v2_request.route.model, v2_request.route.version, error)
        refuse(exchange, error, content_type)

    def _write(
        self,
        exchange: Exchange,
        v2_request: V2Request,
        request: InferRequest,
        served: ServedVersion,
        response: InferResponse,
    ) -> bool:
        """Encode and send the response. Return whether its lease is released when that is done."""
        try:
            buffers, length = self._encoder.encode(response, request, served.signature)
            if v2_request.accept != "identity":
                if sum(map(len, buffers)) > self._limits.deflated:
                    raise TooExpensive
                buffers = [compression.compress(buffers, v2_request.accept)]
        except TooExpensive:

            def on_written(outcome: Encoded | Refused) -> None:
                if isinstance(outcome, Refused):
                    self._refuse(exchange, v2_request, outcome.error, PLAIN)
                else:
                    _send(exchange, v2_request, outcome.buffers, outcome.length, outcome.lease)

            encode = partial(self._required_codec.encode, response, request, served.signature, v2_request.accept)
            run_for_client(exchange, served, encode, on_written)
            return True
        in_lease = length is not None and v2_request.accept == "identity"
        _send(exchange, v2_request, buffers, length, response.lease if in_lease else None)
        return in_lease

    # ---- in a codec process -------------------------------------------------------------------------------------

    def _decode_in_codec(self, exchange: Exchange, v2_request: V2Request, served: ServedVersion) -> None:
        body = Body(
            served.signature,
            v2_request.route.version,
            served.arena,
            exchange.body,
            exchange.lease,
            v2_request.length_text,
            v2_request.compressed,
            self._max_input_size,
        )
        deadline_ns = self._clock.now_ns() + v2_request.timeout_ns if v2_request.timeout_ns else 0

        def on_read(outcome: InferRequest | Refused) -> None:
            if isinstance(outcome, Refused):
                self._refuse(exchange, v2_request, outcome.error, v2_request.error_type if outcome.before else JSON)
                return
            try:
                if outcome.shared:
                    self._service.regions.resolve(outcome)
            except EdgeServeError as error:
                if outcome.lease is not None:
                    outcome.lease.release()
                self._refuse(exchange, v2_request, error, JSON)
                return
            outcome.deadline_ns = deadline_ns
            if v2_request.forwarded:
                outcome.parameters.update(v2_request.forwarded)
            self._run(exchange, v2_request, outcome, served)

        run_for_client(exchange, served, partial(self._required_codec.decode, body), on_read)

    @property
    def _required_codec(self) -> Codec:
        assert self._codec is not None, "without a codec nothing is too expensive"
        return self._codec


def _send(
    exchange: Exchange, v2_request: V2Request, buffers: Sequence[Buffer], length: int | None, lease: Lease | None
) -> None:
    """Send the reply. Release `lease`, which has the memory of the buffers, after the last byte."""
    content_type = JSON
    headers: tuple[tuple[str, str], ...] = ()
    if length is not None:
        content_type, headers = _BINARY, (("Inference-Header-Content-Length", str(length)),)
    if v2_request.accept != "identity":
        headers = (*headers, ("Content-Encoding", v2_request.accept))
    exchange.reply(
        200, buffers, content_type=content_type, headers=headers, on_sent=None if lease is None else lease.release
    )
