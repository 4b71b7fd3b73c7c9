"""The clock floor: the time that expiry is judged by, on a device whose clock may be unset, wrong, or set back.

The floor is the latest of three times: the build of this edge-ota, the signature of the newest verified timestamp, and
the last time at which the clock was confirmed. Only the timestamp's key can raise it, and an unset clock does not lower
it. While the system's clock is behind the floor, the time of decisions advances from the floor by the monotonic clock,
also between runs, so that hours come and waits end.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from ota import files
from ota.clock import TimeSource
from ota.errors import StoreError
from ota.strict_json import Members, parse, to_canonical_json
from ota.trust.floors import Floors
from ota.trust.roots import format_time

#: a time before the first release of edge-ota: 2026-11-01
BUILT = 1_793_491_200.0
HOUR = 3600.0
DAY = 86400.0
#: seconds by which correct clocks may differ
TOLERANCE = 60.0
#: systemd-timesyncd creates it after its first contact with a server
SYNCHRONIZED = Path("/run/systemd/timesync/synchronized")
_TIME_ERROR = 5  # adjtimex: the clock is not synchronized
#: for the operator of a device whose clock is behind the floor
UNSET = (
    "the clock of this device is not set: hours and waits count from the newest signature, and may be late; set the "
    "clock, or switch with 'edge-ota apply --now'"
)
_MOST_BYTES = 1000


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The judged time of this device.

    Attributes:
        now: the later of the system's clock and the floor.
        unset: the system's clock is behind the floor; `now` is the floor.
        doubt: why expiry is unknown; "" = it is known. While it is unknown no update starts, and models go on.
    """

    now: float
    unset: bool
    doubt: str


def judge(system: float, floors: Floors, synchronized: bool, built: float = BUILT) -> ClockReading:
    """Judge the system clock. Call it again after a refresh, because a fresh timestamp proves that the time is right.

    Args:
        system: seconds since the epoch, as the system has it.
        synchronized: a time server has confirmed it, or an operator.
    """
    known = max(floors.issued, floors.good_time)
    floor = _floor(floors, built)
    ahead = system - known
    doubt = ""
    if known and ahead > DAY and not synchronized:
        doubt = (
            f"the clock says {format_time(system)}, {ahead / DAY:.0f} days after the last time that was certain, and "
            "no time server has confirmed it: updates wait for one, or for metadata that was signed within a day"
        )
    return ClockReading(now=max(system, floor), unset=system < floor - TOLERANCE, doubt=doubt)


def record_time(system: float, floors: Floors, *, certain: bool) -> None:
    """Store a time at which the clock was right, at most once an hour.

    Args:
        certain: a refresh has just verified metadata at this time. A time server is not enough: a forged one could
            set the clock years ahead, and the floor would stay there.

    Raises:
        StoreError: the floors cannot be written.
    """
    if certain and system - floors.good_time >= HOUR:
        floors.good_time = system
        floors.save()


def is_synchronized() -> bool:
    """Return whether a time server has confirmed the system clock; False if unknown."""
    if SYNCHRONIZED.exists():
        return True
    with contextlib.suppress(Exception):  # no such call, or a sandbox without it
        import ctypes

        state: int = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(512))
        return 0 <= state != _TIME_ERROR
    return False


def open_clock(clock: TimeSource, floors: Floors, place: Path) -> FlooredClock:
    """Return the clock of a run.

    Args:
        place: the file that has the time of earlier runs while the clock is behind the floor.
    """
    found = judge(clock.now(), floors, synchronized=True)
    if not found.unset:
        return FlooredClock(clock, floors, found.now)
    return FlooredClock(clock, floors, _continue(place, _floor(floors), clock.monotonic()), place)


def _continue(place: Path, floor: float, monotonic: float) -> float:
    """Return the time that an earlier run had, plus what has passed since then, but at least the floor. Store it.

    The result is never later than the true time, if the floor is not: after a boot, only the seconds since then count.
    """
    now = floor
    with contextlib.suppress(Exception):  # a damaged file can raise any error; the floor counts without it
        if (data := files.read(place, _MOST_BYTES)) is not None:
            found = Members(parse(data, str(place), _MOST_BYTES), str(place), StoreError)
            mark = found.number("mark")
            passed = monotonic - mark if monotonic >= mark else monotonic
            if found.number("floor") <= floor:  # a lower floor: the key that raised the other one was stolen
                now = max(floor, found.number("time") + passed)
    _store(place, floor, now, monotonic)
    return now


def _store(place: Path, floor: float, now: float, monotonic: float) -> None:
    with contextlib.suppress(StoreError):  # no state yet, or a full disk, which must not stop updates
        files.write_durably(place, to_canonical_json({"floor": floor, "time": now, "mark": monotonic}), 0o600)


def _floor(floors: Floors, built: float = BUILT) -> float:
    return max(built, floors.issued, floors.good_time)


class FlooredClock:
    """A clock whose `now` never goes back, neither below the floor nor during a run, and never stops.

    Args:
        clock: the system's.
        floors: their times; a refresh may raise them during the run.
        start: the time at the start of the run.
        place: the file that gets the time every minute, for runs after a restart; None = the clock was right at first.
    """

    def __init__(self, clock: TimeSource, floors: Floors, start: float, place: Path | None = None) -> None:
        self._clock, self._floors, self._place = clock, floors, place
        self._latest = self._stored = start
        self._mark, self._highest = clock.monotonic(), _floor(floors)

    def now(self) -> float:
        """Return seconds since the epoch, never less than before."""
        before, self._mark = self._mark, self._clock.monotonic()
        system, floor = self._clock.now(), _floor(self._floors)
        self._latest = max(self._latest + self._mark - before, system, floor)
        self._highest = max(self._highest, floor)  # the time may come from a floor that ended during the run
        if system >= self._latest:
            self._place = None  # the clock was set, perhaps years ahead
        if self._place is not None and self._latest - self._stored >= TOLERANCE:
            _store(self._place, self._highest, self._latest, self._mark)
            self._stored = self._latest
        return self._latest

    def monotonic(self) -> float:
        """Return seconds of the monotonic clock."""
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        self._clock.sleep(seconds)
