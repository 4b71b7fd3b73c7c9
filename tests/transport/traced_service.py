"""A service that traces what it is asked, as the real one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.trace import Arrival, Trace
from edge_serve.observe.tracing.tracing import Tracing
from tests.transport.v2_scene import FakeService, FakeTicket


class TracedService(FakeService):
    """Keeps the traces."""

    def __init__(self, tracing: Tracing) -> None:
        super().__init__()
        self.tracing = tracing
        self.traces: list[Trace] = []

    def infer(
        self,
        served: Any,
        request: InferRequest,
        on_response: Callable[[InferResponse], None],
        arrival: Arrival | None = None,
    ) -> FakeTicket:
        on_response = self.tracing.watch(request, "m", "3", on_response, arrival)
        assert isinstance(request.compute, Trace)
        self.traces.append(request.compute)
        return super().infer(served, request, on_response)
