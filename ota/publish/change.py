"""A change of metadata: new payloads are signed by the keys on this machine, and published when every threshold is met.

If a threshold needs keys of other machines, the change waits in `pending.json` for `ceremony`. Snapshot and timestamp
are made when the change is published, and so are roles that only need a new signature.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, NoReturn

from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, MetaFile, Root, Signed, Snapshot, Targets, Timestamp

from ota import files
from ota.errors import Expired, OtaError, Untrusted
from ota.publish.keys import KeyProblem
from ota.publish.repository import RepositoryState, join_names, put_metadata, put_targets, write_state
from ota.publish.roles import ROOT, SNAPSHOT, TARGETS, TIMESTAMP, TOP
from ota.publish.workspace import Workspace
from ota.strict_json import parse, to_canonical_json
from ota.trust.clock_floor import DAY
from ota.trust.roots import MOST_METADATA, parse_time

SCHEMA = 1
MOST_PENDING = 64 * 1024 * 1024
#: a publication that is ahead by so much less than the life of a timestamp makes no later one expired for devices
_MARGIN_DAYS = 0.25
#: room for the signatures of a role: those of 50 RSA keys of 4096 bits
_SIGNATURES_BYTES = 64 * 1024


@dataclass(slots=True)
class MetadataChange:
    """A change of metadata before its signatures.

    Attributes:
        roles: role -> its new payload. `apply` sets version and expiry.
        resign: roles that need a new signature only, for new keys or a longer life.
        documents: target path -> bytes.
    """

    roles: dict[str, Signed] = field(default_factory=dict)
    resign: set[str] = field(default_factory=set)
    documents: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MissingSignatures:
    """The signatures that a role of a waiting change lacks: their number, and the keys that may sign."""

    role: str
    missing: int
    keyids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PendingChange:
    """A change that waits for signatures."""

    roles: dict[str, Metadata[Any]]
    resign: frozenset[str]
    documents: dict[str, bytes]


def apply(workspace: Workspace, state: RepositoryState, change: MetadataChange, now: float) -> list[MissingSignatures]:
    """Sign a change and publish it. Return the missing signatures; [] = it is published.

    Raises:
        KeyProblem: a key that must be here is not, or its passphrase is wrong.
        Expired: root or targets are too old, so no device would take the change.
        OtaError: a role is longer than devices accept.
    """
    fresh: dict[str, Metadata[Any]] = {}
    for role, payload in change.roles.items():
        payload.version = state.version(role) + 1
        payload.expires = _expiry(workspace, role, now)
        fresh[role] = Metadata(payload)
    other = read_unexpired(workspace, now)
    return settle(workspace, state, PendingChange(fresh, frozenset(change.resign), change.documents), now, other)


def settle(
    workspace: Workspace, state: RepositoryState, pending: PendingChange, now: float, other: PendingChange | None = None
) -> list[MissingSignatures]:
    """Sign with the keys on this machine. Publish the change, or store it as the waiting one.

    Args:
        other: a change that waits already and has not expired; there is room for one.

    Raises:
        OtaError: this one would have to wait, too. KeyProblem: as `apply`.
        Expired: as `apply`, or a role of the change has waited for too long.
    """
    check_unexpired(state, pending, now)
    after = state.with_roles(pending.roles)
    roles = dict(pending.roles)
    for role in sorted(pending.resign - set(roles)):
        if has_enough_keys(workspace, after, role) or role in (SNAPSHOT, TIMESTAMP):
            continue
        roles[role] = _again(workspace, state, role, now)
    waiting = []
    for role in roles:
        sign(workspace, state, after, role, roles[role])
        if (missing := find_missing_signatures(state, after, role, roles[role])) is not None:
            waiting.append(missing)
    signed = PendingChange(roles, pending.resign - set(roles), pending.documents)
    if not waiting:
        _publish(workspace, state, signed, now)
        return []
    if other is not None:
        _refuse_second(other)
    _set_expired_aside(workspace, now)
    write_pending(workspace, signed)
    return waiting


def check_unexpired(state: RepositoryState, pending: PendingChange, now: float) -> None:
    """Refuse a change of which a role expired while it waited.

    Raises:
        Expired: one has.
    """
    if expired := _find_expired(pending.roles, now):
        role, day = expired
        again = "make the change" if state.roots else "begin with 'edge-ota publish init' in a new directory"
        text = f"{role} expired on {day}, before every key had signed: correct this machine's clock, or {again} again"
        raise Expired(text)


def _publish(workspace: Workspace, state: RepositoryState, pending: PendingChange, now: float) -> None:
    after = state.with_roles(pending.roles)
    for role in sorted(pending.resign - {SNAPSHOT, TIMESTAMP}):
        after = sign_again(workspace, state, after, role, now)
    if expired := _find_expired({role: after.newest[role] for role in (ROOT, TARGETS)}, now):
        role, day = expired
        raise Expired(
            f"{role} expired on {day}, so devices would refuse this: sign it again first "
            f"('edge-ota publish renew {role}')"
        )
    put_targets(workspace.repository, pending.documents)
    publish_freshness(workspace, state, sign_snapshot(workspace, state, after, now), now)


def sign_snapshot(workspace: Workspace, before: RepositoryState, after: RepositoryState, now: float) -> RepositoryState:
    """Return a state with a new snapshot of its roles.

    Raises:
        KeyProblem: the key of snapshot is not on this machine, or cannot be opened.
    """
    meta = {f"{role}.json": _meta(after, role) for role in (TARGETS, *after.delegated())}
    payload = Snapshot(before.version(SNAPSHOT) + 1, expires=_expiry(workspace, SNAPSHOT, now), meta=meta)
    after = after.with_roles({SNAPSHOT: Metadata(payload)})
    _sign_here(workspace, before, after, SNAPSHOT)
    return after


def publish_freshness(
    workspace: Workspace, before: RepositoryState, after: RepositoryState, now: float
) -> RepositoryState:
    """Sign a new timestamp of the snapshot, and publish. Return the published state.

    Raises:
        KeyProblem: the key of timestamp is not on this machine, or cannot be opened.
    """
    stamp = Timestamp(
        before.version(TIMESTAMP) + 1,
        expires=_expiry(workspace, TIMESTAMP, now),
        snapshot_meta=_meta(after, SNAPSHOT),
        unrecognized_fields={"x-issued": _time(now).strftime("%Y-%m-%dT%H:%M:%SZ")},
    )
    after = after.with_roles({TIMESTAMP: Metadata(stamp)})
    _sign_here(workspace, before, after, TIMESTAMP)
    write_state(workspace.path, after)
    put_metadata(workspace.repository, after)
    return after


def check_clock(workspace: Workspace, state: RepositoryState, now: float, *, synchronized: bool) -> None:
    """Refuse to publish by a clock that may be wrong, and is far from the time of the last publication.

    Devices take the time of a publication for certain. After one from the future they refuse others as expired, until
    that time has come, or the timestamp has new keys. Less than the life of a timestamp does no harm, so a cron that
    keeps the timestamp alive is not refused, nor a publication after a clock that was ahead by as much is corrected.

    Args:
        synchronized: a time server has confirmed the clock.

    Raises:
        OtaError: the clock is behind the last publication, or ahead of it and not confirmed.
    """
    issued = parse_time(state.roles[TIMESTAMP].signed.unrecognized_fields.get("x-issued"))
    ahead = (now - (now if issued is None else issued)) / DAY
    days = workspace.days_of(TIMESTAMP)
    said = f"the clock of this machine says {_time(now):%Y-%m-%d %H:%M} UTC, {abs(ahead):.1f} days"
    limit = max(days - _MARGIN_DAYS, days / 2)
    if ahead > limit and not synchronized:
        raise OtaError(
            f"{said} after the last publication, and no time server has confirmed it. If it is ahead, devices refuse "
            "later publications as expired: compare it with a watch, and correct it, or repeat the command with "
            "--clock-is-right"
        )
    if -ahead > limit:
        raise OtaError(
            f"{said} before the last publication: one of the two times is wrong. Correct the clock. If it is right, "
            "devices that have fetched the last publication refuse others as expired until its time has come, and "
            "'rotate timestamp --clock-is-right' frees them; other commands publish with --clock-is-right, too"
        )


def _meta(state: RepositoryState, role: str) -> MetaFile:
    """Return version, length, and hash of a role's file, which pin its content."""
    return MetaFile.from_data(state.version(role), state.roles[role].to_bytes(), ["sha256"])


