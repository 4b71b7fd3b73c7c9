"""What this device shall run: the signed documents, read through the parts, and the checks that need both."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from ota import files as disk
from ota.agent.parts import Choice, Judged, Parts
from ota.documents import floor, rollout
from ota.documents import manifest as manifests
from ota.documents.manifest import FileEntry, Manifest, Variant
from ota.documents.names import floor_target, manifest_target, rollout_target
from ota.documents.rollout import Wish
from ota.errors import NotFound, Postponed, RolledBack, Unsuitable
from ota.store import bad
from ota.store.journal import Journal


def wishes(parts: Parts) -> Mapping[str, Wish]:
    """Return bundle -> what the fleet of this device shall have of it.

    Raises:
        OtaError: a document is missing, malformed, or older than one that was seen.
    """
    device = parts.device.document(parts.trust)
    path = rollout_target(device.fleet)
    found = rollout.read_rollout(parts.trust.document(path, rollout.MOST_BYTES), device.fleet)
    parts.trust.raise_floor(f"serial/{device.fleet}", path, found.serial)
    return found.models


def choose(parts: Parts, wish: Wish, entry: Journal) -> Choice:
    """Return the release of a bundle that this device shall run."""
    device = parts.device.document(parts.trust)
    return parts.decider.choose(wish, device, entry.active, parts.clock.now())


def manifest(parts: Parts, wish: Wish, release: int) -> tuple[Manifest, str]:
    """Return the verified manifest of a release and its SHA-256. A copy is kept beside the releases.

    Raises:
        RolledBack: its counter is below the floor of its family.
        Unsuitable: it needs a newer edge-ota or edge-serve.
    """
    path = manifest_target(wish.family, wish.bundle, release)
    data = parts.trust.document(path, manifests.MOST_BYTES)
    found = manifests.read_manifest(data, wish.bundle, release)
    _check_floor(parts, wish, found)
    for program, needed in (("edge_ota", found.needs_agent), ("edge_serve", found.needs_server)):
        have = parts.device.facts().get(program, "")
        if needed and have and _numbers(have) < _numbers(needed):
            shown = program.replace("_", "-")
            raise Unsuitable(
                f"{wish.bundle} {release} needs {shown} {needed}, and this is {have}: update {shown} first"
            )
    kept = parts.layout.manifest(wish.bundle, release)
    if disk.read(kept) != data:
        disk.write_durably(kept, data, 0o600)
    target = parts.trust.target(path)
    assert target is not None  # document() found it
    return found, target[0]


def _check_floor(parts: Parts, wish: Wish, found: Manifest) -> None:
    path = floor_target(wish.family)
    try:
        lowest = floor.read_floor(parts.trust.document(path, floor.MOST_BYTES), wish.family).get(wish.bundle, 0)
    except NotFound:
        return
    parts.trust.raise_floor(f"counter/{wish.bundle}", path, lowest)
    if found.counter < lowest:
        raise RolledBack(
            f"{wish.bundle} {found.release} has the counter {found.counter}, and the floor is {lowest}: "
            "roll out a newer release"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def judged(parts: Parts, manifest: Manifest, *, patient: bool) -> list[Judged]:
    """Return all variants, the preferred one first, and why each cannot be taken.

    Args:
        patient: wait after a transient failure.
    """
    known, fingerprint, now = bad.load(parts.layout), parts.device.fingerprint(), parts.clock.now()
    found = []
    for one in parts.decider.variants(manifest, parts.device.facts()):
        entry = known.find(manifest.bundle, manifest.release, one.variant.id, fingerprint, now)
        if one.why_not or entry is None or not (entry.permanent or patient):
            found.append(one)
            continue
        until = "" if entry.permanent else f", until {time.strftime('%Y-%m-%d %H:%M', time.localtime(entry.until))}"
        found.append(Judged(one.variant, f"it failed on this device{until} ({entry.reason}: {entry.message})"))
    return found


def variant(parts: Parts, manifest: Manifest, *, patient: bool) -> Variant:
    """Return the variant that this device shall run.

    Raises:
        Unsuitable: none fits.
        Postponed: those that fit failed here.
    """
    every = judged(parts, manifest, patient=patient)
    for one in every:
        if not one.why_not:
            return one.variant
    reasons = "; ".join(f"{one.variant.id}: {one.why_not}" for one in every)
    release = f"{manifest.bundle} {manifest.release}"
    if any("failed on this device" in one.why_not for one in every):
        raise Postponed(f"{release} is not installed: {reasons}. 'edge-ota retry {manifest.bundle}' tries it again")
    raise Unsuitable(f"no variant of {release} fits this device: {reasons}")


def files(manifest: Manifest, variant: Variant) -> Sequence[FileEntry]:
    """Return the files of all models of a release."""
    return [one for model in sorted(manifest.models) for one in manifest.files_of(variant, model)]
