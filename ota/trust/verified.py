"""Reads verified metadata: the keys that may sign a role, the delegation of a path, and the issue time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias, cast

from tuf.api.metadata import Root, Signed, Snapshot, Targets, Timestamp

from ota.errors import Untrusted
from ota.trust.roles import role_of
from ota.trust.roots import format_time, parse_time

#: role -> its metadata, verified by tuf
Trusted: TypeAlias = Mapping[str, Signed]


class VerifiedRole(NamedTuple):
    """The verified metadata of a role, and the keys to which its floor is bound.

    Attributes:
        is_deep: only roles below targets delegate to it.
    """

    role: str
    signed: Signed
    keys: frozenset[str]
    threshold: int
    is_deep: bool


def verified_roles(trusted: Trusted, roots: frozenset[str] = frozenset()) -> Iterator[VerifiedRole]:
    """Yield each role with verified metadata, with its keys as its delegator lists them.

    Args:
        roots: digests of the roots in the verified chain. The floor of the root is bound to these; one suffices.
    """
    root = cast(Root, trusted[Root.type])
    yield VerifiedRole(Root.type, root, roots, 1, is_deep=False)
    for role in (Timestamp.type, Snapshot.type, Targets.type):
        yield VerifiedRole(role, trusted[role], _top_level_keys(root, role), root.roles[role].threshold, is_deep=False)
    targets = cast(Targets, trusted[Targets.type])
    waiting = [targets]
    seen = {Targets.type}
    while waiting:
        delegator = waiting.pop()
        delegations = delegator.delegations
        if delegations is None:
            continue
        bins = delegations.succinct_roles
        named = [(role, bins) for role in bins.get_roles()] if bins else list((delegations.roles or {}).items())
        for role, delegated in named:
            signed = trusted.get(role)
            if isinstance(signed, Targets) and role not in seen:
                seen.add(role)
                waiting.append(signed)
                keys, is_deep = frozenset(delegated.keyids), delegator is not targets
                yield VerifiedRole(role, signed, keys, delegated.threshold, is_deep)


def _top_level_keys(root: Root, role: str) -> frozenset[str]:
    """Return the keys to which the floor of a top-level role is bound."""
    keyids = root.roles[role].keyids
    if role == Targets.type:
        # pairs, so that new snapshot keys end this floor, too: TUF's recovery from a fast-forward of targets (5.3.11)
        return frozenset(f"{one}+{other}" for one in keyids for other in root.roles[Snapshot.type].keyids)
    return frozenset(keyids)


def check_delegation(targets: Targets, path: str) -> None:
    """Refuse a path that any role but the one of `role_of` may list, also the targets role itself.

    So the holder of one key gets nothing into the place of another, whatever mistake a delegation has.
    """
    role = role_of(path)
    if role is None:
        return
    found = [name for name, _ in targets.delegations.get_roles_for_target(path)] if targets.delegations else []
    found += [Targets.type] if path in targets.targets else []
    if any(name != role for name in found):
        others = ", ".join(sorted(set(found) - {role}))
        raise Untrusted(
            f"{path} may be listed by {role} only, and the targets role lets {others} list it: delegate it again"
        )


def issue_time(trusted: Trusted) -> float:
    """Return when the timestamp was signed, by its own statement; 0 = not stated.

    A stolen timestamp key must not set the clock floor so far ahead that nothing is fresh any more: a time at which
    other roles have expired is a lie.
    """
    found = parse_time(trusted[Timestamp.type].unrecognized_fields.get("x-issued"))
    if found is None:
        return 0.0
    for role in (Root.type, Timestamp.type, Snapshot.type, Targets.type):
        if found > trusted[role].expires.timestamp():
            raise Untrusted(
                f"the timestamp says that it was issued at {format_time(found)}, when {role} has expired: sign it again"
            )
    return found
