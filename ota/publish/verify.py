"""Checks a repository on disk: signatures, expiry, documents, blobs, and the releases that each fleet will get."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, MetaFile, Root, Signed

from ota import files
from ota.decide.rollout import choosable_releases
from ota.decide.variant import find_faults
from ota.documents.device import DeviceDocument, read_device
from ota.documents.manifest import FileEntry, Manifest
from ota.documents.names import blob_path, code_target, floor_target, manifest_target, rollout_target
from ota.documents.rollout import BundleRollout, Rollout, read_rollout
from ota.documents.system import SystemDocument, version_of_target
from ota.documents.targets import has_document, read_document
from ota.errors import OtaError, RolledBack, StoreError, Untrusted, UsageError
from ota.fetch.chunks import Piece, pieces_of
from ota.publish.change import find_missing_signatures
from ota.publish.release import Bundle, code_of, hash_chunks
from ota.publish.repository import (
    RepositoryState,
    read_target,
    stored_target,
)
from ota.publish.roles import (
    ENGINES,
    FAMILY_PREFIX,
    ROLLOUT,
    ROOT,
    SNAPSHOT,
    SYSTEM,
    TARGETS,
    TIMESTAMP,
    family_role,
    paths_of,
)
from ota.publish.rollouts import describe_previous, find_unserved
from ota.publish.workspace import Workspace
from ota.trust.roots import MOST_METADATA


@dataclass(slots=True)
class Findings:
    """The findings of a check.

    Attributes:
        problems: a sentence for each; devices refuse the repository, or a part of it.
        warnings: what will be a problem soon.
        facts: what devices will see.
        manifests, systems: target path -> document. Two families may have a bundle of one name.
        floors: family and bundle -> the lowest release counter.
    """

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    systems: dict[str, SystemDocument] = field(default_factory=dict)
    rollouts: dict[str, Rollout] = field(default_factory=dict)
    floors: dict[tuple[str, str], int] = field(default_factory=dict)
    devices: dict[str, DeviceDocument] = field(default_factory=dict)

    def title_of(self, manifest: Manifest) -> str:
        """Return the name of a release in messages, with its family if another family has a bundle of this name."""
        title = f"{manifest.bundle} {manifest.release}"
        families = {one.family for one in self.manifests.values() if one.bundle == manifest.bundle}
        return f"{title} of {manifest.family}" if len(families) > 1 else title


def load(repository: Path, root: bytes) -> RepositoryState:
    """Return the metadata of a repository, verified from a trusted root. Expiry is not checked.

    Raises:
        StoreError: a file is missing. Untrusted: a file is not what the keys signed.
    """
    state = RepositoryState([parse_metadata(root, "the root that is trusted")])
    _load_roots(repository, state)
    _load(repository, state, TIMESTAMP, None)
    _load(repository, state, SNAPSHOT, state.roles[TIMESTAMP].signed.snapshot_meta)
    _load(repository, state, TARGETS, _meta_of(state, TARGETS))
    for role in state.delegated():
        if _metadata_file(repository, role, _meta_of(state, role)).exists():
            _load(repository, state, role, _meta_of(state, role))
    return state


def _load_roots(repository: Path, state: RepositoryState) -> None:
    """Append the roots that follow the newest one of a state."""
    while (
        data := files.read(repository / "metadata" / f"{state.root.version + 1}.root.json", MOST_METADATA)
    ) is not None:
        fresh: Metadata[Root] = parse_metadata(data, f"{state.root.version + 1}.root.json")
        after = RepositoryState([*state.roots, fresh])
        if (
            fresh.signed.version != state.root.version + 1
            or find_missing_signatures(state, after, ROOT, fresh) is not None
        ):
            raise Untrusted(f"{state.root.version + 1}.root.json is not signed by the keys of root: restore it")
        state.roots.append(fresh)


def _meta_of(state: RepositoryState, role: str) -> MetaFile:
    """Return version, length, and hash of a role's file in the snapshot."""
    found: MetaFile | None = state.roles[SNAPSHOT].signed.meta.get(f"{role}.json")
    if found is None:
        raise Untrusted(f"the snapshot does not name {role}: publish it again")
    return found


