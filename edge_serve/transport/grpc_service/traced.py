"""Records when the gRPC door received and answered traced requests (server src/grpc/infer_handler.cc).

As in Triton, waiting for a request begins when the one before it has been read, and a response of a stream counts as
sent when it is handed to its call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from edge_serve.errors import EdgeServeError
from edge_serve.messages.tensors import Buffer
from edge_serve.messages.trace import Arrival
from edge_serve.observe.tracing.tracing import Tracing

if TYPE_CHECKING:
    from edge_serve.transport.grpc_service.infer import UnaryCall


class GrpcTracer:
    """Observes the requests of one stream, or all unary requests.

    Args:
        streams: the requests come from a stream.
    """

    def __init__(self, tracing: Tracing, *, streams: bool) -> None:
        self._tracing = tracing
        self._streams = streams
        self._since_ns = tracing.now_ns()

    @contextmanager
    def observe(self) -> Iterator[Arrival]:
        """Give the arrival of a request to the trace that is started within the context."""
        since_ns, self._since_ns = self._since_ns, self._tracing.now_ns()
        received = [("GRPC_WAITREAD_START", since_ns), ("GRPC_WAITREAD_END", self._since_ns)]
        self._tracing.arrival = arrival = Arrival(received, late=True, streams=self._streams)
        try:
            yield arrival
        finally:
            self._tracing.arrival = None


class TracedCall:
    """A unary call that marks on an arrival when its answer is sent; implements `UnaryCall`."""

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
