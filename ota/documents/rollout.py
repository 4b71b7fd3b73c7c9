"""The rollout document of a fleet: a TUF target, listed by `rollout`. OTA.md 4.4."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from ota.documents.names import SYSTEM, name
from ota.errors import Untrusted
from ota.strict_json import Members, parse

SCHEMA = 1
MOST_BYTES = 1024 * 1024
MOST_MODELS = 256
MOST_STEPS = 32
MOST_PINS = 10_000
#: rings that were ever stepped: also those without devices
MOST_RINGS = 10_000


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """A ring, and the percentage of its devices that may have the release."""

    ring: str
    percent: float


@dataclass(frozen=True, slots=True)
class BundleRollout:
    """The rollout of one bundle in a fleet, or of the devices' system: then `bundle` is SYSTEM.

    Attributes:
        family: of the bundle; for the system its product.
        want: the release; previous: the last one that reached all rings (0 = none has).
        reached: ring -> the last release before that reached all of this ring; it precedes `previous`. Its member is
            `x-reached`: an older edge-ota ignores it.
        salt: what devices are hashed with; a new one for each release, so that not always the same are first.
        not_before: seconds since the epoch; 0 = at once.
        window: when a device may switch, `02:00-05:00` in its local time; "" = at any time.
        deny: releases that no device may run.
        pin: device -> the release that it shall have, whatever the steps say.
    """

    bundle: str
    family: str
    want: int
    previous: int = 0
    reached: Mapping[str, int] = field(default_factory=dict)
    paused: bool = False
    salt: str = ""
    steps: tuple[RolloutStep, ...] = ()
    not_before: float = 0.0
    window: str = ""
    deny: frozenset[int] = frozenset()
    pin: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rollout:
    """The rollout document of a fleet.

    Attributes:
        serial: rises with each change; a device never goes back.
        spread_seconds: devices start at a time of their own within so many seconds.
        system: the rollout of the devices' system; None = the fleet has none.
    """

    fleet: str
    serial: int
    models: Mapping[str, BundleRollout] = field(default_factory=dict)
    spread_seconds: int = 0
    report_url: str = ""
    system: BundleRollout | None = None

    def wishes(self) -> dict[str, BundleRollout]:
        """Return the rollouts of all bundles, and that of the system under its name."""
        return {**self.models, **({SYSTEM: self.system} if self.system else {})}


def read_rollout(data: bytes, fleet: str) -> Rollout:
    """Return the rollout document of a fleet.

    Raises:
        Untrusted: it is malformed, or another fleet's.
        Unsuitable: its schema is newer than this agent.
    """
    what = f"the rollout document of {fleet}"
    members = Members(parse(data, what, MOST_BYTES), what)
    members.check_schema(SCHEMA)
    named = name(members.text("fleet"), f"{what}: fleet")
    if named != fleet:
        raise Untrusted(f"{what} is that of {named}: the repository has it under a wrong name")
    system = members.optional("system") if members.has("system") else None
    rollout = Rollout(
        fleet=named,
        serial=members.integer("serial", least=1),
        models={
            bundle: _wish(_bundle(bundle, what), one) for bundle, one in members.tables("models", most=MOST_MODELS)
        },
        spread_seconds=members.integer("spread_seconds", 0, most=7 * 86400),
        report_url=members.text("report_url", ""),
        system=_wish(SYSTEM, system, "product") if system else None,
    )
    members.end()
    return rollout


def _bundle(found: str, what: str) -> str:
    if found == SYSTEM:
        raise Untrusted(f"{what} has a bundle named {SYSTEM!r}, which is the name of the devices' system")
    return name(found, what)


def _wish(bundle: str, members: Members, family: str = "family") -> BundleRollout:
    wish = BundleRollout(
        bundle=bundle,
        family=name(members.text(family), f"{bundle}: {family}"),
        want=members.integer("want", least=1),
        previous=members.integer("previous", 0),
        reached=_releases_by_name(members, "x-reached", MOST_RINGS),
        paused=members.boolean("paused", False),
        salt=members.text("salt", ""),
        steps=tuple(_step(one) for one in members.objects("steps", [], most=MOST_STEPS)),
        not_before=_time(members, "not_before"),
        window=_window(members),
        deny=frozenset(_releases(members)),
        pin=_releases_by_name(members, "pin", MOST_PINS),
    )
    members.end()
    return wish


def _step(members: Members) -> RolloutStep:
    step = RolloutStep(name(members.text("ring"), "a ring"), members.number("percent", most=100.0))
    members.end()
    return step


def _time(members: Members, member: str) -> float:
    found = members.text(member, "")
    if not found:
        return 0.0
    try:
        when = datetime.strptime(found, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        members.refuse(member, found, "expected a time in UTC such as 2026-11-22T02:00:00Z")
    return when.replace(tzinfo=timezone.utc).timestamp()


def _window(members: Members) -> str:
    found = members.text("window", "")
    if found and not re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d", found):
        members.refuse("window", found, "expected local times such as 02:00-05:00")
    return found


def _releases(members: Members) -> list[int]:
    found = members.array("deny", [], most=4096)
    if any(isinstance(one, bool) or not isinstance(one, int) for one in found):
        members.refuse("deny", found, "expected release numbers")
    return found


def _releases_by_name(members: Members, member: str, most: int) -> dict[str, int]:
    found = members.table(member, {}, most=most)
    for key, release in found.items():
        name(key, member)
        if isinstance(release, bool) or not isinstance(release, int) or release < 1:
            members.refuse(f"{member}.{key}", release, "expected a release number")
    return found