def _again(workspace: Workspace, state: RepositoryState, role: str, now: float) -> Metadata[Any]:
    """Return the next version of a role with the same payload; an empty payload for a new role."""
    payload = copy_payload(state, role) if role in state.newest else Targets()
    payload.version = state.version(role) + 1
    payload.expires = _expiry(workspace, role, now)
    return Metadata(payload)


def delegator_of(state: RepositoryState, role: str) -> Root | Targets:
    """Return the payload that names the keys of a role."""
    return state.root if role in TOP else state.targets


def keyids_of(state: RepositoryState, role: str) -> tuple[int, list[str]]:
    """Return threshold and keys of a role; 0 and [] if the state does not have the role."""
    try:
        found = delegator_of(state, role).get_delegated_role(role)
    except (ValueError, IndexError, KeyError):
        return 0, []
    return found.threshold, list(found.keyids)


def has_enough_keys(workspace: Workspace, state: RepositoryState, role: str) -> bool:
    """Return whether this machine has the keys for a role's threshold."""
    threshold, keyids = keyids_of(state, role)
    return sum(is_here(workspace, keyid) for keyid in keyids) >= threshold > 0


def sign(
    workspace: Workspace, before: RepositoryState, after: RepositoryState, role: str, metadata: Metadata[Any]
) -> None:
    """Add the missing signatures of keys on this machine, also with the old keys if the keys change.

    Raises:
        OtaError: the role is longer than devices accept; nothing is signed.
        KeyProblem: a key cannot be opened, and without it the threshold is not met.
    """
    _check_length(role, metadata)
    for state in (after, before):
        threshold, keyids = keyids_of(state, role)
        problem: KeyProblem | None = None
        have = sum(keyid in metadata.signatures for keyid in keyids)
        here = [one for one in keyids if one not in metadata.signatures and is_here(workspace, one)]
        for keyid in here:
            if have >= threshold:
                break
            try:
                metadata.signatures[keyid] = workspace.signer(keyid).sign(metadata.signed_bytes)
                have += 1
            except KeyProblem as error:
                problem = problem or error
        if problem is not None and have < threshold and state is after:
            raise problem


