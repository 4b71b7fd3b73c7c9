"""Inference over gRPC while requests are traced: what the door sees of one (server src/grpc/infer_handler.cc).

The server takes these in place of what they are made of as long as something is traced. As in Triton, waiting for a
request begins when the one before it has been read; and what a stream sends is told when it is handed to its call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edge_serve.clock import Clock
from edge_serve.errors import EdgeServeError
from edge_serve.messages.tensors import Buffer
from edge_serve.messages.trace import Arrival
from edge_serve.observe.tracing.tracing import Tracing
from edge_serve.protocol.grpc.infer import GrpcInferDecoder
from edge_serve.protocol.grpc.response import GrpcInferEncoder
from edge_serve.transport.grpc.call import GrpcCall
from edge_serve.transport.grpc.messages import Message
from edge_serve.transport.grpc_service.infer import GrpcInference, UnaryCall
from edge_serve.transport.grpc_service.stream import GrpcInferService, InferStream, StreamCall


class _Waiting:
    """When the door began to wait for what comes next."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._since = tracing.now_ns()

    def over(self, *, streams: bool) -> Arrival:
        """It has come."""
        since, self._since = self._since, self._tracing.now_ns()
        received = [("GRPC_WAITREAD_START", since), ("GRPC_WAITREAD_END", self._since)]
        return Arrival(received, late=True, streams=streams)


class TracedCall:
    """A unary call that tells an arrival what becomes of it; implements `UnaryCall`."""

    def __init__(self, call: UnaryCall, arrival: Arrival) -> None:
        self.asked = call.asked
        self._call = call
        self._arrival = arrival

    def reply(self, parts: Sequence[Buffer], size: int, on_sent: Callable[[], None] | None = None) -> None:
        """See `GrpcCall.reply`."""
        self._arrival.mark("GRPC_SEND_START")

        def sent() -> None:
            self._sent()
            if on_sent is not None:
                on_sent()

        self._call.reply(parts, size, sent)

    def fail(self, error: EdgeServeError) -> None:
        """See `GrpcCall.fail`."""
        self._arrival.mark("GRPC_SEND_START")
        self._call.fail(error)
        self._sent()

    @property
    def on_cancelled(self) -> Callable[[], None] | None:
        """See `GrpcCall`."""
        return self._call.on_cancelled

    @on_cancelled.setter
    def on_cancelled(self, call: Callable[[], None] | None) -> None:
        self._call.on_cancelled = call

    def _sent(self) -> None:
        self._arrival.mark("GRPC_SEND_END")
        self._arrival.leave()


class TracedStream(InferStream):
    """The requests of a stream, each of which may be traced."""

    def __init__(
        self,
        call: StreamCall,
        service: GrpcInferService,
        decoder: GrpcInferDecoder,
        encoder: GrpcInferEncoder,
        tracing: Tracing,
    ) -> None:
        super().__init__(call, service, decoder, encoder)
        self._tracing = tracing
        self._waiting = _Waiting(tracing)

    def _submit(self, message: Message) -> None:
        self._tracing.arrival = self._waiting.over(streams=True)
        try:
            super()._submit(message)
        finally:
            self._tracing.arrival = None


class TracedGrpcInference(GrpcInference):
    """Answers inference calls."""

    def __init__(self, service: GrpcInferService, clock: Clock, tracing: Tracing) -> None:
        super().__init__(service, clock)
        self._tracing = tracing
        self._waiting = _Waiting(tracing)

    def infer(self, call: UnaryCall, message: Message) -> None:
        """See `GrpcInference.infer`."""
        self._tracing.arrival = arrival = self._waiting.over(streams=False)
        try:
            super().infer(TracedCall(call, arrival), message)
        finally:
            self._tracing.arrival = None

    def stream(self, call: GrpcCall) -> InferStream:
        """See `GrpcInference.stream`."""
        return TracedStream(call, self._service, self._decoder, self._encoder, self._tracing)
