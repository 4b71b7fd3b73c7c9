"""Repairs releases that changed on disk: fetches blobs again, replaces files, and installs those without a record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from ota import files
from ota.agent import desired, switch
from ota.agent.components import Components
from ota.documents.manifest import FileEntry, Manifest, Variant
from ota.errors import ServerError, StoreError
from ota.layout import StateLayout
from ota.store import history, journal, releases, scrub
from ota.store.history import HistoryEvent
from ota.store.journal import UpdateStage
from ota.store.releases import InstalledRelease
from ota.store.scrub import Damage


def installed(layout: StateLayout) -> list[tuple[str, int]]:
    """Return model and release of all releases that the journals name, but for one that is being fetched."""
    found: set[tuple[str, int]] = set()
    for entry in journal.read_all(layout):
        if entry.next is not None and entry.next.stage is UpdateStage.PLANNED:
            entry = replace(entry, next=None)
        found.update((model, one) for one in entry.releases() for model in entry.models.get(one, ()))
    return sorted(found)


def repair(components: Components, found: Iterable[Damage]) -> list[Damage]:
    """Replace damaged files, and install releases again whose record is lost. Return the damage that is left, because
    no manifest on this device says what was there.

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
        if not damage.path:
            if bundle := record.bundle if record is not None else _install_again(components, damage):
                bundles.add(bundle)
            else:
                left.append(damage)
            continue
        if record is None or damage.path not in record.files:
            left.append(damage)
            continue
        entry = _entries(components, record).get(damage.path) or FileEntry(damage.path, *record.files[damage.path])
        components.fetcher.missing([entry])
        components.fetcher.fetch([entry], lambda done, total: None)
        releases.repair(components.layout, record, damage.path)
        bundles.add(record.bundle)
        _note(components, record.bundle, damage, f"{damage.path} {damage.found}: put in place again")
    for bundle in sorted(bundles):
        _reload(components, bundle)
    return left


def _install_again(components: Components, damage: Damage) -> str:
    """Install a release whose record is lost, in the variant that it had. Return its bundle; "" = it is unknown."""
    layout = components.layout
    names = (one.bundle for one in journal.read_all(layout) if damage.model in one.models.get(damage.release, ()))
    bundle = next(names, "")
    manifest = releases.find_manifest(layout, bundle, damage.release)
    variant = _variant_on_disk(layout, manifest) if manifest is not None else None
    if manifest is None or variant is None:
        return ""
    wanted = desired.files(manifest, variant)
    for one in wanted:
        scrub.discard_blob(layout, one.sha256, one.size)
    components.fetcher.missing(wanted)
    components.fetcher.fetch(wanted, lambda done, total: None)
    releases.install(layout, manifest, variant, files.sha256_of(layout.manifest(bundle, manifest.release))[0])
    if variant.build:
        _build(components, manifest, variant)
    _note(components, bundle, damage, f"{damage.found}: installed again")
    return bundle


def _variant_on_disk(layout: StateLayout, manifest: Manifest) -> Variant | None:
    """Return the variant of a release by the records that are left, and by the files of models without one."""

    def is_on_disk(variant: Variant, model: str) -> bool:
        directory = layout.release(model, manifest.release)
        if (record := releases.read_record(directory)) is not None:
            return record.variant == variant.id
        return all(_is_whole(directory / one.path, one) for one in manifest.files_of(variant, model))

    if len(manifest.variants) == 1:
        return manifest.variants[0]
    return next((one for one in manifest.variants if all(is_on_disk(one, model) for model in manifest.models)), None)


def _is_whole(path: Path, entry: FileEntry) -> bool:
    try:
        return files.sha256_of(path) == (entry.sha256, entry.size)
    except StoreError:
        return False


def _rebuild(components: Components, record: InstalledRelease) -> None:
    """Replace the plans of a release, from the cache or by a new build."""
    manifest = releases.find_manifest(components.layout, record.bundle, record.release)
    if manifest is None:
        raise StoreError(f"the manifest of {record.bundle} {record.release} is not on this device: 'edge-ota apply'")
    variant = manifest.find_variant(record.variant)
    if variant is not None:
        _build(components, manifest, variant)


def _build(components: Components, manifest: Manifest, variant: Variant) -> None:
    directories = {model: components.layout.release(model, manifest.release) for model in manifest.models}
    components.builder.build(manifest, variant, directories)


def _entries(components: Components, record: InstalledRelease) -> Mapping[str, FileEntry]:
    """Return the files of the manifest by path. Only the manifest has their chunks."""
    manifest = releases.find_manifest(components.layout, record.bundle, record.release)
    variant = manifest.find_variant(record.variant) if manifest else None
    if manifest is None or variant is None or record.model not in manifest.models:
        return {}
    return {one.path: one for one in manifest.files_of(variant, record.model)}


def _note(components: Components, bundle: str, damage: Damage, text: str) -> None:
    event = HistoryEvent(components.clock.now(), "repaired", bundle, damage.release, message=text)
    history.append(components.layout, event)
    components.tell(f"{damage.model} {damage.release}: {text}")


def _reload(components: Components, bundle: str) -> None:
    entry = journal.read(components.layout, bundle)
    if entry is not None:
        try:
            switch.load(components, entry)
        except ServerError as error:
            components.tell(f"{bundle} is repaired, but edge-serve did not reload it: {error.message}")
