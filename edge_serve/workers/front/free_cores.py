"""How many cores the other programs of the machine leave to this server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

#: seconds between looks, long enough for the kernel's counts, which are of 10 ms
_WINDOW = 0.25
#: what a core may be used by others and still count as free: a client on the same machine takes some of one
_SHARED = 0.6

_STAT = Path("/proc/stat")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Look:
    """What had been computed when somebody looked; seconds.

    Attributes:
        idle: for how long the cores have had nothing to do, together.
        own: what the server's processes have computed, together.
    """

    at: float
    idle: float
    own: float


def cores_left(cores: int, before: Look, now: Look) -> int:
    """Of so many, the ones that were idle or the server's own between two looks; at least 1."""
    elapsed = now.at - before.at
    left = (now.idle - before.idle + now.own - before.own) / elapsed
    return max(1, min(cores, int(left + _SHARED)))


def idle(cores: Collection[int]) -> float:
    """For how long these cores have had nothing to do, together, in seconds.

    Source: proc(5), /proc/stat: user, nice, system, idle, iowait of each core.

    Raises:
        OSError: the file cannot be read.
        ValueError, IndexError: it holds something else.
    """
    ticks = 0
    for line in _STAT.read_bytes().splitlines():
        if not line.startswith(b"cpu"):
            break
        name, *fields = line.split()
        if name != b"cpu" and int(name[3:]) in cores:
            ticks += int(fields[3]) + int(fields[4])
    return ticks / _TICKS_PER_SECOND


class FreeCores:
    """Whoever else computes on the same cores.

    Args:
        cores: numbers of those that this process may run on.
        idle_seconds: as in `Look`; raises OSError, ValueError or IndexError where that is not to be known.

    Attributes:
        own_seconds: as in `Look`.
    """

    __slots__ = ("_before", "_clock", "_cores", "_due", "_idle_seconds", "_left", "own_seconds")

    def __init__(
        self,
        cores: Collection[int],
        own_seconds: Callable[[], float] = time.process_time,
        idle_seconds: Callable[[Collection[int]], float] = idle,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.own_seconds = own_seconds
        self._cores = frozenset(cores)
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._before: Look | None = None
        self._due = 0.0
        self._left = len(self._cores)

    def cores_left(self) -> int:
        """Cheap enough for each batch: it looks four times a second at most, and says what it saw last."""
        at = self._clock()
        if at >= self._due:
            self._look(at)
        return self._left

    def _look(self, at: float) -> None:
        before, self._before = self._before, None
        self._due = at + _WINDOW
        try:
            self._before = now = Look(at, self._idle_seconds(self._cores), self.own_seconds())
        except (OSError, ValueError, IndexError):  # no such file in some sandboxes, or no descriptor just now
            self._left = len(self._cores)
            return
        if before is not None and at - before.at < 4 * _WINDOW:  # a longer time says little of now
            self._left = cores_left(len(self._cores), before, now)
