"""The time of decisions while the system's clock is behind the clock floor: K1."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timezone
from pathlib import Path

import pytest

from ota.decide.window import in_window
from ota.trust.clock_floor import BUILT, DAY, HOUR, FlooredClock, open_clock
from ota.trust.floors import Floors

NOW = BUILT + 100 * DAY
_RUNS = 900.0


@dataclass
class WrongClock:
    """A system's clock that is behind, and its monotonic clock, which a boot sets to 0."""

    true: float
    lag: float = 20 * DAY
    booted: float = 0.0

    def now(self) -> float:
        return self.true - self.lag

    def monotonic(self) -> float:
        return self.true - self.booted

    def sleep(self, seconds: float) -> None:
        self.true += seconds


@pytest.fixture
def system() -> WrongClock:
    """A clock that is 20 days behind, on a machine that was started a minute ago."""
    return WrongClock(NOW, booted=NOW - 60)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "clock.json"


def floors_at(issued: float) -> Floors:
    found = Floors([])
    found.issued = issued
    return found


def opened(system: WrongClock, place: Path, issued: float) -> FlooredClock:
    """Return the clock of a new run."""
    return open_clock(system, floors_at(issued), place)


@pytest.mark.fault("K1")
def test_hours_come_while_the_clock_is_behind(system: WrongClock, place: Path) -> None:
    """The repository is signed every six hours, and the device starts anew every two days."""
    hits, midnight = [], NOW // DAY * DAY
    for run in range(10 * 96):
        system.true = midnight + run * _RUNS + 300
        if run % 192 == 0:
            system.booted = system.true - 60
        issued = max(midnight, (system.true - 600) // (6 * HOUR) * 6 * HOUR + 600)
        now = opened(system, place, issued).now()
        assert now <= system.true, "it is never ahead"
        hits.append(in_window("02:00-05:00", now, timezone.utc))
    assert sum(hits) == sum(in_window("02:00-05:00", midnight + run * _RUNS, timezone.utc) for run in range(10 * 96))


@pytest.mark.fault("K1")
def test_time_passes_during_a_run_and_between_runs(system: WrongClock, place: Path) -> None:
    clock = opened(system, place, NOW - HOUR)
    assert clock.now() == NOW - HOUR
    system.sleep(100)
    assert clock.now() == clock.now() == NOW - HOUR + 100
    system.sleep(100)
    assert opened(system, place, NOW - HOUR).now() == NOW - HOUR + 200
    system.sleep(5 * HOUR)
    system.booted = system.true - 30
    assert opened(system, place, NOW - HOUR).now() == NOW - HOUR + 230, "only the seconds since the boot are certain"


@pytest.mark.fault("K1")
def test_the_time_of_a_long_run_survives_a_restart(system: WrongClock, place: Path) -> None:
    clock = opened(system, place, NOW - HOUR)
    for _ in range(3 * 60):
        system.sleep(60)
        last = clock.now()
    assert last == NOW + 2 * HOUR
    system.booted = system.true - 60
    assert last <= opened(system, place, NOW - HOUR).now() <= system.true


@pytest.mark.fault("K1")
def test_a_time_of_the_system_clock_is_not_stored(system: WrongClock, place: Path) -> None:
    """The clock is set during the run: perhaps by a forged time server, and back later."""
    clock = opened(system, place, NOW - HOUR)
    system.sleep(60)
    lag, system.lag = system.lag, -730 * DAY
    assert clock.now() == NOW + 730 * DAY + 60
    system.lag = lag
    for _ in range(10):
        system.sleep(60)
        clock.now()
    assert opened(system, place, NOW - HOUR).now() < NOW


@pytest.mark.fault("K1")
def test_a_refresh_and_a_clock_that_is_set_count_at_once(system: WrongClock, place: Path) -> None:
    floors = floors_at(NOW - 5 * DAY)
    clock = open_clock(system, floors, place)
    floors.issued = NOW - 60
    assert clock.now() == NOW - 60
    system.lag = 0
    assert clock.now() == opened(system, place, NOW - 60).now() == NOW


@pytest.mark.fault("T4")
def test_a_time_that_a_stolen_key_signed_ends_with_that_key(system: WrongClock, place: Path) -> None:
    assert opened(system, place, NOW + 13 * DAY).now() == NOW + 13 * DAY
    system.sleep(_RUNS)
    assert opened(system, place, NOW).now() == NOW


@pytest.mark.fault("T4")
def test_such_a_time_ends_also_if_its_key_is_replaced_during_a_run(system: WrongClock, place: Path) -> None:
    floors = floors_at(NOW + 13 * DAY)
    clock = open_clock(system, floors, place)
    floors.issued = NOW
    system.sleep(_RUNS)
    assert clock.now() > NOW + 13 * DAY
    assert opened(system, place, NOW).now() == NOW


@pytest.mark.fault("K3", "D1")
@pytest.mark.parametrize("content", [b"", b"{}", b'{"floor":0,"mark":"x","time":5}', None])
def test_without_the_time_of_the_last_run_the_floor_counts(
    system: WrongClock, place: Path, content: bytes | None
) -> None:
    if content is None:
        place.mkdir()  # it can be neither read nor written
    else:
        place.write_bytes(content)
    assert opened(system, place, NOW).now() == NOW
    assert opened(system, place.parent / "none" / "clock.json", NOW).now() == NOW


def test_a_right_clock_writes_nothing(system: WrongClock, place: Path) -> None:
    system.lag = 0
    assert opened(system, place, NOW - HOUR).now() == NOW
    assert not place.exists()
