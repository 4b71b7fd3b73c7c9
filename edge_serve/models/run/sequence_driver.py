"""The driver of models with sequences: decides once for all requests that arrive together.

A client sends the next request of a sequence when it has the response to the last one, at the same time as the other
clients of that batch. A decision at the first arrival would run it alone and let the others wait for the next batch.
"""

from __future__ import annotations

from edge_serve.messages.infer import InferRequest
from edge_serve.models.run.driver import Driver


class SequenceDriver(Driver):
    """Runs one version; decides once for all requests that the event loop has ready."""

    def _on_arrival(self, request: InferRequest) -> None:
        """Schedule a decision, unless every instance is busy: then the end of a batch decides, or the request's own
        clock."""
        if self._scheduler.free() or request.deadline_ns or request.timeout_us:
            self._pump_soon()
