"""Releases on disk: hard links to blobs, assembled in `stage/` and renamed to `releases/<model>/<release>/`.

`releases/<model>/<release>@<system>/` is a copy of a release whose TensorRT plans were built under that version of the
device's system. The release keeps its own plans, so the system before it serves them at once, whatever edge-ota it has.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from ota import files
from ota.documents.manifest import FileEntry, Manifest, Variant, read_manifest
from ota.documents.names import file_path, name
from ota.errors import OtaError, StoreError
from ota.layout import StateLayout
from ota.store.directories import FILE_MODE, SHARED_MODE
from ota.strict_json import Members, parse, to_canonical_json

#: edge-ota's own file in each release; no path of a manifest begins with a dot
RECORD = ".release.json"
SCHEMA = 1
_MOST_RECORD = 2 * 1024 * 1024
_MOST_FILES = 8192


@dataclass(frozen=True, slots=True)
class InstalledRelease:
    """A release of one model on this device, as in its record.

    Attributes:
        models: all models of the release; they belong together.
        manifest: the SHA-256 of the manifest.
        files: path -> SHA-256 and length.
        built: the same of files that were built on this device; no manifest has them.
    """

    bundle: str
    model: str
    release: int
    variant: str
    manifest: str
    models: tuple[str, ...]
    files: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    built: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def every_file(self) -> dict[str, tuple[str, int]]:
        """Return the files of the manifest and those that were built."""
        return {**self.files, **self.built}


def install(layout: StateLayout, manifest: Manifest, variant: Variant, manifest_sha256: str) -> bool:
    """Install all models of a release from blobs in the store. Return whether any was not installed yet.

    Raises:
        StoreError: a blob is missing or damaged (a damaged one is removed), or the disk does not take the release.
    """
    models, changed = tuple(sorted(manifest.models)), False
    for model in models:
        entries = manifest.files_of(variant, model)
        found = {one.path: (one.sha256, one.size) for one in entries}
        record = InstalledRelease(manifest.bundle, model, manifest.release, variant.id, manifest_sha256, models, found)
        target = layout.release(model, manifest.release)
        known = read_record(target)
        if known is not None and replace(known, built={}) == record and is_complete(target, known):
            continue
        stage = layout.stage / f"{model}.{manifest.release}"
        _stage(layout, stage, entries, record)
        _put_in_place(layout, stage, target)
        changed = True
    return changed


def install_copy(layout: StateLayout, model: str, release: int, plans: Mapping[str, Path]) -> None:
    """Install a copy of a release, with other plans, for the system that runs.

    Args:
        plans: path below the model's directory -> a plan in the cache.

    Raises:
        StoreError: the release or a blob is missing, or the disk does not take the copy.
    """
    record = _read_installed(layout.release(model, release))
    record = replace(record, built={path: files.sha256_of(plan) for path, plan in plans.items()})
    entries = tuple(FileEntry(path, *found) for path, found in record.files.items())
    stage, target = layout.stage / f"{model}.{release}", layout.release_copy(model, release, layout.running)
    _stage(layout, stage, entries, record, plans)
    _put_in_place(layout, stage, target)


def serving_directory(layout: StateLayout, model: str, release: int) -> Path:
    """Return the directory that the link of a model names: the copy for the system that runs, if there is one."""
    copy = layout.release_copy(model, release, layout.running)
    return copy if layout.running and is_copy(copy, layout.release(model, release)) else layout.release(model, release)


def is_copy(directory: Path, release: Path) -> bool:
    """Return whether a directory is a complete copy of a release as it is now installed."""
    found, record = read_record(directory), read_record(release)
    same = found is not None and record is not None and replace(found, built={}) == replace(record, built={})
    return same and found is not None and is_complete(directory, found)


def copies(layout: StateLayout, model: str, release: int) -> dict[int, Path]:
    """Return the directories of the copies of a release, by the system that each is for."""
    names = [name.partition("@") for name in _names(layout.releases / model)]
    systems = [int(system) for number, _, system in names if number == str(release) and system.isdecimal()]
    return {system: layout.release_copy(model, release, system) for system in systems}


def remove_built(layout: StateLayout, model: str, release: int, copy: Path) -> None:
    """Remove the files that were built for a release, which are in a copy of it, too. Safe to repeat after a crash."""
    directory = layout.release(model, release)
    record = _read_installed(directory)
    if record.built:  # first: a record may not name files that are missing
        files.write_durably(directory / RECORD, to_canonical_json(_document(replace(record, built={}))), FILE_MODE)
    for path in _read_installed(copy).built:
        with files.wrap_errors(directory / path), contextlib.suppress(FileNotFoundError):
            files.unlink(directory / path)
            files.sync_directory((directory / path).parent)


def _stage(
    layout: StateLayout, stage: Path, entries: tuple[FileEntry, ...], record: InstalledRelease,
    plans: Mapping[str, Path] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Assemble the directory of one model. It is durable when this returns."""
    files.remove_tree(stage)
    made = {stage, stage / str(record.release)}  # an ensemble has no file in its version directory
    for path in (*(entry.path for entry in entries), *plans):
        made.update(stage / parent for parent in Path(path).parents)
    with files.wrap_errors(stage):
        for folder in sorted(made):
            files.make_directory(folder, SHARED_MODE)
        for entry in entries:
            files.link(_checked_blob(layout, entry), stage / entry.path)
        for path, plan in plans.items():
            files.link(plan, stage / path)
        text = to_canonical_json(_document(record))
        with files.create(stage / RECORD, FILE_MODE) as file:
            files.write(file, stage / RECORD, text)
            files.fsync(file, stage / RECORD)
        for folder in sorted(made, reverse=True):
            files.sync_directory(folder)


