"""Whether systemd's watchdog is fed: the facts, read from the running server, and the decision, which is pure.

That the event loop turns is not among the facts: the caller runs on it. One model that hangs is its worker's
matter (`workers/hangs`, `workers/process`); systemd restarts the whole service only if the server cannot repair itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from edge_serve.aio.tasks import gathered
from edge_serve.models.control.registry import Registry
from edge_serve.records import frozen
from edge_serve.workers.front.hangs import KILL_SECONDS, Stalls
from edge_serve.workers.front.workers import Workers

log = logging.getLogger(__name__)

#: a scheduler with work, a free instance and nothing running is asked once more after so long; seconds
WAKE_SECONDS = 5.0
#: and counts as stuck after so long
STUCK_SECONDS = 10.0


@frozen
class Withhold:
    """The decision not to feed the watchdog, so that systemd restarts the service.

    Attributes:
        hopeless: the service cannot recover, so the restart is requested at once.
    """

    reason: str
    hopeless: bool = False


def time_of(environ: Mapping[str, str], pid: int) -> float:
    """Return the seconds within which the service manager expects process `pid` to feed the watchdog; 0 = never
    (sd_watchdog_enabled(3))."""
    try:
        if int(environ.get("WATCHDOG_PID") or pid) != pid:
            return 0.0
        return max(0, int(environ.get("WATCHDOG_USEC", "0"))) / 1e6
    except ValueError:
        return 0.0


def decide(schedulers: Mapping[str, float], workers: Mapping[str, float]) -> Withhold | None:
    """Decide whether to feed the watchdog; None = all is well, or will be without a restart of the service.

    Only a restart ends a stuck scheduler. Workers are restarted one by one; when none of them can be ended, the machine
    below them hangs, and a new process may fare better.

    Args:
        schedulers: model -> seconds for which work has been waiting although nothing runs and an instance is free.
        workers: worker -> seconds since it should have been ended because it hangs; 0 or less = it does not.
    """
    stuck = sorted(model for model, seconds in schedulers.items() if seconds > STUCK_SECONDS)
    if stuck:
        return Withhold(f"requests of {', '.join(stuck)} wait although an instance is free", hopeless=True)
    hung = [worker for worker, overdue in workers.items() if overdue > KILL_SECONDS]
    if hung and len(hung) == len(workers):
        return Withhold(f"all workers hang and cannot be ended: {', '.join(sorted(hung))}")
    return None


class FactReader:
    """Checks every scheduler and every worker. A check kills workers that hang and wakes schedulers that sleep."""

    def __init__(self, registry: Registry, workers: Workers) -> None:
        self._registry = registry
        self._workers = workers
        self._stalls: Stalls[str] = Stalls()
        self._woken: set[str] = set()

    async def read(self, now_ns: int) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Return the arguments of `decide`. Called about once a second."""
        served = self._registry.each_served()
        found = await gathered((f"{one.name}:{one.version}", one.runner, one.runner.find_stall()) for one in served)
        runners = {name: runner for name, runner, _ in found}
        ages = self._stalls.compare(now_ns, {name: marker for name, _, marker in found if marker is not None})
        await asyncio.sleep(0)
        self._woken &= ages.keys()
        for name, age in ages.items():
            if age > WAKE_SECONDS and name not in self._woken:
                self._woken.add(name)
                log.warning("requests of model %s wait although an instance is free: deciding once more", name)
                runners[name].wake()
        return ages, self._workers.watch()
