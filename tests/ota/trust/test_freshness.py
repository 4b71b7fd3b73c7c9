"""Expiry, and the time that it is judged by: T5, K1, K2."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from ota.errors import Expired, FetchError, RolledBack
from ota.trust import clock_floor
from ota.trust.client import TrustClient
from ota.trust.clock_floor import BUILT, DAY, HOUR, FlooredClock
from ota.trust.floors import Floors
from ota.trust.roots import parse_time
from tests.ota.simulator import NOW, ROLES, Repository
from tests.ota.trust.device import MANIFEST, Device, refused

YEARS = 365 * DAY


@pytest.mark.fault("T5")
@pytest.mark.parametrize("role", ["root", "timestamp", "snapshot", "targets", "models-det"])
def test_expired_metadata_is_refused_until_it_is_signed_again(
    repository: Repository, device: Device, role: str
) -> None:
    device.run(repository)
    repository.signed[role].expires = datetime.fromtimestamp(NOW - 1, timezone.utc)
    if role == "root":
        repository.publish_root()
    repository.publish("targets", "models-det")

    refused(
        device, repository, Expired, rf"{role}(.json)? is expired \(this device's clock says 2026-11-01T00:00:00Z\)"
    )

    repository.advance(DAY)
    if role == "root":
        repository.publish_root()
    repository.publish("targets", "models-det")
    assert device.run(repository).document(MANIFEST, 1000) == b'{"release": 1}'


@pytest.mark.fault("T5")
def test_metadata_that_expires_after_a_refresh_is_good_until_the_next(repository: Repository, device: Device) -> None:
    """The time of documents is that of the last refresh (5.1 of the specification)."""
    repository.signed["models-det"].expires = datetime.fromtimestamp(NOW, timezone.utc) + timedelta(seconds=1)
    repository.publish("models-det")
    trust = device.run(repository, NOW)

    assert trust.document(MANIFEST, 1000) == b'{"release": 1}'
    refused(device, repository, Expired, "models-det is expired", NOW + 2)


def test_the_time_argument_has_effect(repository: Repository, device: Device) -> None:
    """Guards a private attribute: `Updater._trusted_set.reference_time`. If this fails, a new tuf has another way."""
    timestamp = ROLES["timestamp"][2] * DAY

    device.run(repository, NOW + timestamp - 1)
    refused(device, repository, Expired, "timestamp.json is expired", NOW + timestamp)


@pytest.mark.fault("X1")
def test_an_operator_at_the_device_may_accept_recently_expired_metadata(repository: Repository, device: Device) -> None:
    """A stick that was on its way for longer than a timestamp lives. The floors hold as ever."""
    old = repository.copy()
    repository.publish()
    floors = device.floors()
    TrustClient(device.metadata, device.root, repository, floors, NOW + 5 * DAY, grace=2 * DAY + 1).refresh()

    with pytest.raises(Expired, match="2026-11-06T00:00:00Z"):
        TrustClient(device.metadata, device.root, repository, floors, NOW + 5 * DAY, grace=2 * DAY).refresh()
    with pytest.raises(RolledBack):
        TrustClient(device.metadata, device.root, old, floors, NOW + 5 * DAY, grace=9 * DAY).refresh()


@pytest.mark.fault("K1")
@pytest.mark.parametrize("system", [0.0, NOW - 10 * YEARS, NOW - 1])
def test_a_slow_clock_does_not_accept_what_has_expired(repository: Repository, device: Device, system: float) -> None:
    """The newest signed time that the device has verified is its clock's floor."""
    device.run(repository, NOW)
    frozen = repository.copy()
    repository.advance(10 * DAY)
    repository.publish()
    device.run(repository, NOW + 10 * DAY)
    device.lose_metadata()
    frozen.signed["timestamp"].version = 50
    frozen.publish_timestamp()

    refused(device, frozen, Expired, "timestamp.json is expired .*2026-11-11", system)
    assert device.run(repository, system).document(MANIFEST, 1000) == b'{"release": 1}'


@pytest.mark.fault("K1")
def test_a_fast_clock_refuses_and_recovers(repository: Repository, device: Device) -> None:
    device.run(repository)
    refused(device, repository, Expired, "Final root.json is expired", NOW + 30 * YEARS)
    refused(device, repository, Expired, "Final root.json is expired", 1e18)

    assert device.run(repository).document(MANIFEST, 1000) == b'{"release": 1}'


