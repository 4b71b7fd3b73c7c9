"""Finds instances whose model hangs: a batch without a reply and without a partial response.

Heartbeats find an interpreter that is stuck, but a model may hang while its interpreter works. Watching costs a batch
nothing: once a second the worker's watcher looks at the batches in flight.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Generic, TypeVar

from edge_serve.records import frozen
from edge_serve.workers.front.placement import ModelPlacement

Key = TypeVar("Key", bound=Hashable)

#: model parameter: seconds, in place of --hang-timeout-secs
HANG_PARAMETER = "EDGE_SERVE_HANG_TIMEOUT_SECS"
#: seconds in which a worker that is due to be killed must be dead
KILL_SECONDS = 5.0


class Stalls(Generic[Key]):
    """Measures for how long markers stay the same. A marker changes with each step of its owner: a batch number, say.

    An age counts from the first `compare` that found the marker. So call `compare` much more often than the shortest
    limit that ages are compared with.
    """

    def __init__(self) -> None:
        self._seen: dict[Key, tuple[object, int]] = {}

    def compare(self, now_ns: int, markers: Mapping[Key, object]) -> dict[Key, float]:
        """Return the seconds for which each marker has been the same, and forget what is not in `markers`."""
        self._seen = {key: self._since(key, marker, now_ns) for key, marker in markers.items()}
        return {key: (now_ns - since) / 1e9 for key, (_, since) in self._seen.items()}

    def _since(self, key: Key, marker: object, now_ns: int) -> tuple[object, int]:
        known = self._seen.get(key)
        return known if known is not None and known[0] == marker else (marker, now_ns)


@frozen
class Hang:
    """A batch that has not moved for longer than its model may take.

    Attributes:
        warms_up: the batch is a warm-up, and the limit that of a load.
        tests: the batch is of the golden test; the same.
    """

    model: str
    seconds: float
    limit: float
    warms_up: bool = False
    tests: bool = False

    @property
    def overdue(self) -> float:
        """Seconds since the limit passed."""
        return self.seconds - self.limit

    def text(self, load_setting: str) -> str:
        """Return which model hangs, for how long, and the option that allows it more time."""
        if self.warms_up or self.tests:
            hangs = f"hangs in its {'warm-up' if self.warms_up else 'golden test'}"
            setting = load_setting or "the time limit of a load"
        else:
            hangs, setting = "hangs", f"--hang-timeout-secs, or its parameter {HANG_PARAMETER}"
        return f"model '{self.model}' {hangs}, nothing has come from it for {self.seconds:.0f} s ({setting})"


class HangWatch:
    """Watches the placements of one worker."""

    def __init__(self) -> None:
        self._stalls: Stalls[tuple[int, int]] = Stalls()

    def find(
        self,
        now_ns: int,
        placements: Iterable[ModelPlacement],
        limit: float,
        load_limit: float,
        callers: Collection[int],
    ) -> Hang | None:
        """Return the hang that is longest overdue; None = no placement hangs.

        Args:
            now_ns: time of the process (`Process.time`).
            limit: for placements without one of their own; 0 = they may take for ever.
            load_limit: for warm-up and the golden test, which are parts of loading.
            callers: numbers of placements that wait for other models: those are watched themselves.
        """
        markers: dict[tuple[int, int], object] = {}
        limits: dict[tuple[int, int], tuple[ModelPlacement, float, bool]] = {}
        for placement in placements:
            for channel in placement.channels():
                batch = channel.running()
                loads = batch < 0 or placement.link.tests
                allowed = load_limit if loads else placement.link.hang or limit
                if batch and allowed and not channel.paused and placement.number not in callers:
                    key = placement.number, channel.instance
                    markers[key], limits[key] = (batch, channel.partials), (placement, allowed, batch < 0)
        ages = self._stalls.compare(now_ns, markers)
        hangs = []
        for key, age in ages.items():
            placement, allowed, warms_up = limits[key]
            if age > allowed:
                hangs.append(Hang(placement.spec.name, age, allowed, warms_up, placement.link.tests))
        return max(hangs, key=lambda hang: hang.overdue, default=None)
