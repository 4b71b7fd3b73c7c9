"""Reads the watchdog's facts from the running server, and repairs what can be repaired from inside."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from edge_serve.aio.turns import gathered
from edge_serve.models.control.registry import Registry
from edge_serve.models.extras.cached_runner import CachedRunner
from edge_serve.models.run.driver import Driver
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
        waiting = [one for one in await gathered(self._drivers()) if one[2] is not None]
        drivers = {name: driver for name, driver, _ in waiting}
        markers = {name: marker for name, _, marker in waiting}
        ages = self._stalls.look(now_ns, markers)
        await asyncio.sleep(0)
        self._woken &= ages.keys()
        for name, age in ages.items():
            if age > WAKE_SECONDS and name not in self._woken:
                self._woken.add(name)
                log.warning("requests of model %s wait although an instance is free: deciding once more", name)
                drivers[name].wake()
        return WatchdogFacts(ages, self._workers.watch(now_ns))

    def _drivers(self) -> Iterator[tuple[str, Driver, int | None]]:
        """Yield each driver with the name of its model and its marker of waiting requests."""
        for served in self._registry.each_served():
            runner = served.runner.runner if isinstance(served.runner, CachedRunner) else served.runner
            if isinstance(runner, Driver):
                yield f"{served.name}:{served.version}", runner, runner.standstill()