def _check_length(role: str, metadata: Metadata[Any]) -> None:
    most = MOST_METADATA - _SIGNATURES_BYTES
    if (length := len(metadata.to_bytes())) > most:
        raise OtaError(
            f"the metadata of {role} has {length} bytes, and devices accept {most}: remove devices that are gone "
            "('device remove'), or publish a part of the fleets or families in another repository"
        )


def is_here(workspace: Workspace, keyid: str) -> bool:
    """Return whether a key is on this machine: a file, or on a token."""
    return keyid in workspace.keys and bool(workspace.keys[keyid].uri)


def find_missing_signatures(
    before: RepositoryState, after: RepositoryState, role: str, metadata: Metadata[Any]
) -> MissingSignatures | None:
    """Return the signatures that a role lacks; None = its threshold is met."""
    states = [after, before] if role == ROOT and before.roots else [after]
    for state in states:
        delegator = delegator_of(state, role)
        result = delegator.get_verification_result(role, metadata.signed_bytes, metadata.signatures)
        if not result:
            return MissingSignatures(role, result.missing, tuple(sorted(result.unsigned)))
    return None


def sign_again(
    workspace: Workspace, before: RepositoryState, after: RepositoryState, role: str, now: float
) -> RepositoryState:
    """Return `after` with the next version of a role: the payload of `before`, signed by keys on this machine.

    Raises:
        KeyProblem: they are not here, or cannot be opened.
    """
    after = after.with_roles({role: _again(workspace, before, role, now)})
    _sign_here(workspace, before, after, role)
    return after


def _sign_here(workspace: Workspace, before: RepositoryState, after: RepositoryState, role: str) -> None:
    """Sign a role whose keys must be on this machine.

    Raises:
        KeyProblem: they are not.
    """
    sign(workspace, before, after, role, after.newest[role])
    if (waiting := find_missing_signatures(before, after, role, after.newest[role])) is not None:
        names = ", ".join(workspace.key_name(keyid) for keyid in waiting.keyids)
        raise KeyProblem(
            f"{role} needs {waiting.missing} more of the keys {names}, and none of these is on this machine"
        )


def _find_expired(roles: Mapping[str, Metadata[Any]], now: float) -> tuple[str, str] | None:
    """Return a role that has expired, and the day on which it did; None = none has."""
    for role, metadata in roles.items():
        if metadata.signed.is_expired(_time(now)):
            return role, f"{metadata.signed.expires:%Y-%m-%d}"
    return None