def _checked_blob(layout: StateLayout, entry: FileEntry) -> Path:
    """Return the path of a blob that is whole, and that the server may read.

    Raises:
        StoreError: it is missing, or damaged and now removed.
    """
    blob = layout.blob(entry.sha256)
    with files.wrap_errors(blob):
        if not blob.exists():
            file = Path(entry.path).name
            raise StoreError(f"{blob} does not exist, which {file} needs: 'edge-ota apply' fetches it again")
        if files.sha256_of(blob) != (entry.sha256, entry.size):
            files.unlink(blob)
            raise StoreError(f"{blob} was damaged on this disk and is removed: 'edge-ota apply' fetches it again")
        if stat.S_IMODE(blob.stat().st_mode) != FILE_MODE:
            files.chmod(blob, FILE_MODE)
    return blob


def _put_in_place(layout: StateLayout, stage: Path, target: Path) -> None:
    files.make_directory(target.parent, SHARED_MODE)
    with files.wrap_errors(target):
        if target.exists():  # incomplete, or another variant; a link names it only where it is damaged
            aside = layout.stage / f"{target.parent.name}.{target.name}.old"
            files.remove_tree(aside)
            files.rename(target, aside)
            files.sync_directory(target.parent)
            files.remove_tree(aside)
        files.rename(stage, target)
        files.sync_directory(target.parent)
        files.sync_directory(layout.stage)


def add_built(layout: StateLayout, model: str, release: int, path: str, plan: Path) -> None:
    """Add a file that was built on this device to an installed release, and to its record.

    Raises:
        StoreError: the release does not exist, or the disk does not take the file.
    """
    directory = layout.release(model, release)
    record = _read_installed(directory)
    target = directory / path
    files.make_directory(target.parent, SHARED_MODE)
    files.replace_by_link(plan, target)
    record = replace(record, built={**record.built, path: files.sha256_of(target)})
    files.write_durably(directory / RECORD, to_canonical_json(_document(record)), FILE_MODE)


def _read_installed(directory: Path) -> InstalledRelease:
    record = read_record(directory)
    if record is None:
        raise StoreError(f"{directory} is not an installed release: 'edge-ota apply' installs it again")
    return record


