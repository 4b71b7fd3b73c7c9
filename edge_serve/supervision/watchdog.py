"""Decides whether systemd's watchdog is fed. Pure: facts and the time in, a decision out.

That the event loop turns is not among the facts: the caller runs on it. One model that hangs is its worker's
matter (`workers/hangs`, `workers/process`); only what nobody inside can cure lets the whole service be restarted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: a scheduler with work, a free instance and nothing running is asked once more after so long; seconds
WAKE_SECONDS = 5.0
#: and counts as stuck after so long
STUCK_SECONDS = 10.0
#: a worker that should have been killed must be gone after so long; seconds
KILL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class WatchdogFacts:
    """The facts that the decision is made from.

    Attributes:
        schedulers: model -> seconds for which work has been waiting although nothing runs and an instance is free.
        workers: worker -> seconds since it should have been ended because it hangs; 0 or less = it does not.
    """

    schedulers: Mapping[str, float] = field(default_factory=dict)
    workers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Feed:
    """All is well, or will be without a restart of the service."""


@dataclass(frozen=True, slots=True)
class Withhold:
    """Let the watchdog bite.

    Attributes:
        hopeless: waiting for the end of its time would be useless.
    """

    reason: str
    hopeless: bool = False


def time_of(environ: Mapping[str, str], pid: int) -> float:
    """Seconds within which the manager wants to hear of process `pid`; 0 = never (sd_watchdog_enabled(3))."""
    try:
        if int(environ.get("WATCHDOG_PID") or pid) != pid:
            return 0.0
        return max(0, int(environ.get("WATCHDOG_USEC", "0"))) / 1e6
    except ValueError:
        return 0.0


def decide(facts: WatchdogFacts) -> Feed | Withhold:
    """Decide whether to feed the watchdog. Only a restart ends a stuck scheduler. Workers are restarted one by one;
    when none of them can be ended, the machine below them hangs, and a new process may fare better."""
    stuck = sorted(model for model, seconds in facts.schedulers.items() if seconds > STUCK_SECONDS)
    if stuck:
        return Withhold(f"requests of {', '.join(stuck)} wait although an instance is free", hopeless=True)
    hung = [worker for worker, overdue in facts.workers.items() if overdue > KILL_SECONDS]
    if hung and len(hung) == len(facts.workers):
        return Withhold(f"all workers hang and cannot be ended: {', '.join(sorted(hung))}")
    return Feed()