def _metadata_file(repository: Path, role: str, meta: MetaFile | None) -> Path:
    return repository / "metadata" / (f"{role}.json" if meta is None else f"{meta.version}.{role}.json")


def _load(repository: Path, state: RepositoryState, role: str, meta: MetaFile | None) -> None:
    path = _metadata_file(repository, role, meta)
    data = files.read(path, MOST_METADATA)
    if data is None:
        raise StoreError(f"{path} does not exist: publish it again, or copy it again")
    metadata = parse_metadata(data, path.name)
    if find_missing_signatures(state, state, role, metadata) is not None:
        raise Untrusted(f"{path.name} is not signed by the keys of {role}: publish it again, or copy it again")
    if meta is not None and metadata.signed.version != meta.version:
        raise Untrusted(f"{path.name} has version {metadata.signed.version}: publish it again, or copy it again")
    if meta is not None:
        _check_bytes(meta, data, path.name)
    state.roles[role] = metadata


def _check_bytes(meta: MetaFile, data: bytes, name: str) -> None:
    """Refuse a file whose length or hash differs from that in timestamp or snapshot, as devices do."""
    try:
        meta.verify_length_and_hashes(data)
    except RepositoryError:
        raise Untrusted(
            f"{name} was changed after it was published, though its content is signed: copy it again without a "
            "conversion of its text"
        ) from None


def parse_metadata(data: bytes, name: str) -> Metadata[Any]:
    """Return the metadata in a file. Its signatures are not checked.

    Raises:
        Untrusted: it is damaged.
    """
    try:
        return Metadata.from_bytes(data)
    except (RepositoryError, ValueError) as error:
        raise Untrusted(f"{name} is damaged ({error}): publish it again, or copy it again") from None


def check(repository: Path, state: RepositoryState, now: float, fleet: str = "") -> Findings:
    """Check documents, blobs, and expiry.

    Args:
        fleet: check only what this fleet needs, as in a copy for USB; "" = at everything.
    """
    found = Findings()
    for role, payload in _payloads(state):
        _check_life(role, payload, now, found)
    for role in state.delegated():
        if sorted(getattr(state.targets.get_delegated_role(role), "paths", None) or []) != sorted(paths_of(role)):
            found.problems.append(f"{role} may sign other paths than {', '.join(paths_of(role))}")
    if missing := _find_missing_roles(repository, state, fleet):
        found.problems += missing
        return found
    wanted = find_needed_targets(repository, state, fleet) if fleet else None
    for role in state.delegated():
        for target in sorted(state.targets_of(role) if role in state.roles else ()):
            if wanted is None or target in wanted:
                with _noted(found):
                    _check_document(repository, state, role, target, found)
    good = _check_blobs(repository, found)
    for manifest in found.manifests.values():
        found.warnings += [f"{found.title_of(manifest)}: {one}" for one in find_faults(manifest)]
        if all(one.sha256 in good for _, one in manifest.every_file()):
            with _noted(found):
                _check_code(repository, state, manifest, found.title_of(manifest))
    for rollout in found.rollouts.values():
        found.facts += _check_rollout(rollout, found, now)
    return found


def _find_missing_roles(repository: Path, state: RepositoryState, fleet: str) -> list[str]:
    """Return a problem for each delegated role whose metadata is missing. A fleet needs no families but its own."""
    missing = [role for role in state.delegated() if role not in state.roles]
    if fleet:
        models = _read_rollout(repository, state, fleet).models.values() if ROLLOUT in state.roles else ()
        needed = {family_role(wish.family) for wish in models}
        missing = [role for role in missing if role in needed or not role.startswith(FAMILY_PREFIX)]
    return [
        f"{_metadata_file(repository, role, _meta_of(state, role))} does not exist: publish it again, or copy it again"
        + (" (check a copy for one fleet with --fleet)" if role.startswith(FAMILY_PREFIX) and not fleet else "")
        for role in missing
    ]


