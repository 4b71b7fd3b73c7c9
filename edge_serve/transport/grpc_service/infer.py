"""ModelInfer: decodes, calls the service, encodes (server src/grpc/infer_handler.cc). Streams are in `stream`.

A request costs no task and no future: it runs in the event of its message, and in the callback of the worker's reply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edge_serve.clock import Clock
from edge_serve.errors import EdgeServeError, Unavailable, Unsupported
from edge_serve.messages.infer import InferRequest, InferResponse, Room
from edge_serve.messages.signature import Signature
from edge_serve.messages.trace import Arrival
from edge_serve.observe.tracing.tracing import Tracing
from edge_serve.protocol.grpc.infer import GrpcInferDecoder, peek
from edge_serve.protocol.grpc.response import GrpcInferEncoder
from edge_serve.transport.grpc.call import GrpcCall
from edge_serve.transport.grpc.call_head import CallHead
from edge_serve.transport.grpc.large import prepare
from edge_serve.transport.grpc.messages import Message
from edge_serve.transport.grpc_service.stream import SHUTTING_DOWN, InferStream
from edge_serve.transport.v2.infer import InferService, ServedVersion, lease_aligned, report_unencodable

_DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"


class GrpcInference:
    """Answers ModelInfer, and opens ModelStreamInfer."""

    def __init__(self, service: InferService, clock: Clock) -> None:
        self._tracing: Tracing | None = None
        #: returns the record of a unary request that arrives now; None = requests are not traced
        self._arrive: Callable[[], Arrival] | None = None
        self._service = service
        self._clock = clock
        self._decoder = GrpcInferDecoder(self._lookup, service.regions)
        self._encoder = GrpcInferEncoder()

    def trace(self, tracing: Tracing | None) -> None:
        """Record the times of requests and answers from now on; None = do not record them."""
        self._tracing = tracing
        self._arrive = None if tracing is None else _make_arrive(tracing, streams=False)

    def place(self, beginning: bytes, length: int) -> Room | None:
        """Return memory in the model's arena for a large message, with its first raw content aligned to 256 bytes.

        Raises:
            Unavailable: the arena is full.
        """
        asked = peek(beginning)
        if asked.first_raw < 0:
            return None
        return lease_aligned(self._service, asked.model_name, asked.model_version, length, asked.first_raw)

    async def prepare(self, asked: CallHead, message: Message) -> None:
        """Decode a large message in a thread. See `Method.prepare`."""
        decoder = GrpcInferDecoder(self._lookup, self._service.regions)  # because a memo is for one thread
        await prepare(decoder, self._service, message, asked.forwarded)

    def infer(self, call: GrpcCall, message: Message) -> None:
        """Answer a ModelInferRequest, now or later.

        Raises:
            EdgeServeError: the request was refused.
        """
        asked = call.asked
        arrival = None if self._arrive is None else self._arrive()
        try:
            request, served, _ = self._decode(message, asked.forwarded)
            if served.signature.decoupled:
                raise Unsupported(_DECOUPLED)
        except EdgeServeError as error:
            model = peek(message.data)[:2]
            message.release()
            first = self._find_first_error(*model, error)
            self._service.count_client_error(*model, first)
            raise first from None
        except BaseException:
            message.release()
            raise
        request.lease = message.lease
        if asked.timeout_ns:
            request.deadline_ns = self._clock.now_ns() + asked.timeout_ns

        def on_response(response: InferResponse) -> None:
            self._answer(call, request, served.signature, response, arrival)

        ticket = self._service.infer(served, request, on_response, arrival)
        call.on_cancelled = ticket.cancel

    def _find_first_error(self, name: str, version: str, error: EdgeServeError) -> EdgeServeError:
        """Return the error that Triton finds first: it refuses a decoupled model before it reads the inputs."""
        if isinstance(error, Unsupported):
            return error
        try:
            return Unsupported(_DECOUPLED) if self._lookup(name, version).signature.decoupled else error
        except EdgeServeError:
            return error

    def _decode(
        self, message: Message, forwarded: Mapping[str, str] | None
    ) -> tuple[InferRequest, ServedVersion, bool]:
        """Return the request in a message, decoded now or by `prepare`. See `GrpcInferDecoder.decode`."""
        decoded = message.decoded
        if decoded is None:
            return self._decoder.decode(message.data, forwarded, message.offset)
        if isinstance(decoded, EdgeServeError):
            raise decoded
        request, wants_final = decoded  # for the version that serves now: it may have been swapped since
        return request, self._lookup(request.model_name, request.model_version), wants_final

    def stream(self, call: GrpcCall) -> InferStream:
        """Return the conversation that answers a ModelStreamInfer."""
        arrive = None if self._tracing is None else _make_arrive(self._tracing, streams=True)
        return InferStream(call, self._service, self._decode, self._encoder, arrive)

    def _answer(
        self,
        call: GrpcCall,
        request: InferRequest,
        signature: Signature,
        response: InferResponse,
        arrival: Arrival | None,
    ) -> None:
        lease, error = response.lease, response.error
        if error is None:
            try:
                parts, size = self._encoder.encode(response, request, signature)
                release = None if lease is None else lease.release
                call.reply(parts, size, release if arrival is None else arrival.sending(release))
                return  # `on_sent` releases the lease
            except EdgeServeError as reason:
                error = reason
            except Exception:
                error = report_unencodable(response)
        self._service.count_client_error(request.model_name, request.model_version, error)
        sent = None if arrival is None else arrival.sending()
        call.fail(error)
        if sent is not None:
            sent()
        if lease is not None:
            lease.release()

    def _lookup(self, name: str, version: str) -> ServedVersion:
        try:
            return self._service.lookup(name, version)
        except Unavailable:
            if not self._service.live():
                raise Unavailable(SHUTTING_DOWN) from None
            raise


def _make_arrive(tracing: Tracing, *, streams: bool) -> Callable[[], Arrival]:
    """Return a function that records the arrival of one request of a stream, or of any unary request.

    As in Triton, waiting for a request begins when the one before it has been read, and a response of a stream counts
    as sent when it is handed to its call (server src/grpc/infer_handler.cc).
    """
    since_ns = tracing.now_ns()

    def arrive() -> Arrival:
        nonlocal since_ns
        waiting_since_ns, since_ns = since_ns, tracing.now_ns()
        received = [("GRPC_WAITREAD_START", waiting_since_ns), ("GRPC_WAITREAD_END", since_ns)]
        return Arrival(received, late=True, streams=streams)

    return arrive
