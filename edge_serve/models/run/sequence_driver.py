"""The driver of models with sequences: decides once for all requests that arrive together.

A sequence has one request at a time, so its next one comes when the last is answered, together with those of the others
in that batch. Deciding at the first of them would send it alone and let the rest wait for the next batch.
"""

from __future__ import annotations

from edge_serve.messages.infer import InferRequest
from edge_serve.models.run.driver import Driver


class SequenceDriver(Driver):
    """Runs one version; of what the event loop has ready at a time, all is decided on together."""

    def _on_arrival(self, request: InferRequest) -> None:
        """While every instance works, the end of a batch decides, or the clock of a request that has one."""
        if self._sequences is None or self._sequences.free() or request.deadline_ns or request.timeout_us:
            self._pump_soon()
