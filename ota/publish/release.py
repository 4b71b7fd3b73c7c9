"""Publishes a release: blobs, then the manifest that models-<family> lists. Also approvals of code, and floors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tuf.api.metadata import TargetFile

from ota import files
from ota.decide.code import find_code
from ota.decide.variant import find_faults
from ota.documents.floor import read_floor
from ota.documents.manifest import MOST_BYTES, FileEntry, Manifest, read_manifest
from ota.documents.names import blob_path, code_target, floor_target, manifest_target
from ota.errors import StoreError, Untrusted, UsageError
from ota.fetch.chunks import pieces_of
from ota.publish.change import MetadataChange, MissingSignatures, apply, copy_payload, refuse_second
from ota.publish.repository import RepositoryState, put_blob, read_state, read_target
from ota.publish.roles import ENGINES, FAMILY_PREFIX, family_role
from ota.publish.workspace import Workspace
from ota.strict_json import parse, to_canonical_json


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle on the publisher's disk: `manifest.json`, and `blobs/` as in the repository."""

    path: Path
    manifest: Manifest
    data: bytes

    def blob(self, sha256: str) -> Path:
        """Return the path of a blob."""
        return self.path / blob_path(sha256)


def read_bundle(path: Path) -> Bundle:
    """Return the bundle of a directory.

    Raises:
        UsageError: there is none. Untrusted: its manifest is malformed.
    """
    data = files.read(path / "manifest.json", MOST_BYTES)
    if data is None:
        raise UsageError(f"{path} is not a bundle: it has no manifest.json; make one with 'edge-ota publish bundle'")
    found = parse(data, f"{path}/manifest.json", MOST_BYTES)
    bundle, release = found.get("bundle"), found.get("release")
    if not isinstance(bundle, str) or not isinstance(release, int):
        raise Untrusted(f"{path}/manifest.json names no bundle and release: make the bundle again")
    return Bundle(path, read_manifest(data, bundle, release), data)


def blobs_of(entries: Iterable[FileEntry]) -> dict[str, int]:
    """Return SHA-256 -> size of the blobs of files."""
    return {piece.sha256: piece.size for entry in entries for piece in pieces_of(entry)}


def find_missing_family(state: RepositoryState, family: str, bundle: str) -> str:
    """Return that a repository lacks the family of a bundle, which is named as `bundle`; "" = it has the family."""
    if family_role(family) in state.delegated():
        return ""
    known = [one.removeprefix(FAMILY_PREFIX) for one in state.delegated() if one.startswith(FAMILY_PREFIX)]
    return (
        f"{bundle} is a bundle of the family {family}, and this repository has {', '.join(known) or 'none'}: make the "
        "bundle with another --family, or add one with 'publish family add'"
    )


def release(
    workspace: Workspace, state: RepositoryState, bundle: Bundle, engines: bool, now: float
) -> list[MissingSignatures]:
    """Publish a release.

    Args:
        engines: the keys of engines approve the files that run as code.

    Raises:
        UsageError: there is no such family, the number or the counter was used before, no device can use a variant,
            or it has code that nothing approves.
        Untrusted: a blob is damaged.
    """
    manifest = bundle.manifest
    if fault := find_missing_family(state, manifest.family, f"{manifest.bundle} {manifest.release}"):
        raise UsageError(fault)
    role = family_role(manifest.family)
    refuse_second(workspace, [role], now)
    target = manifest_target(manifest.family, manifest.bundle, manifest.release)
    check_numbers(workspace, state, manifest)
    if faults := find_faults(manifest):
        raise UsageError(f"{'; '.join(faults)}: make the bundle again")
    check_blobs(bundle)
    code = code_of(bundle)
    missing = sorted(sha256 for sha256 in code if code_target(manifest.family, sha256) not in state.targets_of(ENGINES))
    if missing and not engines:
        named = ", ".join(sorted(code[sha256] for sha256 in missing)[:4])
        raise UsageError(
            f"{manifest.bundle} {manifest.release} has files that devices run as code ({named}): "
            "read them, and give --engines, so that the keys of engines approve them"
        )
    for sha256 in blobs_of(entry for _, entry in manifest.every_file()):
        put_blob(workspace.repository, sha256, bundle.blob(sha256))
    if missing:
        sizes = {one.sha256: one.size for _, one in manifest.every_file()}
        waiting = approve(workspace, state, manifest.family, {one: sizes[one] for one in missing}, now)
        if waiting:
            return waiting
        state = read_state(workspace.path)
    payload = copy_payload(state, role)
    payload.targets[target] = TargetFile.from_data(target, bundle.data, ["sha256"])
    return apply(workspace, state, MetadataChange({role: payload}, documents={target: bundle.data}), now)


def check_numbers(workspace: Workspace, state: RepositoryState, manifest: Manifest) -> None:
    """Refuse a release number that was used, or a counter that does not rise.

    Raises:
        UsageError: see above.
    """
    listed = state.targets_of(family_role(manifest.family))
    target = manifest_target(manifest.family, manifest.bundle, manifest.release)
    if target in listed:
        raise UsageError(
            f"{manifest.bundle} {manifest.release} is published already, and a release never changes: "
            "make a bundle with a new number"
        )
    known = [one.counter for one in manifests_of(workspace, state, manifest.family, manifest.bundle)]
    if known and manifest.counter <= max(known):
        raise UsageError(
            f"{manifest.bundle} {manifest.release} has release_counter {manifest.counter}, and {max(known)} was used: "
            f"make the bundle again with --counter {max(known) + 1} or more"
        )


