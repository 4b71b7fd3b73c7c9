"""Reads the watchdog's facts from the running server, and repairs what can be repaired from inside."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from edge_serve.aio.turns import gathered
from edge_serve.models.control.registry import Registry
from edge_serve.models.run.runner import Runner
from edge_serve.supervision.watchdog import WAKE_SECONDS, WatchdogFacts
from edge_serve.workers.front.pool import Workers
from edge_serve.workers.watch.stalls import Stalls

log = logging.getLogger(__name__)


class FactReader:
    """Checks every scheduler and every worker. A check kills workers that hang and wakes schedulers that sleep."""

    def __init__(self, registry: Registry, workers: Workers) -> None:
        self._registry = registry
        self._workers = workers
        self._stalls: Stalls[str] = Stalls()
        self._woken: set[str] = set()

    async def read(self, now_ns: int) -> WatchdogFacts:
        """Return the facts. Called about once a second."""
        waiting = [one for one in await gathered(self._runners()) if one[2] is not None]
        runners = {name: runner for name, runner, _ in waiting}
        markers = {name: marker for name, _, marker in waiting}
        ages = self._stalls.look(now_ns, markers)
        await asyncio.sleep(0)
        self._woken &= ages.keys()
        for name, age in ages.items():
            if age > WAKE_SECONDS and name not in self._woken:
                self._woken.add(name)
                log.warning("requests of model %s wait although an instance is free: deciding once more", name)
                runners[name].wake()
        return WatchdogFacts(ages, self._workers.watch(now_ns))

    def _runners(self) -> Iterator[tuple[str, Runner, int | None]]:
        """Yield each driver with the name of its model and its marker of waiting requests."""
        for served in self._registry.each_served():
            yield f"{served.name}:{served.version}", served.runner, served.runner.find_stall()