def write_pending(workspace: Workspace, pending: PendingChange) -> None:
    """Store a change as the waiting one."""
    value = {
        "schema": SCHEMA,
        "roles": {role: one.to_dict() for role, one in pending.roles.items()},
        "resign": sorted(pending.resign),
        "documents": {target: data.decode() for target, data in pending.documents.items()},
    }
    files.write_durably(workspace.pending, to_canonical_json(value), 0o600)


def read_pending(workspace: Workspace) -> PendingChange | None:
    """Return the waiting change; None = none.

    Raises:
        Untrusted: its file is damaged.
    """
    data = files.read(workspace.pending, MOST_PENDING)
    if data is None:
        return None
    try:
        found = parse(data, str(workspace.pending), MOST_PENDING)
        roles = {role: Metadata.from_dict(one) for role, one in found["roles"].items()}
        documents = {target: text.encode() for target, text in found["documents"].items()}
        return PendingChange(roles, frozenset(found["resign"]), documents)
    except (Untrusted, KeyError, TypeError, ValueError, AttributeError, RepositoryError) as error:
        raise Untrusted(f"{workspace.pending} is damaged ({error}): drop it with 'request --discard'") from None


def read_unexpired(workspace: Workspace, now: float) -> PendingChange | None:
    """Return the waiting change; None = none, or a role of it has expired, so that it makes way for another one.

    Raises:
        Untrusted: its file is damaged.
    """
    pending = read_pending(workspace)
    return None if pending is None or _find_expired(pending.roles, now) else pending


def _set_expired_aside(workspace: Workspace, now: float) -> None:
    """Rename a waiting change that has expired. Its signatures count again if the clock was wrong."""
    pending = read_pending(workspace)
    if pending is not None and _find_expired(pending.roles, now):
        files.rename(workspace.pending, workspace.expired)


def remove_published(workspace: Workspace, state: RepositoryState) -> str:
    """Remove the waiting change if it is published. Return a note about it; "" = none, or it waits.

    Raises:
        Untrusted: its file is damaged.
    """
    pending = read_pending(workspace)
    if pending is None:
        return ""
    known = {role: one.signed_bytes for role, one in state.newest.items()}
    if any(known.get(role) != one.signed_bytes for role, one in pending.roles.items()):
        return ""
    files.unlink(workspace.pending)
    return f"the change of {join_names(sorted(pending.roles))} that waited is published; the command was interrupted"


def refuse_second(workspace: Workspace, roles: Iterable[str], now: float) -> None:
    """Refuse a change of roles for which another change waits that has not expired.

    Raises:
        OtaError: one does.
    """
    pending = read_unexpired(workspace, now)
    if pending is not None and set(roles) & set(pending.roles):
        _refuse_second(pending)


def check_room(
    workspace: Workspace,
    state: RepositoryState,
    signers: Iterable[str],
    roles: Iterable[str],
    now: float,
    *,
    elsewhere: bool = False,
) -> None:
    """Refuse a change before keys are made for it, if it could be neither published nor stored as the waiting one.

    Args:
        signers: of root and targets, those whose keys sign it. roles: that change.
        elsewhere: the new keys of a role on this machine will be fewer than must sign for it.

    Raises:
        OtaError: another change of them waits, or another one waits and this one would have to, too.
    """
    refuse_second(workspace, [*signers, *roles], now)
    pending = read_unexpired(workspace, now)
    if pending is not None and (elsewhere or not all(has_enough_keys(workspace, state, one) for one in signers)):
        _refuse_second(pending)


def _refuse_second(pending: PendingChange) -> NoReturn:
    raise OtaError(
        f"a change of {join_names(sorted(pending.roles))} waits for signatures already: finish it with 'collect', "
        "or drop it with 'request --discard'"
    )


def copy_payload(state: RepositoryState, role: str) -> Any:
    """Return a copy of a role's payload for editing."""
    return copy.deepcopy(state.newest[role].signed)


def _expiry(workspace: Workspace, role: str, now: float) -> datetime:
    return (_time(now) + timedelta(days=workspace.days_of(role))).replace(microsecond=0)


def _time(now: float) -> datetime:
    return datetime.fromtimestamp(now, tz=timezone.utc)
