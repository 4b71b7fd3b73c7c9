"""The driver of models with sequences: decides once for all requests that arrive together.

A sequence has one request at a time, so its next one comes when the last is answered, together with those of the others
in that batch. Deciding at the first of them would send it alone and let the rest wait for the next batch.
"""

from __future__ import annotations

from typing import Any

from edge_serve.models.driver import Driver


class GatheringDriver(Driver):
    """Runs one version; what the event loop has ready at a time is decided on together. Takes what `Driver` takes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._gathering = False

    def _pump(self) -> None:
        if not self._gathering:
            self._gathering = True
            self._loop.call_soon(self._decide_now)

    def _decide_now(self) -> None:
        self._gathering = False
        super()._pump()
