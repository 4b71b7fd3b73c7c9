"""A server with faults that it cannot be given from outside: `python faulty.py MODE COMMAND -m edge_serve serve ...`.

SIGUSR1 blocks the event loop for ever, SIGUSR2 stops every scheduler from deciding. The modes:

- `signals`: no other fault;
- `unkillable`: workers cannot be killed, as when a driver holds them in the kernel;
- `hasty`: a scheduler, or workers that cannot be killed, are waited for a second instead of five or ten, and the
  progress of a start is reported five times a second;
- `impatient`: a start counts as stalled after a second.

Several modes are joined by `+`. Imports edge_serve only, so that a test can copy this file to another machine.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping

from edge_serve.cli import main
from edge_serve.models.control.registry import Registry
from edge_serve.scheduling.core import NOTHING, Decision
from edge_serve.supervision import supervisor, watchdog
from edge_serve.supervision.supervisor import Supervisor

log = logging.getLogger("edge_serve.faulty")


def _block() -> None:
    log.warning("the event loop is blocked from now on")
    while True:
        time.sleep(60)


def _freeze(registry: Registry) -> None:
    log.warning("no scheduler decides anything from now on")
    for served in registry.served():
        scheduler = getattr(served.runner, "_scheduler", None)
        if scheduler is not None:
            scheduler.next = _wait


def _wait(now_ns: int) -> Decision:
    return NOTHING


def inject(modes: set[str]) -> None:
    """Patch this process, before its server starts."""
    original = Supervisor.use_service_manager

    def use_and_break(self: Supervisor, environ: Mapping[str, str]) -> None:
        original(self, environ)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, _block)
        loop.add_signal_handler(signal.SIGUSR2, _freeze, self._registry)

    Supervisor.use_service_manager = use_and_break  # type: ignore[method-assign]  # for tests only
    if "unkillable" in modes:
        os.killpg = lambda pgid, number: None
    if "hasty" in modes:
        watchdog.WAKE_SECONDS, watchdog.STUCK_SECONDS = 1.0, 2.0
        watchdog.KILL_SECONDS = 1.0  # type: ignore[attr-defined]  # for tests only
        supervisor.EXTEND_EVERY = 0.2
    if "impatient" in modes:
        Supervisor.stall_seconds = 1.0


if __name__ == "__main__":
    inject(set(sys.argv[1].split("+")))
    sys.exit(main(sys.argv[5:]))
