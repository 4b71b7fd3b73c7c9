"""Reports the unanswered requests while the server drains, in the log and to the service manager."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from edge_serve.aio.tasks import repeat
from edge_serve.models.control.registry import Registry
from edge_serve.models.versions.unloading_versions import join_names

log = logging.getLogger(__name__)

#: seconds before the first line, because most requests are answered sooner
FIRST = 0.5
#: between lines, seconds
EVERY = 5.0


class DrainReport:
    """Reports the models that a stop waits for.

    Args:
        notify: sends one line to the service manager.
        seconds: the time limit of the stop.
        hint: for the first line: how the operator stops the server at once.
    """

    def __init__(self, registry: Registry, notify: Callable[[str], None], seconds: float, hint: str) -> None:
        self._registry = registry
        self._notify = notify
        self._end = time.monotonic() + seconds
        self._hint = f"; {hint}"
        self._notified = False

    async def run(self) -> None:
        """Report soon, then at intervals, until cancelled."""
        await asyncio.sleep(FIRST)
        self.report()
        await repeat("naming what the stop waits for", EVERY, self.report)

    def report(self) -> None:
        """Report once, if a model is busy, or was at the last report."""
        text, left = self.unanswered(), max(0.0, self._end - time.monotonic())
        if text:
            line = f"waiting at most {left:.0f} s more for {text}"
            log.warning("%s%s", line, self._hint)
            self._notify(line)
            self._notified, self._hint = True, ""
        elif self._notified:
            self._notified = False
            self._notify("all requests are answered; unloading models and closing connections")

    def unanswered(self) -> str:
        """Return the models that load or have unanswered requests, as text; "" = none."""
        loading = self._registry.load_history.loading()
        parts = [join_names(self._registry.busy()), f"models that load ({', '.join(loading)})" if loading else ""]
        return " and ".join(filter(None, parts))
