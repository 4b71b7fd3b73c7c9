"""Decides which release of a bundle a device should run. OTA.md 4.4.

A device computes its bucket by a hash of its name, so no server needs a list of devices. A higher percentage only adds
devices; a lower one removes none.
"""

from __future__ import annotations

import bisect
import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import tzinfo

from ota.decide.window import in_window
from ota.documents.device import DeviceDocument
from ota.documents.rollout import BundleRollout

#: buckets; a percentage has two decimal places
BUCKETS = 10_000
#: percentages that `fair_salt` optimizes
_COMMON_SHARES = (1, 2, 5, 10, 20, 25, 50)
_MOST_SALTS = 100
_MOST_HASHES = 200_000


@dataclass(frozen=True, slots=True)
class ReleaseChoice:
    """The release that a device should run.

    Attributes:
        release: the release to run; 0 = none.
        may_switch: the switching hours have come; until then the release is fetched and tried only.
        why: why it is this release, or why it waits; for `explain` and status.
    """

    release: int
    may_switch: bool = True
    why: str = ""


def bucket(salt: str, device: str) -> int:
    """Return the bucket of a device, 0 to 9999, from the first 64 bits of SHA-256(salt, 0, device)."""
    digest = hashlib.sha256(salt.encode() + b"\0" + device.encode()).digest()
    return int.from_bytes(digest[:8], "big") % BUCKETS


def fair_salt(salt: str, devices: Sequence[DeviceDocument]) -> str:
    """Return a salt with which common percentages include the right share of a fleet.

    Chance alone includes 23 to 27 % of a thousand devices at 25 %. Of some salts the one is taken that is nearest to
    the percentages in each ring. Large fleets need no choice.
    """
    rings = [[one.device for one in devices if one.ring == ring] for ring in sorted({one.ring for one in devices})]
    tries = min(_MOST_SALTS, _MOST_HASHES // max(1, len(devices)))
    if tries < 2:
        return salt

    def error(candidate: str) -> float:
        """Return the largest deviation in standard deviations, weighted by the sizes of the rings."""
        total = 0.0
        for ring in rings:
            buckets = sorted(bucket(candidate, device) for device in ring)
            counts = [(bisect.bisect_left(buckets, share * BUCKETS // 100), share / 100) for share in _COMMON_SHARES]
            deviations = (abs(count - len(ring) * share) / math.sqrt(share * (1 - share)) for count, share in counts)
            total += max(deviations) * math.sqrt(len(ring))
        return total

    return min((f"{salt}/{number}" if number else salt for number in range(tries)), key=error)


def steps_include(wish: BundleRollout, device: DeviceDocument) -> bool:
    """Return whether the steps include a device. A ring that no step names is not included."""
    share = max((step.percent for step in wish.steps if step.ring == device.ring), default=0.0)
    return bucket(wish.salt, device.device) < round(share * BUCKETS / 100)


def start_time(wish: BundleRollout, device: DeviceDocument, spread_seconds: int) -> float:
    """Return when a device may start: `not_before`, and its own share of the spread."""
    return wish.not_before + spread_seconds * bucket(f"{wish.salt}/start", device.device) / BUCKETS


def choosable_releases(wish: BundleRollout, rings: Iterable[str]) -> set[int]:
    """Return the releases that `choose` may name for devices in rings, besides the one that a device has."""
    own = (wish.reached.get(ring, 0) for ring in rings)
    return {wish.want, wish.previous, *own, *wish.pin.values()} - {0}


def find_previous(wish: BundleRollout, ring: str) -> int:
    """Return the release of a ring's devices that the wanted one has not reached, or that must leave it; 0 = none.

    It is the last release that reached all of this ring, else the last one that reached all rings, and not denied.
    """
    found = (wish.reached.get(ring, 0), wish.previous)
    return next((one for one in found if one and one not in wish.deny), 0)


def choose(
    wish: BundleRollout,
    device: DeviceDocument,
    active: int,
    now: float,
    *,
    spread_seconds: int = 0,
    zone: tzinfo | None = None,
) -> ReleaseChoice:
    """Return the release that a device should run.

    A denied release never runs, also while the rollout is paused. Then come the pin, the pause, the start time, the
    steps. A device that has the wanted release keeps it. A device without any gets the release before the wanted one
    where a denial, the pause, or the steps keep the wanted one from it.

    Args:
        active: the release that serves; 0 = none.
        now: seconds since the epoch.
    """
    release, why = _release(wish, device, active, now, spread_seconds)
    if release in wish.deny:
        release, why = _allowed(wish, device, active, release)
    if active in wish.deny and release != active:
        return ReleaseChoice(release, True, f"release {active} is denied: {why}")
    if release == active:
        return ReleaseChoice(active, True, why)
    may_switch = in_window(wish.window, now, zone)
    return ReleaseChoice(release, may_switch, why if may_switch else f"{why}; it switches at {wish.window} local time")


def reason_not_to_switch(choice: ReleaseChoice, release: int, *, ignore_hours: bool = False) -> str:
    """Return why a device must not switch to a release that it has made ready; "" = it may.

    Args:
        choice: of this moment, which may be hours later than the one for which the release was made ready.
    """
    if choice.release != release:
        return f"{release} was made ready and is no longer wanted: {choice.why}"
    return "" if choice.may_switch or ignore_hours else choice.why


def _release(
    wish: BundleRollout, device: DeviceDocument, active: int, now: float, spread_seconds: int
) -> tuple[int, str]:
    if device.device in wish.pin:
        return wish.pin[device.device], "this device is pinned to it"
    if wish.paused:
        return active or find_previous(wish, device.ring), f"the rollout of release {wish.want} is paused"
    if active == wish.want:
        return active, "it is the wanted release"
    start, before = start_time(wish, device, spread_seconds), _before(wish, device, active)
    if now < start:
        return before, f"release {wish.want} starts on this device in {(start - now) / 60:.0f} min"
    if steps_include(wish, device):
        return wish.want, f"the steps of release {wish.want} include this device"
    return before, f"the steps of release {wish.want} do not include this device (ring {device.ring}) yet"


def _before(wish: BundleRollout, device: DeviceDocument, active: int) -> int:
    """Return the release of a device that the rollout has not reached: never an older one than its active release."""
    return max(active, find_previous(wish, device.ring))


def _allowed(wish: BundleRollout, device: DeviceDocument, active: int, denied: int) -> tuple[int, str]:
    """Return the release to run in place of a denied one."""
    if active and denied != active and active not in wish.deny:
        return active, f"release {denied} is denied"
    if previous := find_previous(wish, device.ring):
        return previous, f"release {previous} is the one before"
    return 0, "no other release is allowed: publish one"
