"""The roles of a repository: their keys, thresholds, expiry, and paths. OTA.md 4.2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ota.documents.names import name
from ota.errors import Untrusted, UsageError

ROOT, TARGETS, SNAPSHOT, TIMESTAMP = "root", "targets", "snapshot", "timestamp"
ENGINES, ROLLOUT, SYSTEM = "engines", "rollout", "system"
#: roles that root names itself; `targets` delegates to all others
TOP = (ROOT, TARGETS, SNAPSHOT, TIMESTAMP)
FAMILY_PREFIX = "models-"


@dataclass(frozen=True, slots=True)
class RolePolicy:
    """The number of keys of a role, its threshold, and the days that its signatures last."""

    keys: int
    threshold: int
    days: float


#: for a team: no single person or machine can change keys or approve code
TEAM: Mapping[str, RolePolicy] = {
    ROOT: RolePolicy(5, 3, 365),
    TARGETS: RolePolicy(3, 2, 180),
    "models": RolePolicy(2, 1, 90),
    ENGINES: RolePolicy(3, 2, 90),
    SYSTEM: RolePolicy(3, 2, 180),
    ROLLOUT: RolePolicy(2, 1, 14),
    SNAPSHOT: RolePolicy(1, 1, 14),
    TIMESTAMP: RolePolicy(1, 1, 3),
}
#: for one person, and for tests: one key for each role. One stolen key is enough to take over its role
SMALL: Mapping[str, RolePolicy] = {role: RolePolicy(1, 1, plan.days) for role, plan in TEAM.items()}
PRESETS: Mapping[str, Mapping[str, RolePolicy]] = {"team": TEAM, "small": SMALL}


@contextlib.contextmanager
def raise_as_usage() -> Iterator[None]:
    """Turn Untrusted into UsageError, because the publisher typed the document."""
    try:
        yield
    except Untrusted as error:
        raise UsageError(error.message) from None


def checked_name(found: object, what: str) -> str:
    """Return a valid name.

    Raises:
        UsageError: it has other characters, or is too long.
    """
    with raise_as_usage():
        return name(found, what)


def kind_of(role: str) -> str:
    """Return the key of the role's policy: `models` for `models-det`."""
    return "models" if role.startswith(FAMILY_PREFIX) else role


def family_role(family: str) -> str:
    """Return the role that signs the releases of a family."""
    return f"{FAMILY_PREFIX}{family}"


def paths_of(role: str) -> list[str]:
    """Return the patterns of the targets that a delegated role may list. `*` does not match `/`."""
    if role == ENGINES:
        return ["engines/*/*"]
    if role == SYSTEM:
        return ["system/*/*"]
    if role == ROLLOUT:
        return ["rollout/*", "devices/*"]
    if role.startswith(FAMILY_PREFIX):
        return [f"bundles/{role[len(FAMILY_PREFIX) :]}/*"]
    raise UsageError(
        f"{role!r} is not a role: expected root, targets, snapshot, timestamp, engines, system, rollout or models-NAME"
    )


def with_days(plans: Mapping[str, RolePolicy], changed: Mapping[str, float]) -> dict[str, RolePolicy]:
    """Return policies with other numbers of days.

    Raises:
        UsageError: an unknown role, or a life time out of bounds.
    """
    result = dict(plans)
    for role, days in changed.items():
        if role not in result:
            raise UsageError(f"{role!r} is not a role with an expiry: expected one of {', '.join(result)}")
        if not 0.01 <= days <= 3650:
            raise UsageError(f"{role} would last {days:g} days, expected 0.01 to 3650")
        result[role] = RolePolicy(result[role].keys, result[role].threshold, days)
    return result
