"""`infer` over HTTP: decodes the request, calls the service, and encodes the response.

Small bodies are decoded and encoded on the event loop. Large ones (`TooExpensive`) are decoded and encoded by a codec
process. Meanwhile the request is not in the model's queue, so the door holds the model version: it stays loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from edge_serve.clock import Clock
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, Unsupported
from edge_serve.messages import shared_memory
from edge_serve.messages.infer import InferRequest, InferResponse, Lease, Room
from edge_serve.messages.log_fields import model_fields
from edge_serve.messages.signature import Signature
from edge_serve.messages.tensors import Buffer
from edge_serve.protocol.inference import compression
from edge_serve.protocol.inference.cost import LOOP_LIMITS, NO_LIMITS, SMALL_BYTES, SMALL_DEFLATE_BYTES, TooExpensive
from edge_serve.protocol.v2.infer import InferDecoder, parse_header_length, refuse_json_size
from edge_serve.protocol.v2.infer_response import InferEncoder
from edge_serve.protocol.v2.routes import Operation
from edge_serve.transport.door.exchange import Exchange
from edge_serve.transport.http.replies import refuse
from edge_serve.transport.v2.codec_offload import Held, run_for_client
from edge_serve.transport.v2.generate import StreamTicket
from edge_serve.transport.v2.head import JSON, PLAIN, V2Request
from edge_serve.workers.codec.codec import Codec
from edge_serve.workers.codec.job import Body, Encoded, Refused
from edge_serve.workers.memory.arena import Arena

log = logging.getLogger(__name__)

_BINARY = "application/octet-stream"
_ALIGNMENT = 64
_UNBOUNDED = 1 << 62
#: a codec process decodes large bodies of these operations
_READ = {Operation.INFER, Operation.GENERATE, Operation.GENERATE_STREAM}

OnResponse = Callable[[InferResponse], None]


class ServedVersion(Held, Protocol):
    """A loaded model version, as `InferService.lookup` returns it."""

    @property
    def signature(self) -> Signature: ...
    @property
    def arena(self) -> Arena | None: ...


class InferService(Protocol):
    """The part of `service.Service` that inference needs. `infer_held` takes the result of `lookup`."""

    def lookup(self, name: str, version: str) -> ServedVersion: ...
    def lease(self, name: str, version: str, nbytes: int) -> Room | None: ...
    def infer(self, request: InferRequest, on_response: OnResponse) -> StreamTicket: ...
    def infer_held(self, served: Any, request: InferRequest, on_response: OnResponse) -> StreamTicket: ...
    def count_client_error(self, name: str, version: str, error: EdgeServeError) -> None: ...
    @property
    def regions(self) -> RegionLookup: ...


class RegionLookup(shared_memory.Regions, Protocol):
    """The part of `workers.memory.regions.Regions` that inference needs."""

    def resolve(self, request: InferRequest) -> None: ...


class _ShiftedLease:
    """A lease whose body starts `shift` bytes in, so that the tensors behind the JSON part are aligned."""

    __slots__ = ("_lease", "arena", "offset", "view")

    def __init__(self, lease: Room, shift: int, length: int) -> None:
        self._lease = lease
        self.view = lease.view[shift : shift + length]
        self.offset = lease.offset + shift
        self.arena = lease.arena

    @property
    def is_ready(self) -> bool:
        return self._lease.is_ready

    @property
    def error(self) -> EdgeServeError | None:
        return self._lease.error

    def when_ready(self, done: Callable[[], None]) -> None:
        self._lease.when_ready(done)

    def release(self) -> None:
        self._lease.release()


class Inference:
    """Answers infer requests.

    Args:
        codec: None = the loop decodes and encodes large bodies too.
    """

    def __init__(self, service: InferService, max_input_size: int, clock: Clock, codec: Codec | None) -> None:
        self._service = service
        self._max_input_size = max_input_size
        self._clock = clock
        self._codec = codec
        limits = NO_LIMITS if codec is None else LOOP_LIMITS
        self._decoder = InferDecoder(max_input_size, limits, service.regions)
        self._encoder = InferEncoder(patient=codec is None)
        self._most_inflated = _UNBOUNDED if codec is None else SMALL_BYTES
        self._most_deflated = _UNBOUNDED if codec is None else SMALL_DEFLATE_BYTES

    def check(self, asked: V2Request, length: int) -> None:
        """Check the length of a body against --http-max-input-size, which does not limit binary tensors.

        Raises:
            EdgeServeError: the body is too long.
        """
        text = asked.length_text
        if (asked.refusal is not None or asked.compressed or text is None) and length > self._max_input_size:
            raise refuse_json_size(length, self._max_input_size)

    def place(self, asked: V2Request, length: int) -> Room | None:
        """Return tensor memory for a body that needs it, or None.

        A binary body needs it, with its first tensor aligned to 64 bytes, and a body that a codec process decodes.
        """
        text = asked.length_text
        shift = 0
        if asked.refusal is not None or asked.compressed or text is None:
            if length <= self._most_inflated or asked.refusal is not None or asked.route.operation not in _READ:
                return None
        else:
            try:
                shift = -(parse_header_length(text, length) or 0) % _ALIGNMENT
            except InvalidArgument:
                return None  # `handle` answers it
        lease = self._service.lease(asked.route.model, asked.route.version, length + shift)
        if lease is None or not shift:
            return lease
        return _ShiftedLease(lease, shift, length)

    def handle(self, exchange: Exchange, asked: V2Request) -> None:
        """Answer a request, now or later.

        Raises:
            EdgeServeError: the request is refused before its body is read.
        """
        route = asked.route
        served = self._service.lookup(route.model, route.version)
        signature = served.signature
        if signature.decoupled:
            raise Unsupported("HTTP end point doesn't support models with decoupled transaction policy")
        body, lease = exchange.body, exchange.lease
        try:
            if asked.compressed:
                body = compression.decompress(body, self._max_input_size, self._most_inflated)
            length = parse_header_length(asked.length_text, len(body))
            try:
                request = self._decoder.decode(
                    signature,
                    route.version,
                    body,
                    length,
                    offset=-1 if lease is None else lease.offset,
                    forwarded=asked.forwarded,
                )
            except EdgeServeError as error:
                if lease is not None:
                    lease.release()
                self._refuse(exchange, asked, error, JSON)
                return
        except TooExpensive:
            self._decode_in_codec(exchange, asked, served)
            return
        request.lease = lease
        if asked.timeout_ns:
            request.deadline_ns = self._clock.now_ns() + asked.timeout_ns
        self._run(exchange, asked, request, served)

    def _run(
        self,
        exchange: Exchange,
        asked: V2Request,
        request: InferRequest,
        served: ServedVersion,
    ) -> None:
        answered = False
        error_type = JSON  # of a refusal by the scheduler; as in Triton, a model's own error is of another type

        def on_response(response: InferResponse) -> None:
            nonlocal answered
            answered = True
            exchange.on_abandoned = None
            self._answer(exchange, asked, request, served, response, error_type)

        ticket = self._service.infer_held(served, request, on_response)
        error_type = PLAIN
        if not answered:
            exchange.on_abandoned = ticket.cancel

    def _answer(
        self,
        exchange: Exchange,
        asked: V2Request,
        request: InferRequest,
        served: ServedVersion,
        response: InferResponse,
        error_type: str,
    ) -> None:
        lease = response.lease
        try:
            if response.error is not None:
                self._refuse(exchange, asked, response.error, error_type)
            elif self._write(exchange, asked, request, served, response):
                return  # the lease is released when the answer is sent
        except EdgeServeError as error:
            self._refuse(exchange, asked, error, PLAIN)
        except Exception:
            extra = model_fields(response.model_name, response.model_version, response.id)
            log.exception("a response of model %s cannot be encoded", response.model_name, extra=extra)
            refuse(exchange, Internal("the server failed to encode the response, its log says why"), PLAIN)
        if lease is not None:
            lease.release()

    def _refuse(self, exchange: Exchange, asked: V2Request, error: EdgeServeError, content_type: str) -> None:
        self._service.count_client_error(asked.route.model, asked.route.version, error)
        refuse(exchange, error, content_type)

    def _write(
        self,
        exchange: Exchange,
        asked: V2Request,
        request: InferRequest,
        served: ServedVersion,
        response: InferResponse,
    ) -> bool:
        """Send the response, encoded here or by a codec process. Return whether the response's lease was taken over."""
        try:
            buffers, length = self._encoder.encode(response, request, served.signature)
            if asked.accept != "identity":
                if sum(map(len, buffers)) > self._most_deflated:
                    raise TooExpensive
                buffers = [compression.compress(buffers, asked.accept)]
        except TooExpensive:
            self._encode_in_codec(exchange, asked, request, served, response)
            return True
        in_lease = length is not None and asked.accept == "identity"
        _send(exchange, asked, buffers, length, response.lease if in_lease else None)
        return in_lease

    # ---- in a codec process -------------------------------------------------------------------------------------

    def _decode_in_codec(self, exchange: Exchange, asked: V2Request, served: ServedVersion) -> None:
        body = Body(
            served.signature,
            asked.route.version,
            served.arena,
            exchange.body,
            exchange.lease,
            asked.length_text,
            asked.compressed,
            self._max_input_size,
        )
        deadline_ns = self._clock.now_ns() + asked.timeout_ns if asked.timeout_ns else 0

        def on_read(outcome: InferRequest | Refused) -> None:
            if isinstance(outcome, Refused):
                self._refuse(exchange, asked, outcome.error, asked.error_type if outcome.before else JSON)
            elif self._resolve_regions(exchange, asked, outcome):
                outcome.deadline_ns = deadline_ns
                if asked.forwarded:
                    outcome.parameters.update(asked.forwarded)
                self._run(exchange, asked, outcome, served)

        run_for_client(exchange, served, partial(self._required_codec.decode, body), on_read)

    def _resolve_regions(self, exchange: Exchange, asked: V2Request, request: InferRequest) -> bool:
        """Look up the shared memory that a decoded request names. If it is missing, answer so and return False."""
        try:
            if request.shared:
                self._service.regions.resolve(request)
        except EdgeServeError as error:
            if request.lease is not None:
                request.lease.release()
            self._refuse(exchange, asked, error, JSON)
            return False
        return True

    def _encode_in_codec(
        self,
        exchange: Exchange,
        asked: V2Request,
        request: InferRequest,
        served: ServedVersion,
        response: InferResponse,
    ) -> None:
        def on_written(outcome: Encoded | Refused) -> None:
            if isinstance(outcome, Refused):
                self._refuse(exchange, asked, outcome.error, PLAIN)
            else:
                _send(exchange, asked, outcome.buffers, outcome.length, outcome.lease)

        encode = partial(self._required_codec.encode, response, request, served.signature, asked.accept)
        run_for_client(exchange, served, encode, on_written)

    @property
    def _required_codec(self) -> Codec:
        assert self._codec is not None, "without a codec, nothing is too expensive"
        return self._codec


def _send(
    exchange: Exchange, asked: V2Request, buffers: Sequence[Buffer], length: int | None, lease: Lease | None
) -> None:
    """Send the reply. Release `lease`, which has the memory of the buffers, after the last byte."""
    content_type = JSON
    headers: tuple[tuple[str, str], ...] = ()
    if length is not None:
        content_type, headers = _BINARY, (("Inference-Header-Content-Length", str(length)),)
    if asked.accept != "identity":
        headers = (*headers, ("Content-Encoding", asked.accept))
    exchange.reply(
        200, buffers, content_type=content_type, headers=headers, on_sent=None if lease is None else lease.release
    )
