"""ModelInfer: decode, call the service, encode (server src/grpc/infer_handler.cc). Streams are in `grpc_stream`.

A unary request costs the one task that grpc.aio makes for every call, and a future.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Mapping

from edge_serve.clock import Clock
from edge_serve.errors import Unavailable, Unsupported
from edge_serve.messages.infer import InferResponse
from edge_serve.messages.signature import Signature
from edge_serve.protocol.grpc_infer import GrpcInferDecoder
from edge_serve.protocol.grpc_response import GrpcInferEncoder
from edge_serve.transport.grpc_stream import GrpcInferService, Stream, Write, release

_DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"
_EXITING = "GRPC server is shutting down and has stopped accepting new requests."


class GrpcInference:
    """Answers inference calls."""

    def __init__(self, service: GrpcInferService, clock: Clock) -> None:
        self._service = service
        self._clock = clock
        self._decoder = GrpcInferDecoder(self._signature_of, service.regions)
        self._encoder = GrpcInferEncoder()

    def _signature_of(self, name: str, version: str) -> Signature:
        try:
            return self._service.lookup(name, version).signature
        except Unavailable:
            if self._service.exiting():
                raise Unavailable(_EXITING) from None
            raise

    async def infer(self, data: bytes, forwarded: Mapping[str, str] | None, remaining: float | None) -> bytes:
        """The response to a ModelInferRequest; cancelling this cancels the request.

        Args:
            remaining: seconds until the client's deadline; None = it has none.

        Raises:
            EdgeServeError: what the client is told instead.
        """
        request, signature, _ = self._decoder.decode(data, forwarded)
        if signature.decoupled:
            raise Unsupported(_DECOUPLED)
        if remaining is not None:
            request.deadline_ns = self._clock.now_ns() + int(remaining * 1e9)
        waiting: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()

        def on_response(response: InferResponse) -> None:
            if not waiting.done():
                waiting.set_result(response)
            elif response.lease is not None:
                response.lease.release()

        ticket = self._service.infer(request, on_response)
        try:
            response = await waiting
        except asyncio.CancelledError:
            ticket.cancel()
            if waiting.done() and not waiting.cancelled():
                release(waiting.result())
            raise
        try:
            if response.error is not None:
                raise response.error
            return self._encoder.encode(response, request, signature)
        finally:
            release(response)

    async def stream(
        self, requests: AsyncIterable[bytes], write: Write, forwarded: Mapping[str, str] | None, *, strict: bool
    ) -> None:
        """A ModelStreamInfer call; cancelling this cancels all of its requests.

        Args:
            strict: the first error ends the stream (`triton_grpc_error`); otherwise errors are messages in it.

        Raises:
            EdgeServeError: what the stream ends with.
        """
        stream = Stream(self._service, self._decoder, self._encoder, forwarded, strict=strict)
        reading = asyncio.create_task(stream.read(requests), name="gRPC stream")
        try:
            await stream.write(write)
        finally:
            reading.cancel()
            stream.cancel()
