"""Metadata that is judged by a clock which may be wrong, as the agent uses it: K1, K2."""

from __future__ import annotations

import pytest

from ota.errors import Expired, FetchError
from ota.trust.clock_floor import DAY, HOUR
from ota.trust.expiry import ExpiryCheckedTrust
from tests.ota.clock import FakeClock
from tests.ota.simulator import NOW, Repository
from tests.ota.trust.device import MANIFEST, Device

YEARS = 365 * DAY


def _opened(
    device: Device, repository: Repository, clock: FakeClock, *, certain: bool = True, grace: float = 0.0
) -> ExpiryCheckedTrust:
    """Return the trust of a run, refreshed once. By default a time server has confirmed the clock."""
    dated = ExpiryCheckedTrust(
        device.metadata, device.root, repository, device.floors(), clock, certain=certain, grace=grace
    )
    dated.refresh()
    return dated


def _run(
    device: Device, repository: Repository, time: float, *, certain: bool = False, grace: float = 0.0
) -> ExpiryCheckedTrust:
    return _opened(device, repository, FakeClock(time), certain=certain, grace=grace)


@pytest.mark.fault("K1")
def test_a_jump_of_thirty_years_ends_updates_and_no_more(repository: Repository, device: Device) -> None:
    _run(device, repository, NOW)
    with pytest.raises(Expired, match=r"the clock says 2056-.*, 10950 days after the last time that was certain"):
        _run(device, repository, NOW + 30 * YEARS)
    with pytest.raises(Expired, match=r"Final root.json is expired"):
        _run(device, repository, NOW + 30 * YEARS, certain=True)

    assert device.floors().good_time == NOW
    assert _run(device, repository, NOW + HOUR).document(MANIFEST, 1000) == b'{"release": 1}'
    assert device.floors().good_time == NOW + HOUR


@pytest.mark.fault("K1")
def test_a_jump_of_two_days_waits_for_a_fresh_signature(repository: Repository, device: Device) -> None:
    """Nothing has expired yet, and still nothing proves that it has not."""
    _run(device, repository, NOW)
    with pytest.raises(Expired, match="2 days after the last time that was certain"):
        _run(device, repository, NOW + 2 * DAY)
    _run(device, repository, NOW + 2 * DAY, certain=True)

    repository.advance(4 * DAY)
    repository.publish()
    _run(device, repository, NOW + 4 * DAY)


@pytest.mark.fault("K1")
def test_an_unset_clock_updates_and_is_shown(repository: Repository, device: Device) -> None:
    _run(device, repository, NOW)
    dated = _run(device, repository, 0.0)

    assert dated.clock_unset()
    assert dated.expires()["timestamp"] == NOW + 3 * DAY
    assert device.floors().good_time == NOW


@pytest.mark.fault("K2")
def test_forty_days_without_power_and_network(repository: Repository, device: Device) -> None:
    def offline(path: str) -> None:
        raise FetchError("the network is down")

    _run(device, repository, NOW)
    repository.before_get = offline
    with pytest.raises(FetchError):
        _run(device, repository, NOW + 40 * DAY)
    repository.before_get = None
    repository.advance(40 * DAY)
    repository.publish()

    assert _run(device, repository, NOW + 40 * DAY).document(MANIFEST, 1000) == b'{"release": 1}'


@pytest.mark.fault("K1", "X1")
def test_a_time_at_which_expired_metadata_was_accepted_is_not_kept(repository: Repository, device: Device) -> None:
    """The operator's clock may be wrong, and the floor would keep that for ever."""
    _run(device, repository, NOW, grace=DAY)
    assert device.floors().good_time == 0


@pytest.mark.fault("K1")
def test_a_jump_between_two_refreshes_of_a_run_is_not_kept(repository: Repository, device: Device) -> None:
    clock = FakeClock(NOW)
    dated = _opened(device, repository, clock)
    clock.seconds += 2 * YEARS
    with pytest.raises(Expired, match=r"Final root.json is expired"):
        dated.refresh()
    assert device.floors().good_time == NOW

    clock.seconds = NOW + 2 * HOUR
    dated.refresh()
    assert device.floors().good_time == NOW + 2 * HOUR


@pytest.mark.fault("K1")
def test_a_lazy_refresh_in_doubt_is_refused_each_time(repository: Repository, device: Device) -> None:
    """The first document of a run, or the first one after a role that was refused, refreshes the metadata."""
    _run(device, repository, NOW)
    clock = FakeClock(NOW + 2 * DAY)
    dated = ExpiryCheckedTrust(device.metadata, device.root, repository, device.floors(), clock, certain=False)
    for _ in range(2):
        with pytest.raises(Expired, match="2 days after the last time that was certain"):
            dated.document(MANIFEST, 1000)
        assert not dated.is_refreshed()
        assert dated.expires() == {}

    repository.advance(2 * DAY)
    repository.publish()
    assert dated.document(MANIFEST, 1000) == b'{"release": 1}'
    assert device.floors().good_time == NOW + 2 * DAY


@pytest.mark.fault("K1", "T5")
def test_metadata_that_expires_during_a_run_ends_its_refreshes(repository: Repository, device: Device) -> None:
    clock = FakeClock(NOW)
    dated = _opened(device, repository, clock)
    clock.seconds = NOW + 3 * DAY + HOUR
    with pytest.raises(Expired, match=r"timestamp.json is expired"):
        dated.refresh()
    repository.advance(3 * DAY + HOUR)
    repository.publish()
    dated.refresh()
    assert dated.document(MANIFEST, 1000) == b'{"release": 1}'
    assert dated.expires()["timestamp"] == NOW + 6 * DAY + HOUR
