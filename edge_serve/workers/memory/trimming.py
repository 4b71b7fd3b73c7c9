"""Housekeeping of tensor memory: what no slot has used for a second goes back to the system."""

from __future__ import annotations

import asyncio
import logging

from edge_serve.workers.memory.arena import Budget

log = logging.getLogger(__name__)

#: pages are idle when no slot had them for two whole periods (one, if they are many): after 1 to 1.5 seconds
PERIOD = 0.5


async def trim_idle(budget: Budget) -> None:
    """Trim all arenas of a budget until cancelled."""
    while True:
        await asyncio.sleep(PERIOD)
        for arena in list(budget.warm):
            try:
                arena.age()
                await arena.trim()
            except Exception:
                log.exception("trimming the tensor memory of model %s failed", arena.name)