@contextlib.contextmanager
def _noted(found: Findings) -> Iterator[None]:
    """Turn an error into a problem, so that the check continues."""
    try:
        yield
    except OtaError as error:
        found.problems.append(error.message)


def _payloads(state: RepositoryState) -> Iterator[tuple[str, Signed]]:
    yield ROOT, state.root
    for role in (TARGETS, *state.delegated(), SNAPSHOT, TIMESTAMP):
        if role in state.roles:
            yield role, state.roles[role].signed


def remaining_life(payload: Signed, days: float, now: float) -> float:
    """Return the remaining share of a signature's life."""
    left = (payload.expires - datetime.fromtimestamp(now, tz=timezone.utc)) / timedelta(days=1)
    return left / days


def _check_life(role: str, payload: Signed, now: float, found: Findings) -> None:
    left = remaining_life(payload, 1, now)
    when = f"{payload.expires:%Y-%m-%d %H:%M} UTC"
    found.facts.append(f"{role}: version {payload.version}, valid until {when} ({left:.1f} days)")
    fix = "'publish refresh'" if role in (SNAPSHOT, TIMESTAMP) else f"'publish renew {role}'"
    if left <= 0:
        found.problems.append(f"{role} expired on {when}: devices stop updating; sign it again with {fix}")
    elif left < (1 if role in (SNAPSHOT, TIMESTAMP) else 7):
        found.warnings.append(f"{role} expires on {when}: sign it again with {fix}")


def _check_document(repository: Path, state: RepositoryState, role: str, target: str, found: Findings) -> None:
    if not has_document(target):
        return
    document = read_document(target, read_target(repository, target, state.targets_of(role)[target]))
    if isinstance(document, DeviceDocument):
        found.devices[document.device] = document
    elif isinstance(document, Rollout):
        found.rollouts[document.fleet] = document
    elif isinstance(document, SystemDocument):
        found.systems[target] = document
    elif isinstance(document, Manifest):
        found.manifests[target] = document
    else:
        found.floors.update({(target.split("/")[1], bundle): lowest for bundle, lowest in document.items()})


def _check_blobs(repository: Path, found: Findings) -> set[str]:
    """Return the SHA-256 of the files whose blobs are whole. The others are problems."""
    good: set[str] = set()
    for what, entry in _every_file(found):
        with _noted(found):
            for piece in pieces_of(entry):
                if piece.sha256 not in good:
                    _check_blob(repository, piece, what)
                    good.add(piece.sha256)
            if entry.chunks and entry.sha256 not in good and hash_chunks(repository, entry) != entry.sha256:
                raise Untrusted(f"{what}: its chunks do not make the file: withdraw the release")
            good.add(entry.sha256)
    return good


def _every_file(found: Findings) -> Iterator[tuple[str, FileEntry]]:
    """Yield the files of all releases and systems, each with its name."""
    for manifest in found.manifests.values():
        title = found.title_of(manifest)
        yield from ((f"{title}: {model}/{entry.path}", entry) for model, entry in manifest.every_file())
    for system in found.systems.values():
        yield from ((f"{system.title}: {one.path}", one) for one in system.files.values())


def _check_code(repository: Path, state: RepositoryState, manifest: Manifest, title: str) -> None:
    for sha256, told in sorted(code_of(Bundle(repository, manifest, b"")).items()):
        if code_target(manifest.family, sha256) not in state.targets_of(ENGINES):
            raise Untrusted(f"{title}: {told} runs as code, and engines does not approve it")


def _check_blob(repository: Path, piece: Piece, what: str) -> None:
    path = repository / blob_path(piece.sha256)
    if not path.is_file():
        raise StoreError(f"{what}: the blob {piece.sha256} does not exist: copy it from the bundle")
    if files.sha256_of(path) != (piece.sha256, piece.size):
        raise Untrusted(f"{what}: the blob {piece.sha256} is damaged: remove it, and copy it from the bundle")


