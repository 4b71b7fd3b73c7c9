"""ModelInfer: decodes, calls the service, encodes (server src/grpc/infer_handler.cc). Streams are in `stream`.

A request costs no task and no future: it runs in the event of its message, and in the callback of the worker's reply.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from edge_serve.clock import Clock
from edge_serve.errors import EdgeServeError, Internal, Unavailable, Unsupported
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.log_fields import model_fields
from edge_serve.messages.signature import Signature
from edge_serve.messages.tensors import Buffer
from edge_serve.observe.tracing.tracing import Tracing
from edge_serve.protocol.grpc.infer import GrpcInferDecoder, peek, read_names
from edge_serve.protocol.grpc.response import GrpcInferEncoder
from edge_serve.transport.grpc.call import GrpcCall
from edge_serve.transport.grpc.call_head import CallHead
from edge_serve.transport.grpc.large import decode, prepare
from edge_serve.transport.grpc.messages import Message, MessagePlace
from edge_serve.transport.grpc_service.stream import GrpcInferService, InferStream
from edge_serve.transport.grpc_service.traced import GrpcTracer, TracedCall

log = logging.getLogger(__name__)

#: alignment in the arena of a large message's first raw content
_ALIGNMENT = 64
_DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"
_EXITING = "GRPC server is shutting down and has stopped accepting new requests."
UNENCODABLE = Internal("the server failed to encode the response, its log says why")


class UnaryCall(Protocol):
    """The part of `GrpcCall` that unary inference uses."""

    asked: CallHead
    on_cancelled: Callable[[], None] | None

    def reply(self, parts: Sequence[Buffer], size: int, on_sent: Callable[[], None] | None = None) -> None: ...
    def fail(self, error: EdgeServeError) -> None: ...


class GrpcInference:
    """Answers ModelInfer, and opens ModelStreamInfer.

    Args:
        tracing: receives the times of requests and answers; None = do not record them.
    """

    def __init__(self, service: GrpcInferService, clock: Clock, tracing: Tracing | None = None) -> None:
        self._tracing = tracing
        self._tracer = None if tracing is None else GrpcTracer(tracing, streams=False)
        self._service = service
        self._clock = clock
        self._decoder = GrpcInferDecoder(self._find_signature, service.regions)
        self._encoder = GrpcInferEncoder()

    def place(self, beginning: bytes, length: int) -> MessagePlace | None:
        """Return memory in the model's arena for a large message, with its first raw content aligned to 64 bytes.

        Raises:
            Unavailable: the arena is full.
        """
        asked = peek(beginning)
        if asked is None:
            return None
        shift = -asked.first_raw % _ALIGNMENT
        lease = self._service.lease(asked.model_name, asked.model_version, length + shift)
        return None if lease is None else MessagePlace(lease, shift)

    async def prepare(self, asked: CallHead, message: Message) -> None:
        """Decode a large message in a thread. See `Unary.prepare`."""
        await prepare(self._decoder, self._service, message, asked.forwarded)

    def infer(self, call: UnaryCall, message: Message) -> None:
        """Answer a ModelInferRequest, now or later.

        Raises:
            EdgeServeError: the request was refused.
        """
        asked = call.asked
        try:
            request, signature, _ = decode(self._decoder, message, asked.forwarded)
            if signature.decoupled:
                raise Unsupported(_DECOUPLED)
        except BaseException as error:
            if isinstance(error, EdgeServeError):
                self._service.count_client_error(*read_names(message.data), error)
            message.release()
            raise
        request.lease = message.lease
        if asked.timeout_ns:
            request.deadline_ns = self._clock.now_ns() + asked.timeout_ns

        def on_response(response: InferResponse) -> None:
            self._answer(call, request, signature, response)

        ticket = self._service.infer(request, on_response)
        call.on_cancelled = ticket.cancel

    @property
    def answer(self) -> Callable[[UnaryCall, Message], None]:
        """The function that answers ModelInfer: `infer`, observed if requests are traced."""
        return self.infer if self._tracer is None else self._infer_traced

    def _infer_traced(self, call: UnaryCall, message: Message) -> None:
        assert self._tracer is not None, "`answer` is `infer` without one"
        with self._tracer.observe() as arrival:
            self.infer(TracedCall(call, arrival), message)

    def stream(self, call: GrpcCall) -> InferStream:
        """Return the conversation that answers a ModelStreamInfer."""
        tracer = None if self._tracing is None else GrpcTracer(self._tracing, streams=True)
        return InferStream(call, self._service, self._decoder, self._encoder, tracer)

    def _answer(self, call: UnaryCall, request: InferRequest, signature: Signature, response: InferResponse) -> None:
        lease = response.lease
        try:
            if response.error is not None:
                self._fail(call, request, response.error)
            else:
                parts, size = self._encoder.encode(response, request, signature)
                call.reply(parts, size, None if lease is None else lease.release)
                return  # `on_sent` releases the lease
        except EdgeServeError as error:
            self._fail(call, request, error)
        except Exception:
            extra = model_fields(response.model_name, response.model_version, response.id)
            log.exception("a response of model %s cannot be encoded", response.model_name, extra=extra)
            call.fail(UNENCODABLE)
        if lease is not None:
            lease.release()

    def _fail(self, call: UnaryCall, request: InferRequest, error: EdgeServeError) -> None:
        self._service.count_client_error(request.model_name, request.model_version, error)
        call.fail(error)

    def _find_signature(self, name: str, version: str) -> Signature:
        try:
            return self._service.lookup(name, version).signature
        except Unavailable:
            if self._service.exiting():
                raise Unavailable(_EXITING) from None
            raise