@pytest.mark.fault("K1")
def test_a_clock_without_a_battery(device: Device) -> None:
    floors = device.floors()
    at_first = clock_floor.judge(0.0, floors, synchronized=False)
    assert (at_first.now, at_first.unset, at_first.doubt) == (BUILT, True, "")

    floors.issued = NOW + DAY
    unset = clock_floor.judge(0.0, floors, synchronized=False)
    assert (unset.now, unset.unset, unset.doubt) == (NOW + DAY, True, "")

    just_below = clock_floor.judge(NOW + DAY - 1, floors, synchronized=False)
    assert (just_below.now, just_below.unset) == (NOW + DAY, False)

    later = clock_floor.judge(NOW + DAY + HOUR, floors, synchronized=True)
    assert (later.now, later.unset, later.doubt) == (NOW + DAY + HOUR, False, "")


@pytest.mark.fault("K1")
def test_a_jump_ahead_is_doubted_until_something_confirms_it(repository: Repository, device: Device) -> None:
    """After 40 days without power: a time server confirms the clock, or metadata that was signed within a day."""
    device.run(repository)
    system = NOW + 40 * DAY
    floors = device.floors()

    assert clock_floor.judge(NOW + DAY, floors, synchronized=False).doubt == ""
    doubt = clock_floor.judge(system, floors, synchronized=False).doubt
    assert doubt.startswith("the clock says 2026-12-11T00:00:00Z, 40 days after the last time that was certain")
    assert clock_floor.judge(system, floors, synchronized=True).doubt == ""
    assert clock_floor.judge(system, Floors([]), synchronized=False).doubt == ""

    repository.advance(40 * DAY - HOUR)
    repository.publish()
    device.run(repository, system)
    assert clock_floor.judge(system, device.floors(), synchronized=False).doubt == ""


@pytest.mark.fault("K1")
def test_only_a_certain_time_is_kept_once_an_hour(device: Device) -> None:
    floors = device.floors()
    clock_floor.record_time(NOW + 30 * YEARS, floors, certain=False)
    assert device.floors().good_time == 0

    clock_floor.record_time(NOW, floors, certain=True)
    clock_floor.record_time(NOW + HOUR - 1, floors, certain=True)
    assert device.floors().good_time == NOW
    clock_floor.record_time(NOW + HOUR, floors, certain=True)
    clock_floor.record_time(NOW - DAY, floors, certain=True)
    assert device.floors().good_time == NOW + HOUR


@pytest.mark.fault("K1")
def test_a_clock_that_is_set_back_during_a_run() -> None:
    system = _Clock([NOW, NOW + 5, NOW - YEARS, NOW + 6])
    clock = FlooredClock(system, Floors([]), NOW - 1)

    assert [clock.now() for _ in range(4)] == [NOW, NOW + 5, NOW + 5, NOW + 6]
    assert clock.monotonic() == 1.0
    clock.sleep(2.0)
    assert system.slept == 2.0
    assert FlooredClock(_Clock([0.0]), Floors([]), NOW).now() == NOW


def test_whether_a_time_server_confirmed_the_clock_can_be_asked(
    monkeypatch: pytest.MonkeyPatch, device: Device
) -> None:
    assert clock_floor.is_synchronized() in (True, False)
    device.places[0].write_bytes(b"")
    monkeypatch.setattr(clock_floor, "SYNCHRONIZED", device.places[0])
    assert clock_floor.is_synchronized()


@pytest.mark.fault("K2")
def test_forty_days_offline_then_fresh_metadata(repository: Repository, device: Device) -> None:
    """Verified metadata stays where it is; updates continue with the next fresh metadata."""

    def offline(path: str) -> None:
        raise FetchError("the network is down")

    device.run(repository).document(MANIFEST, 1000)
    repository.before_get = offline
    for day in range(0, 41, 10):
        refused(device, repository, FetchError, "the network is down", NOW + day * DAY)

    repository.before_get = None
    refused(device, repository, Expired, "timestamp.json is expired", NOW + 40 * DAY)
    repository.advance(40 * DAY)
    repository.publish()
    assert device.run(repository, NOW + 40 * DAY).document(MANIFEST, 1000) == b'{"release": 1}'


@pytest.mark.parametrize("text", ["", "2026-11-01", "2026-11-01T00:00:00+00:00", None, 5, "2026-02-30T00:00:00Z"])
def test_other_times_are_no_times(text: object) -> None:
    assert parse_time(text) is None


def test_a_clock_floor_protects_a_careless_caller(repository: Repository, device: Device) -> None:
    floors = device.floors()
    floors.good_time = NOW + 20 * DAY
    with pytest.raises(Expired):
        TrustClient(device.metadata, device.root, repository, floors, 0.0).refresh()


class _Clock:
    """Gives the times of a list."""

    def __init__(self, times: list[float]) -> None:
        self.times, self.slept = times, 0.0

    def now(self) -> float:
        return self.times.pop(0)

    def monotonic(self) -> float:
        return 1.0

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