def _check_rollout(rollout: Rollout, found: Findings, now: float) -> Iterator[str]:
    """Yield the releases of a fleet. Record releases that devices would refuse; for a fleet without devices, and for
    releases before, as a warning.
    """
    devices = [one for one in found.devices.values() if one.fleet == rollout.fleet]
    count, rings = len(devices), sorted({one.ring for one in devices})
    yield f"fleet {rollout.fleet}: serial {rollout.serial}, {count} devices" + (
        "" if rollout.wishes() else ", no releases"
    )
    for wish in rollout.wishes().values():
        steps = " ".join(f"{one.ring}={one.percent:g}%" for one in wish.steps)
        yield f"  {wish.bundle}: {wish.want} for {steps or 'no ring'}" + (" (halted)" if wish.paused else "")
        wanted = {wish.want, *wish.pin.values()}
        for release in sorted(wanted):
            if problem := _refused(wish, release, "is wanted", found):
                (found.problems if count else found.warnings).append(f"fleet {rollout.fleet}: {problem}")
        for release in sorted(choosable_releases(wish, rings) - wanted - wish.deny):
            if problem := _refused(wish, release, "is a release before", found):
                found.warnings.append(
                    f"fleet {rollout.fleet}: {problem}: devices that get it in place of {wish.want} refuse it"
                )
        if wish.want in wish.deny:
            found.warnings.append(
                f"fleet {rollout.fleet}: {wish.bundle} {wish.want} is wanted, and denied; the releases before: "
                + describe_previous(wish, rings)
            )
        elif wish.deny and (unserved := find_unserved(wish, devices, max(wish.deny), now)):
            found.warnings.append(
                f"fleet {rollout.fleet}: {len(unserved)} of {count} devices serve no release of {wish.bundle} if they "
                f"run a denied one ({', '.join(map(str, sorted(wish.deny)))}): let them have {wish.want} with "
                "'rollout step', or start another release"
            )


def _refused(wish: BundleRollout, release: int, use: str, found: Findings) -> str:
    """Return that devices would refuse a release, and why, such as `det 17 is wanted, and below the floor`; "" = no."""
    if wish.bundle == SYSTEM:
        known = {(one.product, one.version) for one in found.systems.values()}
        return "" if (wish.family, release) in known else f"{wish.family} {release} {use}, and not published"
    manifest = found.manifests.get(manifest_target(wish.family, wish.bundle, release))
    if manifest is None:
        return f"{wish.bundle} {release} of {wish.family} {use}, and not published"
    if manifest.counter < found.floors.get((wish.family, wish.bundle), 0):
        return f"{found.title_of(manifest)} {use}, and below the floor"
    return ""


def find_needed_targets(repository: Path, state: RepositoryState, fleet: str) -> set[str]:
    """Return the documents that the devices of a fleet read: rollout, devices, floors, and manifests.

    Raises:
        UsageError: the fleet has no rollout document. OtaError: a document cannot be read.
    """
    listed = state.targets_of(ROLLOUT)
    rollout = _read_rollout(repository, state, fleet)
    found, rings = {rollout_target(fleet)}, set()
    for one in listed:
        # a copy for one fleet lacks the devices of the others
        if one.startswith("devices/") and (repository / stored_target(one, listed[one].hashes["sha256"])).exists():
            device = one[8:-5]
            document = read_device(read_target(repository, one, listed[one]), device)
            if document.fleet == fleet:
                found.add(one)
                rings.add(document.ring)
    found |= _needed_systems(state, rollout.system, rings)
    for wish in rollout.models.values():
        targets = {manifest_target(wish.family, wish.bundle, one) for one in choosable_releases(wish, rings)}
        targets.add(floor_target(wish.family))
        found |= targets & state.targets_of(family_role(wish.family)).keys()
    return found