def manifests_of(workspace: Workspace, state: RepositoryState, family: str, bundle: str) -> list[Manifest]:
    """Return the published manifests of a bundle, by release number."""
    listed = state.targets_of(family_role(family))
    prefix = manifest_target(family, bundle, 0).removesuffix("0.json")
    found = []
    for target, entry in listed.items():
        number = target.removeprefix(prefix).removesuffix(".json")
        if target.startswith(prefix) and number.isdigit():
            found.append(read_manifest(read_target(workspace.repository, target, entry), bundle, int(number)))
    return sorted(found, key=lambda one: one.release)


def code_of(bundle: Bundle) -> dict[str, str]:
    """Return the files that devices run as code: SHA-256 -> model, path, and reason. Its blobs must be there."""
    found = {}
    for variant in bundle.manifest.variants:
        models = {model: bundle.manifest.files_of(variant, model) for model in bundle.manifest.models}
        for model, entries in models.items():
            if all(one.path != "config.pbtxt" for one in entries):
                raise UsageError(f"{model} has no config.pbtxt in the variant {variant.id}: add it to its directory")
        for model, one, reason in find_code(models, lambda _, one: read_blobs(bundle.path, one)):
            found[one.sha256] = f"{model}/{one.path} ({reason})"
    return found


def approve(
    workspace: Workspace, state: RepositoryState, family: str, sizes: dict[str, int], now: float
) -> list[MissingSignatures]:
    """Add files that run as code to the role `engines`."""
    refuse_second(workspace, [ENGINES], now)
    payload = copy_payload(state, ENGINES)
    for sha256, size in sizes.items():
        target = code_target(family, sha256)
        payload.targets[target] = TargetFile(size, {"sha256": sha256}, target)
    return apply(workspace, state, MetadataChange({ENGINES: payload}), now)


def check_blobs(bundle: Bundle) -> None:
    """Refuse a bundle whose blobs differ from its manifest.

    Raises:
        StoreError: a blob is missing. Untrusted: it has other bytes, or chunks make another file.
    """
    for _, entry in bundle.manifest.every_file():
        for piece in pieces_of(entry):
            path = bundle.blob(piece.sha256)
            if not path.is_file():
                raise StoreError(f"{bundle.path} lacks the blob {piece.sha256} of {entry.path}: make the bundle again")
            if files.sha256_of(path) != (piece.sha256, piece.size):
                raise Untrusted(f"{path} ({entry.path}) is damaged: make the bundle again")
        if entry.chunks and hash_chunks(bundle.path, entry) != entry.sha256:
            raise Untrusted(f"the chunks of {entry.path} do not make the file that the manifest names: make it again")


def hash_chunks(root: Path, entry: FileEntry) -> str:
    """Return the SHA-256 of the file that the chunks below `root` make."""
    found = hashlib.sha256()
    for piece in read_blobs(root, entry):
        found.update(piece)
    return found.hexdigest()


def read_blobs(root: Path, entry: FileEntry) -> Iterator[bytes]:
    """Yield a file in pieces, from its blobs below `root`.

    Raises:
        StoreError: a blob cannot be read.
    """
    for piece in pieces_of(entry):
        yield from files.read_pieces(root / blob_path(piece.sha256))


def read_floors(workspace: Workspace, state: RepositoryState, family: str) -> dict[str, int]:
    """Return the lowest counters of a family, by bundle."""
    target = floor_target(family)
    entry = state.targets_of(family_role(family)).get(target)
    return dict(read_floor(read_target(workspace.repository, target, entry), family)) if entry is not None else {}


def set_floor(
    workspace: Workspace, state: RepositoryState, family: str, bundle: str, number: int, now: float
) -> list[MissingSignatures]:
    """Forbid the releases of a bundle that are older than `number`.

    Raises:
        UsageError: the floor would sink, or there is no such release.
    """
    role = family_role(family)
    refuse_second(workspace, [role], now)
    counters = {one.release: one.counter for one in manifests_of(workspace, state, family, bundle)}
    if number not in counters:
        raise UsageError(f"{bundle} {number} is not published: it has {_numbers(counters)}")
    floors = read_floors(workspace, state, family)
    if counters[number] <= floors.get(bundle, 0):
        raise UsageError(f"the floor of {bundle} is {floors[bundle]} already, and it never sinks")
    floors[bundle] = counters[number]
    data = to_canonical_json({"schema": 1, "floors": floors})
    payload = copy_payload(state, role)
    payload.targets[floor_target(family)] = TargetFile.from_data(floor_target(family), data, ["sha256"])
    return apply(workspace, state, MetadataChange({role: payload}, documents={floor_target(family): data}), now)


def find_family(state: RepositoryState, bundle: str) -> str:
    """Return the family that has a bundle.

    Raises:
        UsageError: none has, or several have.
    """
    found = set()
    for role in state.delegated():
        for target in state.roles[role].signed.targets:
            parts = target.split("/")
            if parts[0] == "bundles" and parts[2].rpartition(".")[0].rpartition(".")[0] == bundle:
                found.add(parts[1])
    if len(found) != 1:
        raise UsageError(
            f"no release of {bundle} is published: publish one with 'edge-ota publish release'"
            if not found
            else f"the families {', '.join(sorted(found))} have a bundle named {bundle}: give --family"
        )
    return str(found.pop())


def _numbers(found: dict[int, int]) -> str:
    return ", ".join(map(str, sorted(found))) or "no releases"
