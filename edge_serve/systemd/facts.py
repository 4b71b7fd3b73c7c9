"""Reads the watchdog's facts from the running server, and does what the inside can do about them."""

from __future__ import annotations

import logging

from edge_serve.models.caching import CachedRunner
from edge_serve.models.driver import Driver
from edge_serve.models.registry import Registry
from edge_serve.systemd.watchdog import WAKE_SECONDS, Facts
from edge_serve.workers.pool import Workers
from edge_serve.workers.stalls import Stalls

log = logging.getLogger(__name__)


class FactReader:
    """Looks at every scheduler and every worker. Looking kills workers that hang and wakes schedulers that sleep."""

    def __init__(self, registry: Registry, workers: Workers) -> None:
        self._registry = registry
        self._workers = workers
        self._stalls: Stalls[str] = Stalls()
        self._woken: set[str] = set()

    def read(self, now_ns: int) -> Facts:
        """To be called about once a second."""
        drivers = self._drivers()
        markers = {name: marker for name, driver in drivers.items() if (marker := driver.standstill()) is not None}
        ages = self._stalls.look(now_ns, markers)
        self._woken &= ages.keys()
        for name, age in ages.items():
            if age > WAKE_SECONDS and name not in self._woken:
                self._woken.add(name)
                log.warning("requests of model %s wait although an instance is free: deciding once more", name)
                drivers[name].wake()
        return Facts(ages, self._workers.watch(now_ns))

    def _drivers(self) -> dict[str, Driver]:
        found = {}
        for served in self._registry.served():
            runner = served.runner.runner if isinstance(served.runner, CachedRunner) else served.runner
            if isinstance(runner, Driver):
                found[f"{served.name}:{served.version}"] = runner
        return found