def repair(layout: StateLayout, record: InstalledRelease, path: str) -> None:
    """Replace a file of an installed release, and of its copies, from its blob.

    Raises:
        StoreError: the blob is missing or damaged, too, or the disk does not take the file.
    """
    blob = _checked_blob(layout, FileEntry(path, *record.files[path]))
    places = copies(layout, record.model, record.release).values()
    for directory in (layout.release(record.model, record.release), *places):
        files.make_directory((directory / path).parent, SHARED_MODE)
        files.replace_by_link(blob, directory / path)


def read_record(directory: Path) -> InstalledRelease | None:
    """Return the record of a release; None = it is missing or cannot be read."""
    try:
        data = files.read(directory / RECORD, _MOST_RECORD)
        if data is None:
            return None
        return _read(Members(parse(data, str(directory / RECORD), _MOST_RECORD), RECORD, StoreError))
    except Exception:  # a damaged file can raise any error; a release without a record is installed again
        return None


def _read(members: Members) -> InstalledRelease:
    if members.integer("schema") != SCHEMA:
        raise StoreError(f"{RECORD} has another schema")
    record = InstalledRelease(
        bundle=name(members.text("bundle"), "bundle"),
        model=name(members.text("model"), "model"),
        release=members.integer("release", least=1),
        variant=members.text("variant"),
        manifest=members.sha256("manifest"),
        models=tuple(name(one, "a model") for one in members.array("models", most=256)),
        files=_digests(members, "files"),
        built=_digests(members, "built"),
    )
    members.end()
    return record


def _digests(members: Members, member: str) -> dict[str, tuple[str, int]]:
    found = {}
    for path, inner in members.tables(member, {}, most=_MOST_FILES):
        found[file_path(path, "a path")] = (inner.sha256("sha256"), inner.integer("bytes"))
        inner.end()
    return found


def _document(record: InstalledRelease) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "bundle": record.bundle,
        "model": record.model,
        "release": record.release,
        "variant": record.variant,
        "manifest": record.manifest,
        "models": list(record.models),
        "files": _rows(record.files),
        "built": _rows(record.built),
    }


def _rows(found: Mapping[str, tuple[str, int]]) -> dict[str, object]:
    return {path: {"sha256": sha256, "bytes": size} for path, (sha256, size) in found.items()}


def is_complete(directory: Path, record: InstalledRelease) -> bool:
    """Return whether all files exist with their lengths. `scrub` also reads them."""
    has_files = all(files.has_size(directory / path, size) for path, (_, size) in record.every_file().items())
    return has_files and os.path.isdir(directory / str(record.release))


def find_complete(layout: StateLayout, model: str, release: int) -> InstalledRelease | None:
    """Return the record of a complete release of a model; None = it is missing or incomplete."""
    directory = layout.release(model, release)
    record = read_record(directory)
    if record is None or (record.model, record.release) != (model, release):
        return None
    return record if is_complete(directory, record) else None


def find_manifest(layout: StateLayout, bundle: str, release: int) -> Manifest | None:
    """Return the verified manifest that this device keeps of a release; None = it is not on this disk, or damaged."""
    try:
        return read_manifest(files.read(layout.manifest(bundle, release)) or b"", bundle, release)
    except OtaError:
        return None


def is_installed(layout: StateLayout, manifest: Manifest, manifest_sha256: str) -> bool:
    """Return whether all models of a release are complete and from this manifest."""
    found = [find_complete(layout, model, manifest.release) for model in manifest.models]
    return all(one is not None and one.manifest == manifest_sha256 for one in found)


def every_release(layout: StateLayout) -> Iterator[InstalledRelease]:
    """Yield the complete releases of all models."""
    for model in _names(layout.releases):
        for release in _names(layout.releases / model):
            if release.isdecimal() and (record := find_complete(layout, model, int(release))) is not None:
                yield record


def _names(directory: Path) -> list[str]:
    try:
        return sorted(one.name for one in directory.iterdir())
    except OSError:
        return []
