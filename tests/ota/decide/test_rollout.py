"""Which devices get a release, and when."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from zoneinfo import ZoneInfo

import pytest

from ota.decide.rollout import bucket, choose, fair_salt, start_time, steps_include
from ota.decide.window import in_window
from ota.documents.device import DeviceDocument
from ota.documents.rollout import BundleRollout, RolloutStep

NOW = datetime(2026, 11, 22, 12, tzinfo=timezone.utc).timestamp()
STEPS = (RolloutStep("lab", 100), RolloutStep("prod", 5))
WISH = BundleRollout("det", "vision", 17, previous=16, salt="det/17", steps=STEPS)
LAB = DeviceDocument("dev-1", "plant", "lab")


def fleet(count: int, ring: str = "prod") -> list[DeviceDocument]:
    return [DeviceDocument(f"dev-{number:05}", "plant", ring) for number in range(count)]


@pytest.mark.fault("R3")
def test_shares_are_right_and_steps_only_add_devices() -> None:
    devices = fleet(20_000)
    reached_before: set[str] = set()
    for percent in (0, 1, 5, 25, 50, 99.99, 100):
        wish = replace(WISH, steps=(RolloutStep("prod", percent),))
        now = {one.device for one in devices if steps_include(wish, one)}
        assert abs(len(now) / len(devices) * 100 - percent) < 1
        assert reached_before <= now
        reached_before = now
    assert len(reached_before) == len(devices)
    assert not any(steps_include(replace(WISH, steps=(RolloutStep("prod", 0),)), one) for one in devices)


@pytest.mark.fault("R3")
@pytest.mark.parametrize("count", [100, 1000, 3000])
def test_a_fair_salt_keeps_to_the_percentages_also_in_small_fleets(count: int) -> None:
    devices = [*fleet(count), *fleet(1, "lab")]
    salt = fair_salt("det/17/4", devices)
    assert salt == fair_salt("det/17/4", devices)
    assert salt.startswith("det/17/4")
    for percent in (1, 2, 5, 10, 20, 25, 50, 100):
        wish = replace(WISH, salt=salt, steps=(RolloutStep("prod", percent),))
        share = sum(steps_include(wish, one) for one in devices if one.ring == "prod") / count * 100
        assert abs(share - percent) <= max(1.0, 400 / count), percent


def test_another_salt_reaches_other_devices_first() -> None:
    first, second = ({one.device for one in fleet(20_000) if bucket(salt, one.device) < 500} for salt in ("a", "b"))
    assert len(first & second) < 100
    assert bucket("det/17", "dev-0042") == 4887, "devices in the field must not change their buckets"


def test_a_device_outside_the_rollout_keeps_its_release_or_returns_to_the_one_before() -> None:
    outside = next(one for one in fleet(100) if not steps_include(WISH, one))
    assert choose(WISH, outside, 16, NOW).release == 16
    assert choose(WISH, outside, 12, NOW).release == 16
    assert choose(WISH, outside, 0, NOW).release == 16
    assert choose(replace(WISH, previous=0), outside, 12, NOW).release == 12
    assert choose(WISH, outside, 17, NOW).release == 17, "a lower percentage takes no release back"
    assert choose(WISH, DeviceDocument("dev-1", "plant", "attic"), 16, NOW).release == 16
    assert "ring attic" in choose(WISH, DeviceDocument("dev-1", "plant", "attic"), 16, NOW).why


@pytest.mark.fault("R1")
def test_pause_pin_deny_and_an_older_wish() -> None:
    assert choose(WISH, LAB, 16, NOW).release == 17
    paused = replace(WISH, paused=True)
    assert (choose(paused, LAB, 16, NOW).release, choose(paused, LAB, 0, NOW).release) == (16, 16)
    pinned = replace(paused, pin={"dev-1": 15})
    assert (choose(pinned, LAB, 16, NOW).release, choose(pinned, fleet(1)[0], 16, NOW).release) == (15, 16)
    assert choose(replace(WISH, want=15, previous=17), LAB, 17, NOW).release == 15

    denied = replace(WISH, deny=frozenset({17}))
    assert (choose(denied, LAB, 16, NOW).release, choose(denied, LAB, 17, NOW).release) == (16, 16)
    for one in (denied, replace(denied, paused=True), replace(denied, pin={"dev-1": 17})):
        assert choose(one, LAB, 0, NOW).release == 16, "a new device gets the release before"
    assert choose(replace(denied, previous=0), LAB, 0, NOW).release == 0
    assert choose(replace(denied, paused=True), LAB, 17, NOW).release == 16, "a pause keeps no denied release"
    assert choose(replace(denied, pin={"dev-1": 17}), LAB, 17, NOW).release == 16
    everything = choose(replace(WISH, deny=frozenset({16, 17})), LAB, 17, NOW)
    assert (everything.release, everything.may_switch) == (0, True)
    assert "release 17 is denied" in everything.why


def test_a_denied_release_is_removed_at_once_and_others_wait_for_their_hours() -> None:
    night = replace(WISH, window="02:00-05:00")
    waits = choose(night, LAB, 16, NOW, zone=timezone.utc)
    assert (waits.release, waits.may_switch, "02:00-05:00" in waits.why) == (17, False, True)
    assert choose(replace(night, deny=frozenset({17})), LAB, 17, NOW, zone=timezone.utc).may_switch
    assert choose(night, LAB, 17, NOW, zone=timezone.utc).may_switch


def test_a_rollout_starts_at_its_time_and_each_device_at_its_own() -> None:
    wish = replace(WISH, not_before=NOW + 3600, steps=(RolloutStep("prod", 100),))
    (one,) = fleet(1)
    assert choose(wish, one, 16, NOW).release == 16
    assert choose(wish, one, 16, NOW + 3600).release == 17
    starts = [start_time(wish, device, 600) - wish.not_before for device in fleet(1000)]
    assert (0 <= min(starts) < 10, 590 < max(starts) < 600) == (True, True)
    assert "starts on this device in" in choose(wish, one, 16, NOW).why


@pytest.mark.fault("R5")
@pytest.mark.parametrize(
    ("window", "local", "inside"),
    [
        ("", "2026-11-22 12:00", True),
        ("02:00-05:00", "2026-11-22 02:00", True),
        ("02:00-05:00", "2026-11-22 04:59", True),
        ("02:00-05:00", "2026-11-22 05:00", False),
        ("22:00-04:00", "2026-11-22 23:59", True),
        ("22:00-04:00", "2026-11-22 00:00", True),
        ("22:00-04:00", "2026-11-22 04:00", False),
        ("00:00-00:00", "2026-11-22 12:00", True),
        # 29 March 2026: 02:00 becomes 03:00; 25 October: 03:00 becomes 02:00 again
        ("02:00-03:00", "2026-03-29 03:00", False),
        ("02:00-05:00", "2026-03-29 03:00", True),
        ("02:00-03:00", "2026-10-25 02:30", True),
    ],
)
def test_the_clock_on_the_wall_counts(window: str, local: str, inside: bool) -> None:
    zone = ZoneInfo("Europe/Berlin")
    for fold in (0, 1):
        now = datetime.strptime(local, "%Y-%m-%d %H:%M").replace(tzinfo=zone, fold=fold).timestamp()
        assert in_window(window, now, zone) is inside