def _read_rollout(repository: Path, state: RepositoryState, fleet: str) -> Rollout:
    listed = state.targets_of(ROLLOUT)
    target = rollout_target(fleet)
    if target not in listed:
        known = ", ".join(sorted(one[8:-5] for one in listed if one.startswith("rollout/"))) or "none"
        raise UsageError(f"there is no fleet {fleet}: there is {known}")
    return read_rollout(read_target(repository, target, listed[target]), fleet)


def _needed_systems(state: RepositoryState, wish: BundleRollout | None, rings: Set[str]) -> set[str]:
    """Return the documents of the systems that rings of a fleet may run, for all profiles and processors."""
    if wish is None or SYSTEM not in state.roles:
        return set()
    versions = choosable_releases(wish, rings)
    return {
        one
        for one in state.targets_of(SYSTEM)
        if one.startswith(f"system/{wish.family}/") and version_of_target(one) in versions
    }


def compare(state: RepositoryState, known: RepositoryState) -> list[str]:
    """Return the differences between the files and the publisher's state."""
    problems = []
    if [one.to_bytes() for one in state.roots] != [one.to_bytes() for one in known.roots]:
        problems.append("the root files are not those that were published: restore the repository from a backup")
    for role in known.roles:
        if role not in state.roles or state.roles[role].to_bytes() != known.roles[role].to_bytes():
            problems.append(f"{role} is not what was published last: restore the repository from a backup")
    return problems


def find_unreadable(repository: Path) -> list[str]:
    """Return a warning about files that fewer users may read than the directory of the repository; [] = none. Another
    command may publish meanwhile, so a file may be renamed before its mode is read.
    """
    wanted = repository.stat().st_mode & 0o044
    found = []
    for path in sorted(one for one in repository.rglob("*") if not one.name.startswith(".")):
        with contextlib.suppress(FileNotFoundError):
            if path.lstat().st_mode & wanted != wanted:
                found.append(path)
    return [
        f"{len(found)} published files, such as {path}, may be read by fewer users than {repository}: a web server of "
        f"another user does not send them, and devices do not update; 'chmod -R a+rX {repository}'"
        for path in found[:1]
    ]


def check_newest(workspace: Workspace, state: RepositoryState, source: str) -> None:
    """Refuse a state that is older than the published files, as after a backup was restored. Devices know the version
    numbers of these files, and the next publication would use them again.

    Args:
        source: where the state is from, for the message.

    Raises:
        RolledBack: it is older.
    """
    newest = RepositoryState(list(state.roots), dict(state.roles))
    with contextlib.suppress(OtaError):  # no device takes files that the keys of the state did not sign
        if state.roots:
            _load_roots(workspace.repository, newest)
        elif (first := files.read(workspace.repository / "metadata" / "1.root.json", MOST_METADATA)) is not None:
            newest.roots.append(parse_metadata(first, "1.root.json"))
    with contextlib.suppress(OtaError):
        if newest.roots:
            _load(workspace.repository, newest, TIMESTAMP, None)
    if any(newest.version(role) > state.version(role) for role in (ROOT, TIMESTAMP)):
        raise RolledBack(
            f"{workspace.repository} has {_numbers(newest)}, and {source} has {_numbers(state)}: nothing was written, "
            "because devices may know the newer numbers. If a backup was restored, go on from the newer files with "
            f"'edge-ota publish recover --repository {workspace.repository} --root FILE', where FILE is a root.json "
            "that devices have. If these files were never uploaded, or some of them are lost everywhere, move "
            f"{workspace.repository / 'metadata'} away and repeat this command. If devices may have seen them, publish "
            "nothing before 'edge-ota publish rotate timestamp snapshot ROLE...', with each role that changed since"
        )


def _numbers(state: RepositoryState) -> str:
    return f"root {state.version(ROOT)}, timestamp {state.version(TIMESTAMP)}" if state.roots else "nothing"
