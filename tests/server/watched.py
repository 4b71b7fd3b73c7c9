"""A server that notes each long turn of its event loop: when, its CPU time, and the callback that took most of it.

    python watched.py FILE python -m edge_serve FLAGS...

`running` starts it with `prefix=[sys.executable, watched.__file__, FILE]`. A turn is what the loop does between two
calls of its selector. Its CPU time is that of the loop's thread, so a machine that is busy otherwise changes little.
"""

from __future__ import annotations

import asyncio.events
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: shorter turns are not written down, seconds
NOTED = 0.001
#: a turn that began so many seconds before a time belongs to it, too
BEFORE = 0.1


@dataclass(frozen=True)
class Turn:
    """A turn that began at `began` (monotonic clock) and took `cpu` seconds, most of it in `callback`."""

    began: float
    cpu: float
    callback: str


def turns(path: Path) -> Iterator[Turn]:
    """Return the turns noted so far."""
    for line in path.read_text().splitlines():
        began, cpu, callback = line.split("\t")
        yield Turn(float(began), float(cpu), callback)


def longest(path: Path, began: float, ended: float) -> Turn:
    """The longest turn of a time."""
    found = [turn for turn in turns(path) if began - BEFORE <= turn.began <= ended]
    return max(found, key=lambda turn: turn.cpu, default=Turn(began, 0.0, "none"))


def _watch(path: str) -> None:
    from edge_serve import server
    from edge_serve.workers.front.busy_poll import PollingSelector

    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    heaviest: list[Any] = [0.0, ""]
    run: Any = asyncio.events.Handle._run

    def timed(handle: Any) -> None:
        before = time.thread_time()
        callback = getattr(handle._callback, "__self__", None) or handle._callback
        run(handle)
        took = time.thread_time() - before
        if took > heaviest[0]:
            heaviest[:] = [took, repr(callback)[:300].replace("\t", " ").replace("\n", " ")]

    class Timed(PollingSelector):
        since = 0.0
        began = 0.0

        def select(self, timeout: float | None = None) -> list[Any]:
            took = time.thread_time() - self.since
            if took > NOTED and self.began:
                os.write(file, f"{self.began:.6f}\t{took:.6f}\t{heaviest[0] * 1e3:.1f} ms in {heaviest[1]}\n".encode())
            heaviest[:] = [0.0, ""]
            ready = super().select(timeout)
            self.began = time.monotonic()
            self.since = time.thread_time()
            return ready

    asyncio.events.Handle._run = timed  # type: ignore[assignment]  # a private name, for tests only
    vars(server)["PollingSelector"] = Timed


if __name__ == "__main__":
    _watch(sys.argv[1])
    from edge_serve.cli import main

    sys.exit(main(sys.argv[5:]))
