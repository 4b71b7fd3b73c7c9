"""Faults that tests inject into a running server, only where the environment variable EDGE_SERVE_FAULTS allows them.

`EDGE_SERVE_FAULTS=1`: SIGUSR1 blocks the event loop for ever, SIGUSR2 stops every scheduler from deciding.
`EDGE_SERVE_FAULTS=unkillable`: the same, and workers cannot be killed, as when a driver holds them in the kernel.
Faults of models need nothing here: a model.py hangs, a worker is stopped or killed from outside.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Mapping

from edge_serve.models.control.registry import Registry
from edge_serve.scheduling.core import NOTHING, Decision
from edge_serve.workers.front import process

log = logging.getLogger(__name__)

VARIABLE = "EDGE_SERVE_FAULTS"


def allow(environ: Mapping[str, str], registry: Registry) -> None:
    """Install what `environ` allows; usually nothing."""
    wanted = environ.get(VARIABLE, "")
    if not wanted:
        return
    log.warning("%s is set: this server breaks on SIGUSR1 and SIGUSR2; it is for tests", VARIABLE)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, _block)
    loop.add_signal_handler(signal.SIGUSR2, _freeze, registry)
    if wanted == "unkillable":
        process._kill_group = lambda pid: None


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
