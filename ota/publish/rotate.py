"""Manages the keys of roles: the first ones (`init`), new ones (`rotate`), new families, and renewed signatures."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tuf.api.metadata import DelegatedRole, Delegations, Root, Signed, Targets

from ota.errors import OtaError, UsageError
from ota.publish.change import (
    MetadataChange,
    MissingSignatures,
    apply,
    check_room,
    copy_payload,
    has_enough_keys,
    keyids_of,
    publish_freshness,
    read_unexpired,
    refuse_second,
    sign_again,
    sign_snapshot,
)
from ota.publish.keys import KeyPlace, Secrets
from ota.publish.repository import RepositoryState, join_names
from ota.publish.roles import (
    ENGINES,
    PRESETS,
    ROLLOUT,
    ROOT,
    SNAPSHOT,
    SYSTEM,
    TARGETS,
    TIMESTAMP,
    TOP,
    RolePolicy,
    checked_name,
    family_role,
    kind_of,
    paths_of,
    with_days,
)
from ota.publish.verify import remaining_life
from ota.publish.workspace import Workspace, create

#: delegated roles that every repository has; each family adds one, and systems of devices another
OTHER_ROLES = (ENGINES, ROLLOUT)


@dataclass(frozen=True, slots=True)
class InitOptions:
    """The options of `init`.

    Attributes:
        system: the repository also has the role `system`, for systems of devices.
        keys: role -> public keys that were made on other machines; other roles get new files here.
        kind: of new key files, `ed25519` or `p256`.
    """

    preset: str
    families: tuple[str, ...]
    keys: dict[str, list[KeyPlace]]
    days: dict[str, float]
    kind: str
    system: bool = False


def start(path: Path, wanted: InitOptions, secrets: Secrets, now: float) -> tuple[Workspace, list[MissingSignatures]]:
    """Create a workspace with its keys, and publish the first metadata.

    Raises:
        UsageError: the directory is taken, or the keys do not suffice for a threshold.
    """
    plans = with_days(PRESETS[wanted.preset], wanted.days)
    families = [checked_name(one, "a family") for one in wanted.families]
    others = (*OTHER_ROLES, *((SYSTEM,) if wanted.system else ()))
    roles = [ROOT, TARGETS, SNAPSHOT, TIMESTAMP, *others, *(family_role(one) for one in families)]
    _check_keys(wanted, roles, plans)
    workspace = create(path, secrets, {kind: plan.days for kind, plan in plans.items()})
    places = {role: _keys_for(workspace, role, wanted, plans[kind_of(role)].keys) for role in roles}
    workspace.save()
    root = Root(consistent_snapshot=True)
    for role in TOP:
        for place in places[role]:
            root.add_key(place.public, role)
        root.roles[role].threshold = plans[role].threshold
    targets = Targets(delegations=Delegations({}, {}))
    for role in roles[len(TOP) :]:
        delegate(targets, role, places[role], plans[kind_of(role)].threshold)
    change = MetadataChange({ROOT: root, TARGETS: targets}, set(roles[len(TOP) :]))
    return workspace, apply(workspace, RepositoryState(), change, now)


def _check_keys(wanted: InitOptions, roles: Sequence[str], plans: dict[str, RolePolicy]) -> None:
    for role, given in wanted.keys.items():
        if role not in roles:
            raise UsageError(f"--public-key names the role {role!r}; this repository has {', '.join(roles)}")
        if role in (SNAPSHOT, TIMESTAMP):
            raise UsageError(f"{role} signs at each publication on this machine: leave its --public-key out")
        if len(given) < plans[kind_of(role)].threshold:
            raise UsageError(
                f"{role} has {len(given)} public keys, and {plans[kind_of(role)].threshold} must sign: "
                "give the others, or choose --preset small"
            )


def _keys_for(workspace: Workspace, role: str, wanted: InitOptions, count: int) -> list[KeyPlace]:
    if role in wanted.keys:
        return [workspace.add(place) for place in wanted.keys[role]]
    return [workspace.new_file_key(f"{role}-{number}", wanted.kind) for number in range(1, count + 1)]


def delegate(targets: Targets, role: str, places: Sequence[KeyPlace], threshold: int) -> None:
    """Delegate targets to a role. For its paths, devices accept no other role."""
    delegations = cast(Delegations, targets.delegations)
    roles = cast("dict[str, DelegatedRole]", delegations.roles)
    roles[role] = DelegatedRole(role, [], threshold, terminating=True, paths=paths_of(role))
    for place in places:
        targets.add_key(place.public, role)


def add_family(
    workspace: Workspace, state: RepositoryState, family: str, places: list[KeyPlace], now: float
) -> list[MissingSignatures]:
    """Add a family of models with its own keys. The keys of targets sign.

    Raises:
        UsageError, OtaError: as `check_family`.
    """
    role = check_family(workspace, state, family, now)
    targets = copy_payload(state, TARGETS)
    delegate(targets, role, places, 1)
    return apply(workspace, state, MetadataChange({TARGETS: targets}, {role}), now)


def check_family(workspace: Workspace, state: RepositoryState, family: str, now: float) -> str:
    """Return the role of a new family.

    Raises:
        UsageError: the name is malformed, or the family is there. OtaError: another change waits.
    """
    role = family_role(checked_name(family, "the family"))
    if role in state.delegated():
        raise UsageError(f"the family {family} already exists: change its keys with 'publish rotate {role}'")
    check_room(workspace, state, [TARGETS], [role], now)
    return role


@dataclass(frozen=True, slots=True)
class Rotation:
    """The keys to remove from a role and to add to it.

    Attributes:
        threshold: how many must sign from now on; 0 = as before.
    """

    role: str
    remove: tuple[str, ...]
    add: tuple[KeyPlace, ...]
    threshold: int = 0


def rotate(
    workspace: Workspace, state: RepositoryState, rotations: Sequence[Rotation], now: float
) -> list[MissingSignatures]:
    """Change the keys of roles in one change. Root signs for its four roles, targets for the others.

    Raises:
        UsageError: too few keys for a threshold. OtaError: as `check_rotation`.
    """
    payloads: dict[str, Any] = {}
    roles = {one.role for one in rotations}
    for rotation in rotations:
        signer = _signer_of(rotation.role)
        payloads.setdefault(signer, copy_payload(state, signer))
        _change_keys(payloads[signer], rotation)
    return apply(workspace, state, MetadataChange(payloads, roles - {ROOT}), now)


def check_rotation(
    workspace: Workspace, state: RepositoryState, roles: Collection[str], elsewhere: bool, now: float
) -> None:
    """Refuse a rotation of roles before keys are made for it.

    Args:
        elsewhere: as in `check_room`.

    Raises:
        OtaError: another change waits.
    """
    check_room(workspace, state, {_signer_of(role) for role in roles}, roles, now, elsewhere=elsewhere)


def _signer_of(role: str) -> str:
    return ROOT if role in TOP else TARGETS


def _change_keys(payload: Root | Targets, rotation: Rotation) -> None:
    role = rotation.role
    for keyid in rotation.remove:
        payload.revoke_key(keyid, role)
    for place in rotation.add:
        payload.add_key(place.public, role)
    found = payload.get_delegated_role(role)
    found.threshold = rotation.threshold or found.threshold
    check_threshold(role, len(found.keyids), found.threshold)


def check_replaced(workspace: Workspace, role: str, keyids: Sequence[str]) -> None:
    """Refuse to replace all keys of a role by key files on this machine, unless all are such files.

    Raises:
        UsageError: others sign for the role too, or a token does. From then on, this machine alone would.
    """
    places = {one: workspace.keys.get(one) for one in keyids}
    others = [
        workspace.key_name(one) for one, place in places.items() if not place or not place.uri.startswith("file:")
    ]
    if others:
        raise UsageError(
            f"{role} has keys that are not files on this machine ({', '.join(others)}), and without flags all keys of "
            f"a role become such files: name those that go and come, --remove {role}=KEY with --add {role}=FILE, "
            f"--new {role}=N, or --pkcs11"
        )


def check_place(role: str, here: int, threshold: int) -> None:
    """Refuse keys of snapshot or timestamp of which too few are on this machine.

    Raises:
        UsageError: no publication could be completed, because these two roles never wait for signatures.
    """
    if role in (SNAPSHOT, TIMESTAMP) and here < threshold:
        raise UsageError(
            f"{role} signs at each publication on this machine, so {threshold} of its keys must be here, and {here} "
            "would be: create keys with --new, or give --pkcs11"
        )


def check_threshold(role: str, keys: int, threshold: int) -> None:
    """Refuse a threshold that the keys of a role cannot meet.

    Raises:
        UsageError: they cannot.
    """
    if not 1 <= threshold <= keys:
        raise UsageError(
            f"{role} would have {keys} keys, and {threshold} must sign: "
            "add keys with --add or --new, or give --threshold"
        )


def check_role(state: RepositoryState, role: str) -> None:
    """Refuse a role that the repository does not have.

    Raises:
        UsageError: it has none of this name.
    """
    if role not in TOP and role not in state.delegated():
        raise UsageError(f"the repository has no role {role}: it has {', '.join((*TOP, *state.delegated()))}")


def key_of(workspace: Workspace, state: RepositoryState, role: str, named: str) -> str:
    """Return the ID of a role's key, by its name or the start of its ID.

    Raises:
        UsageError: the role has no such key.
    """
    _, keyids = keyids_of(state, role)
    found = [one for one in keyids if workspace.key_name(one) == named or (len(named) >= 8 and one.startswith(named))]
    if len(found) != 1:
        names = ", ".join(workspace.key_name(one) for one in keyids)
        raise UsageError(f"{role} has no key {named!r}: it has {names}")
    return found[0]


def renew(workspace: Workspace, state: RepositoryState, roles: Sequence[str], now: float) -> list[MissingSignatures]:
    """Sign roles again with a new expiry. Their content stays the same.

    Raises:
        UsageError: there is no such role.
    """
    for role in roles:
        check_role(state, role)
    refuse_second(workspace, roles, now)
    payloads: dict[str, Signed] = {role: copy_payload(state, role) for role in roles if role in (ROOT, TARGETS)}
    return apply(workspace, state, MetadataChange(payloads, set(roles) - set(payloads)), now)


@dataclass(frozen=True, slots=True)
class RefreshResult:
    """The result of `refresh`: the signed roles, those to sign soon, those that have expired, and why others failed."""

    signed: list[str]
    warnings: list[str]
    expired: list[str]
    failures: list[str]


def refresh(workspace: Workspace, state: RepositoryState, also: Sequence[str], now: float) -> RefreshResult:
    """Sign timestamp. If half of their life is over, also snapshot, rollout (if its keys are here), and the roles in
    `also` without a waiting change. Each role is signed alone: where one fails, or has its keys on other machines, the
    others do not wait for it, and devices still get a new timestamp. Where snapshot fails, they get that alone.

    Raises:
        KeyProblem: the key of timestamp is not here.
    """
    for role in also:
        check_role(state, role)
    pending = read_unexpired(workspace, now)
    busy = set(pending.roles) if pending else set()  # roles that only need a new signature may get one before, too
    old = [role for role in (ROOT, TARGETS, *state.delegated()) if _is_past_half(workspace, state, role, now)]
    renewed = [
        role
        for role in old
        if role not in busy and (role in also or (role == ROLLOUT and has_enough_keys(workspace, state, role)))
    ]
    done = RefreshResult([], [], [], [])
    for role in old:
        if role not in renewed:
            _report(done, state, role, now, f"sign it again with 'edge-ota publish renew {role}'", done.warnings)
    here = [role for role in renewed if has_enough_keys(workspace, state, role)]
    elsewhere = [role for role in renewed if role not in here]
    dead = {role for role in (ROOT, TARGETS) if _life(state, role, now) <= 0}
    after = state
    for role in here:
        try:
            after = sign_again(workspace, state, after, role, now)
            done.signed.append(role)
        except OtaError as error:
            _report(done, state, role, now, f"it was not signed again: {error.message}", done.failures)
    if not dead <= set(done.signed):  # devices take nothing under an expired root or targets
        done.signed.clear()
        after = state
    if done.signed or _is_past_half(workspace, state, SNAPSHOT, now):
        done.signed.append(SNAPSHOT)
        try:
            after = sign_snapshot(workspace, state, after, now)
        except OtaError as error:  # the published one may last for days, and devices still get a new timestamp of it
            for role in reversed(done.signed):
                _report(done, state, role, now, f"it was not signed again: {error.message}", done.failures)
            done.signed.clear()
            after = state
    state = publish_freshness(workspace, state, after, now)
    done.signed.append(TIMESTAMP)
    if elsewhere and dead <= set(renewed):
        try:
            waiting = join_names([one.role for one in renew(workspace, state, elsewhere, now)])
            done.warnings.append(f"{waiting} waits for signatures of keys that are not here: 'publish request'")
        except OtaError as error:
            done.failures.append(error.message)
    return done


def _report(
    done: RefreshResult, state: RepositoryState, role: str, now: float, text: str, unexpired: list[str]
) -> None:
    """Add a sentence about a role to those that have expired, or to `unexpired`."""
    left = _life(state, role, now)
    if left > 0:
        unexpired.append(f"{role} expires in {left:.0f} days: {text}")
    else:
        done.expired.append(f"{role} expired {-left:.0f} days ago: {text}")


def _life(state: RepositoryState, role: str, now: float) -> float:
    """Return the days that the signature of a role still lasts."""
    return remaining_life(state.newest[role].signed, 1, now)


def _is_past_half(workspace: Workspace, state: RepositoryState, role: str, now: float) -> bool:
    return remaining_life(state.newest[role].signed, workspace.days_of(role), now) < 0.5
