"""Reads the signed documents, and returns which release, variant, and files this device should run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from ota import files as disk
from ota.agent.components import Components
from ota.agent.status_file import version
from ota.decide import rollout as decide_rollout
from ota.decide import variant as decide_variant
from ota.decide.rollout import ReleaseChoice
from ota.decide.variant import Candidate
from ota.documents import floor
from ota.documents import manifest as manifests
from ota.documents import rollout as rollouts
from ota.documents.manifest import FileEntry, Manifest, Variant
from ota.documents.names import floor_target, manifest_target, rollout_target
from ota.documents.rollout import BundleRollout, Rollout
from ota.errors import (
    FailedHere,
    NoBuildUnit,
    NotInRepository,
    Postponed,
    RolledBack,
    Unsuitable,
    Untrusted,
    UsageError,
)
from ota.layout import StateLayout
from ota.store import bad, releases
from ota.store.journal import Journal


def wanted(components: Components) -> Rollout:
    """Return the rollout document of this device's fleet.

    Raises:
        OtaError: a document is missing, malformed, or older than one that was seen.
    """
    device = components.device.document(components.trust)
    path = rollout_target(device.fleet)
    found = rollouts.read_rollout(components.trust.document(path, rollouts.MOST_BYTES), device.fleet)
    components.trust.raise_floor(f"serial/{device.fleet}", path, found.serial)
    return found


def check_bundles(rollout: Rollout, asked: Iterable[str]) -> None:
    """Refuse bundles that the fleet does not have.

    Raises:
        UsageError: with those that it has.
    """
    for bundle in asked:
        if bundle not in rollout.models:
            known = ", ".join(sorted(rollout.models)) or "none"
            raise UsageError(f"the fleet of this device has no bundle {bundle!r}; it has: {known}")


def wish(rollout: Rollout, bundle: str) -> BundleRollout:
    """Return the rollout of a bundle, or of the system.

    Raises:
        Postponed: the document has it no longer.
    """
    found = rollout.wishes().get(bundle)
    if found is None:
        raise Postponed(reason_not_named(bundle))
    return found


def reason_not_named(bundle: str) -> str:
    """Return why nothing is updated: the rollout has a bundle, or the system, no longer."""
    return f"the rollout of this fleet no longer names {bundle}"


def choose(components: Components, rollout: Rollout, bundle: str, entry: Journal) -> ReleaseChoice:
    """Return the release of a bundle, or the version of the system, that this device should run.

    Raises:
        Postponed: as `wish`. OtaError: the document of this device cannot be read.
    """
    device = components.device.document(components.trust)
    spread = 0 if entry.active == 0 else rollout.spread_seconds
    return decide_rollout.choose(
        wish(rollout, bundle), device, entry.active, components.clock.now(), spread_seconds=spread
    )


def manifest(components: Components, wish: BundleRollout, release: int) -> tuple[Manifest, str]:
    """Return the verified manifest of a release and its SHA-256. Keep a copy in the store.

    Raises:
        Untrusted: it is malformed, or says another family than that of the role which lists it.
        RolledBack: its counter is below the floor of its family.
        Unsuitable: it needs a newer edge-ota or edge-serve.
    """
    path = manifest_target(wish.family, wish.bundle, release)
    data = components.trust.document(path, manifests.MOST_BYTES)
    found = manifests.read_manifest(data, wish.bundle, release)
    if found.family != wish.family:  # the role `engines` approves a file for one family
        raise Untrusted(f"the manifest of {wish.bundle} {release} is of the family {found.family}, not {wish.family}")
    _check_floor(components, wish, found)
    if why := decide_variant.reason_too_old(found, version(), components.device.facts().get("edge_serve", "")):
        raise Unsuitable(f"{wish.bundle} {release} is not for this device: {why}")
    kept = components.layout.manifest(wish.bundle, release)
    if disk.read(kept) != data:
        disk.write_durably(kept, data, 0o600)
    target = components.trust.target(path)
    assert target is not None  # document() found it
    return found, target[0]


def _check_floor(components: Components, wish: BundleRollout, found: Manifest) -> None:
    path = floor_target(wish.family)
    try:
        lowest = floor.read_floor(components.trust.document(path, floor.MOST_BYTES), wish.family).get(wish.bundle, 0)
        components.trust.raise_floor(f"counter/{wish.bundle}", path, lowest)
    except NotInRepository:  # a removed floor still applies on devices that have seen it
        lowest = components.trust.floor(f"counter/{wish.bundle}", path)
    if found.counter < lowest:
        raise RolledBack(
            f"{wish.bundle} {found.release} has the counter {found.counter}, and the floor is {lowest}: "
            "roll out a newer release"
        )


def candidates(components: Components, manifest: Manifest, *, patient: bool, passing: bool = True) -> list[Candidate]:
    """Return all variants by priority, each with the reason why it does not fit.

    Args:
        patient: wait after a transient failure.
        passing: wait also if the failure may pass by itself. Only a missing unit for builds does not pass.
    """
    known, fingerprint, now = bad.load(components.layout), components.device.fingerprint(), components.clock.now()
    failed = {}
    for one in manifest.variants:
        entry = known.find(manifest.bundle, manifest.release, one.id, fingerprint, now)
        if entry is not None and (entry.permanent or (patient and (passing or entry.reason == NoBuildUnit.reason))):
            failed[one.id] = _failure(entry)
    return decide_variant.candidates(manifest, components.device.facts(), failed)


def _failure(entry: bad.BadRelease) -> str:
    text = f"{entry.reason}: {entry.message}"
    if entry.permanent:
        return text
    return f"{text}; not before {time.strftime('%Y-%m-%d %H:%M', time.localtime(entry.until))}"


def variant(components: Components, manifest: Manifest, *, patient: bool) -> Variant:
    """Return the variant that this device should run. A failure that passes by itself does not lead to another one,
    which would stay after the failure has ended.

    Raises:
        Unsuitable: none fits.
        Postponed: the one to run failed here, and is tried again later. FailedHere: those that fit did, and are not.
    """
    every = candidates(components, manifest, patient=patient)
    fits = [not one.why_not for one in candidates(components, manifest, patient=patient, passing=False)]
    chosen = next((one for one, may_run in zip(every, fits, strict=True) if may_run), None)
    if chosen is not None and not chosen.why_not:
        return chosen.variant
    reasons = "; ".join(f"{one.variant.id}: {one.why_not}" for one in every if one.why_not)
    release = f"{manifest.bundle} {manifest.release}"
    if any("failed on this device" in one.why_not for one in every):
        later = any(not one.why_not for one in candidates(components, manifest, patient=False))
        raise (Postponed if later else FailedHere)(
            f"{release} is not installed: {reasons}. 'edge-ota retry {manifest.bundle}' tries it again"
        )
    raise Unsuitable(f"no variant of {release} fits this device: {reasons}")


def planned_variant(layout: StateLayout, entry: Journal) -> Variant | None:
    """Return the variant of the next release by its manifest on this disk; None = the manifest is lost."""
    assert entry.next is not None
    found = releases.find_manifest(layout, entry.bundle, entry.next.release)
    return found.find_variant(entry.next.variant) if found else None


def files(manifest: Manifest, variant: Variant) -> Sequence[FileEntry]:
    """Return the files of all models of a release."""
    return [one for model in sorted(manifest.models) for one in manifest.files_of(variant, model)]
