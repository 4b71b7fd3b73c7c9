"""Repairs releases whose files changed on disk: fetches the blobs again and replaces the files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ota import files
from ota.agent import switch
from ota.agent.components import Components
from ota.documents.manifest import FileEntry, read_manifest
from ota.errors import OtaError, ServerError, StoreError
from ota.layout import StateLayout
from ota.store import history, journal, releases, scrub
from ota.store.history import HistoryEvent
from ota.store.releases import InstalledRelease
from ota.store.scrub import Damage


def installed(layout: StateLayout) -> list[tuple[str, int]]:
    """Return model and release of all releases that the journals name."""
    found: set[tuple[str, int]] = set()
    for bundle in journal.bundles(layout):
        entry = journal.read(layout, bundle)
        if entry is not None:
            found.update((model, one) for one in entry.releases() for model in entry.models.get(one, ()))
    return sorted(found)


def repair(components: Components, found: Iterable[Damage]) -> list[Damage]:
    """Replace damaged files. Return the damage that is left, because no manifest on this device names the file.

    Raises:
        OtaError: the blobs did not come, or the disk does not take them.
    """
    left, bundles = [], set()
    found = list(found)
    scrub.discard(components.layout, found)
    for damage in found:
        if scrub.remove_part(components.layout, damage):
            components.tell(f"{damage.model} {damage.release}: {damage.path}: removed")
            continue
        record = releases.read_record(components.layout.release(damage.model, damage.release))
        if record is not None and damage.path in record.built:
            _rebuild(components, record)
            bundles.add(record.bundle)
            continue
        if record is None or damage.path not in record.files:
            left.append(damage)
            continue
        entry = _entries(components, record).get(damage.path) or FileEntry(damage.path, *record.files[damage.path])
        components.fetcher.missing([entry])
        components.fetcher.fetch([entry], lambda done, total: None)
        releases.repair(components.layout, record, damage.path)
        bundles.add(record.bundle)
        text = f"{damage.path} {damage.found}: put in place again"
        history.append(
            components.layout,
            HistoryEvent(components.clock.now(), "repaired", record.bundle, record.release, message=text),
        )
        components.tell(f"{damage.model} {damage.release}: {text}")
    for bundle in sorted(bundles):
        _reload(components, bundle)
    return left


def _rebuild(components: Components, record: InstalledRelease) -> None:
    """Replace the plans of a release, from the cache or by a new build."""
    data = files.read(components.layout.manifest(record.bundle, record.release))
    if data is None:
        raise StoreError(f"the manifest of {record.bundle} {record.release} is not on this device: 'edge-ota apply'")
    manifest = read_manifest(data, record.bundle, record.release)
    variant = next((one for one in manifest.variants if one.id == record.variant), None)
    if variant is not None:
        directories = {model: components.layout.release(model, record.release) for model in manifest.models}
        components.builder.build(manifest, variant, directories)


def _entries(components: Components, record: InstalledRelease) -> Mapping[str, FileEntry]:
    """Return the files of the manifest by path. Only the manifest has their chunks."""
    data = files.read(components.layout.manifest(record.bundle, record.release))
    if data is None:
        return {}
    try:
        manifest = read_manifest(data, record.bundle, record.release)
        variant = next(one for one in manifest.variants if one.id == record.variant)
        return {one.path: one for one in manifest.files_of(variant, record.model)}
    except (OtaError, StopIteration, KeyError):
        return {}


def _reload(components: Components, bundle: str) -> None:
    entry = journal.read(components.layout, bundle)
    if entry is not None:
        try:
            switch.load(components, entry)
        except ServerError as error:
            components.tell(f"{bundle} is repaired, but edge-serve did not reload it: {error.message}")
