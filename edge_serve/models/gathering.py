"""The driver of models with sequences: decides once for all requests that arrive together.

A sequence has one request at a time, so its next one comes when the last is answered, together with those of the others
in that batch. Deciding at the first of them would send it alone and let the rest wait for the next batch.
"""

from __future__ import annotations

from edge_serve.models.driver import Driver


class GatheringDriver(Driver):
    """Runs one version; what the event loop has ready at a time is decided on together."""

    def _pump(self) -> None:
        self._pump_soon()

    def _pump_gathered(self) -> None:
        self._gathering = False
        super()._pump()
