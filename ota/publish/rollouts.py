"""Edits the documents of fleets and devices, which the role `rollout` signs."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from tuf.api.metadata import TargetFile

from ota import files
from ota.decide.rollout import choose, fair_salt, find_previous
from ota.documents.device import DeviceDocument, read_device
from ota.documents.names import SYSTEM, device_target, rollout_target
from ota.documents.rollout import BundleRollout, Rollout, RolloutStep, read_rollout
from ota.errors import Untrusted, UsageError
from ota.publish.change import MetadataChange, MissingSignatures, apply, copy_payload, read_unexpired, refuse_second
from ota.publish.release import manifests_of, read_floors
from ota.publish.repository import RepositoryState, join_names, read_target
from ota.publish.roles import ROLLOUT, checked_name, raise_as_usage
from ota.publish.workspace import Workspace
from ota.strict_json import to_canonical_json


def read_fleet(workspace: Workspace, state: RepositoryState, fleet: str) -> Rollout:
    """Return the rollout document of a fleet; an empty one with serial 0 for a new fleet."""
    target = rollout_target(checked_name(fleet, "the fleet"))
    entry = state.targets_of(ROLLOUT).get(target)
    if entry is None:
        return Rollout(fleet, 0)
    return read_rollout(read_target(workspace.repository, target, entry), fleet)


def find_waiting(workspace: Workspace, fleet: str, now: float) -> Rollout | None:
    """Return the rollout document of a fleet in the change that waits for signatures; None = no such one waits."""
    pending = read_unexpired(workspace, now)
    data = pending.documents.get(rollout_target(fleet)) if pending is not None else None
    return read_rollout(data, fleet) if data is not None else None


def write_fleet(workspace: Workspace, state: RepositoryState, rollout: Rollout, now: float) -> list[MissingSignatures]:
    """Publish a rollout document with the next serial."""
    data = to_canonical_json(rollout_dict(replace(rollout, serial=rollout.serial + 1)))
    with raise_as_usage():
        read_rollout(data, rollout.fleet)
    return _publish(workspace, state, {rollout_target(rollout.fleet): data}, now)


def _publish(
    workspace: Workspace, state: RepositoryState, documents: dict[str, bytes], now: float
) -> list[MissingSignatures]:
    refuse_second(workspace, [ROLLOUT], now)
    payload = copy_payload(state, ROLLOUT)
    for target, data in documents.items():
        payload.targets[target] = TargetFile.from_data(target, data, ["sha256"])
    return apply(workspace, state, MetadataChange({ROLLOUT: payload}, documents=documents), now)


def rollout_dict(rollout: Rollout) -> dict[str, Any]:
    """Return the JSON form, without empty members."""
    value: dict[str, Any] = {"schema": 1, "fleet": rollout.fleet, "serial": rollout.serial}
    value["models"] = {bundle: _wish_dict(one) for bundle, one in rollout.models.items()}
    if rollout.spread_seconds:
        value["spread_seconds"] = rollout.spread_seconds
    if rollout.report_url:
        value["report_url"] = rollout.report_url
    if rollout.system:
        value["system"] = _wish_dict(rollout.system, "product")
    return value


def _wish_dict(wish: BundleRollout, family: str = "family") -> dict[str, Any]:
    value: dict[str, Any] = {family: wish.family, "want": wish.want, "salt": wish.salt}
    value["steps"] = [{"ring": one.ring, "percent": one.percent} for one in wish.steps]
    optional: dict[str, Any] = {
        "previous": wish.previous,
        "x-reached": dict(wish.reached),
        "paused": wish.paused,
        "window": wish.window,
        "deny": sorted(wish.deny),
        "pin": dict(wish.pin),
        "not_before": format_time(wish.not_before) if wish.not_before else "",
    }
    return value | {name: found for name, found in optional.items() if found}


def wish_of(rollout: Rollout, bundle: str) -> BundleRollout:
    """Return the rollout of a bundle in a fleet.

    Raises:
        UsageError: nothing yet.
    """
    wishes = rollout.wishes()
    if bundle not in wishes:
        known = ", ".join(sorted(wishes)) or "nothing"
        raise UsageError(
            f"the fleet {rollout.fleet} has no {bundle}, it has {known}: "
            f"begin with 'edge-ota publish rollout start {rollout.fleet} {bundle} RELEASE RING=PERCENT'"
        )
    return wishes[bundle]


def with_wish(rollout: Rollout, wish: BundleRollout) -> Rollout:
    """Return a rollout document with one bundle, or the system, replaced."""
    if wish.bundle == SYSTEM:
        return replace(rollout, system=wish)
    return replace(rollout, models={**rollout.models, wish.bundle: wish})


def start(
    rollout: Rollout,
    family: str,
    bundle: str,
    release: int,
    steps: Mapping[str, float],
    devices: Sequence[DeviceDocument],
    now: float,
) -> Rollout:
    """Return the document in which a fleet wants a release. Devices are hashed again for it.

    A lower number is a rollback: devices go back as they would go forward. The devices of a ring that the release does
    not include yet have the last one that reached all of this ring. Starting the release that the fleet wants already
    is a step: a halt and the start time stay, and while it is halted, its shares.

    Args:
        devices: those of the fleet; the salt is chosen so that percentages include the right share of them.
        now: seconds since the epoch.

    Raises:
        UsageError: the release is denied, or a share of the release that the fleet wants already would sink, or rise
            while its rollout is halted.
    """
    before = rollout.wishes().get(bundle)
    if before is not None and before.want == release:
        _refuse_denied(before, release)
        return with_wish(rollout, replace(_with_shares(before, steps), family=family))
    reached = _find_reached(rollout, before, now) if before else {}
    wish = BundleRollout(
        bundle=bundle,
        family=family,
        want=release,
        previous=_find_common(before, reached, devices) if before else 0,
        salt=fair_salt(f"{bundle}/{release}/{rollout.serial + 1}", devices),
        reached=reached,
        steps=tuple(RolloutStep(*one) for one in steps.items()),
        window=before.window if before else "",
        deny=before.deny if before else frozenset(),
        pin=before.pin if before else {},
    )
    _refuse_denied(wish, release)
    return with_wish(rollout, wish)


def _find_reached(rollout: Rollout, before: BundleRollout, now: float) -> dict[str, int]:
    """Return ring -> the last release that all devices of the ring were to have, also of rings without devices now.

    Devices get it without a step and without a gate, so a rollout that is halted, denied, or about to start counts for
    none of its rings.
    """
    counts = not before.paused and before.want not in before.deny and before.not_before + rollout.spread_seconds <= now
    whole = {one.ring for one in before.steps if counts and one.percent == 100}
    return {**before.reached, **dict.fromkeys(whole, before.want)}


def _find_common(before: BundleRollout, reached: Mapping[str, int], devices: Sequence[DeviceDocument]) -> int:
    """Return the last release that reached each ring with devices; pinned ones do not count. 0 = none."""
    rings = {one.ring for one in devices if one.device not in before.pin} or {one.ring for one in before.steps}
    return before.want if rings and all(reached.get(one) == before.want for one in rings) else before.previous


def describe_previous(wish: BundleRollout, rings: Collection[str] = ()) -> str:
    """Return the releases of devices in rings that the wanted one does not reach, such as `17 in lab, 16 in prod`.
    Without rings, return those of all.
    """
    found: dict[int, list[str]] = {}
    for ring in rings or (*wish.reached, "other rings"):  # no ring has such a name, with a blank
        found.setdefault(find_previous(wish, ring), []).append(ring)
    if len(found) < 2:
        return str(next(iter(found), 0) or "none")
    return ", ".join(f"{release or 'none'} in {join_names(names)}" for release, names in found.items())


def find_unknown_names(fleet: str, devices: Sequence[DeviceDocument], rings: Iterable[str], device: str) -> list[str]:
    """Return a note for each fleet or ring without devices, and for an unknown device ("" = none): typing errors."""
    ours = [one for one in devices if one.fleet == fleet]
    if not ours:
        known = ", ".join(sorted({one.fleet for one in devices}))
        return [f"{fleet} has no device yet" + (f"; fleets with devices: {known}" if known else "")]
    known_rings = sorted({one.ring for one in ours})
    found = [
        f"no device of {fleet} is in ring {ring}; its rings: {', '.join(known_rings)}"
        for ring in rings
        if ring not in known_rings
    ]
    if device and device not in {one.device for one in ours}:
        found.append(f"{device} is not a device of {fleet}")
    return found


def step(rollout: Rollout, bundle: str, steps: Mapping[str, float]) -> Rollout:
    """Return the document with higher percentages of some rings. Other rings stay as they are.

    Raises:
        UsageError: the rollout is halted, or a share would sink, which would leave devices as they are.
    """
    wish = wish_of(rollout, bundle)
    if wish.paused:
        _refuse_halted(wish)
    return with_wish(rollout, _with_shares(wish, steps))


def _with_shares(wish: BundleRollout, steps: Mapping[str, float]) -> BundleRollout:
    """Return a rollout with higher percentages of some rings.

    Raises:
        UsageError: a share would sink, or rise while the rollout is halted.
    """
    shares = {one.ring: one.percent for one in wish.steps}
    if wish.paused and any(percent > shares.get(ring, 0) for ring, percent in steps.items()):
        _refuse_halted(wish)
    for ring, percent in steps.items():
        if percent < shares.get(ring, 0):
            raise UsageError(
                f"ring {ring} is at {shares[ring]:g} %, and a lower share takes the release from no device: "
                f"to go back, start release {find_previous(wish, ring) or 'N'} instead, or use 'rollout deny'"
            )
    return merge_shares(wish, steps)


def merge_shares(wish: BundleRollout, steps: Mapping[str, float]) -> BundleRollout:
    """Return a rollout with other percentages of some rings."""
    shares = {**{one.ring: one.percent for one in wish.steps}, **steps}
    return replace(wish, steps=tuple(RolloutStep(*one) for one in shares.items()))


def _refuse_halted(wish: BundleRollout) -> NoReturn:
    raise UsageError(f"the rollout of {wish.bundle} is halted: 'edge-ota publish rollout resume' comes first")


def halt(rollout: Rollout, bundle: str, paused: bool) -> Rollout:
    """Return the document with a rollout halted or resumed."""
    wish = wish_of(rollout, bundle)
    if wish.paused == paused:
        raise UsageError(f"the rollout of {bundle} {'is halted already' if paused else 'is not halted'}")
    return with_wish(rollout, replace(wish, paused=paused))


def deny(rollout: Rollout, bundle: str, release: int, denied: bool) -> Rollout:
    """Return the document with a release denied for all devices, or allowed again."""
    wish = wish_of(rollout, bundle)
    releases = wish.deny | {release} if denied else wish.deny - {release}
    if releases == wish.deny:
        raise UsageError(f"{bundle} {release} is {'denied already' if denied else 'not denied'}")
    return with_wish(rollout, replace(wish, deny=frozenset(releases)))


def find_unserved(wish: BundleRollout, devices: Iterable[DeviceDocument], denied: int, now: float) -> list[str]:
    """Return the devices that would serve no release of the bundle if they run the denied one. A system always runs."""
    if wish.bundle == SYSTEM:
        return []
    return [one.device for one in devices if not choose(wish, one, denied, now).release]


def pin(rollout: Rollout, bundle: str, device: str, release: int) -> Rollout:
    """Return the document with a device pinned to a release; 0 = unpinned."""
    wish = wish_of(rollout, bundle)
    pins = {one: number for one, number in wish.pin.items() if one != checked_name(device, "the device")}
    if release:
        _refuse_denied(wish, release)
        pins[device] = release
    elif device not in wish.pin:
        raise UsageError(f"{device} is not pinned to a release of {bundle}")
    return with_wish(rollout, replace(wish, pin=pins))


def _refuse_denied(wish: BundleRollout, release: int) -> None:
    if release in wish.deny:
        raise UsageError(f"{wish.bundle} {release} is denied for this fleet: 'rollout deny --allow' comes first")


def check_release(workspace: Workspace, state: RepositoryState, family: str, bundle: str, release: int) -> None:
    """Refuse a release that is not published, or is below the floor.

    Raises:
        UsageError: see above.
    """
    counters = {one.release: one.counter for one in manifests_of(workspace, state, family, bundle)}
    if release not in counters:
        known = ", ".join(map(str, counters)) or "none"
        raise UsageError(
            f"{bundle} {release} is not published (published: {known}): publish it with 'edge-ota publish release'"
        )
    if counters[release] < read_floors(workspace, state, family).get(bundle, 0):
        raise UsageError(f"{bundle} {release} is below the floor of {bundle}: devices refuse it")


def read_devices(workspace: Workspace, state: RepositoryState, fleet: str = "") -> dict[str, DeviceDocument]:
    """Return the documents of the devices of a fleet ("" = of all), by name."""
    found = {}
    for target, entry in state.targets_of(ROLLOUT).items():
        if target.startswith("devices/"):
            device = target.removeprefix("devices/").removesuffix(".json")
            document = read_device(read_target(workspace.repository, target, entry), device)
            if fleet in ("", document.fleet):
                found[device] = document
    return found


def device_data(document: DeviceDocument) -> bytes:
    """Return the bytes of a device's document.

    Raises:
        Untrusted: a name or a label is malformed.
    """
    value: dict[str, Any] = {
        "schema": 1,
        "device": document.device,
        "fleet": document.fleet,
        "ring": document.ring,
        "labels": dict(document.labels),
    }
    if document.fingerprint:
        value["fingerprint"] = document.fingerprint
    data = to_canonical_json(value)
    with raise_as_usage():
        read_device(data, document.device)
    return data


def add_devices(
    workspace: Workspace, state: RepositoryState, documents: Sequence[DeviceDocument], change: bool, now: float
) -> list[MissingSignatures]:
    """Sign the fleet and ring of devices.

    Raises:
        UsageError: a device is known and `change` is false, or another device has its key.
    """
    known = read_devices(workspace, state)
    keys = {one.fingerprint: one.device for one in known.values() if one.fingerprint}
    for document in documents:
        if document.device in known and not change:
            raise UsageError(
                f"{document.device} is a device of the fleet {known[document.device].fleet} already: "
                "give the new device another name, or --change to move this one"
            )
        if document.device in known:
            document = _changed(known[document.device], document)
        known[document.device] = document
        if document.fingerprint and keys.setdefault(document.fingerprint, document.device) != document.device:
            other = keys[document.fingerprint]
            raise UsageError(f"{document.device} has the key of {other}: each device makes its own at its first start")
    changed = [known[one.device] for one in documents]
    return _publish(workspace, state, {device_target(one.device): device_data(one) for one in changed}, now)


def find_new_fleets(workspace: Workspace, state: RepositoryState, documents: Sequence[DeviceDocument]) -> list[str]:
    """Return a text for each fleet that the documents begin beside others. A mistyped fleet is a new one."""
    known = {one.fleet for one in read_devices(workspace, state).values()}
    listed = state.targets_of(ROLLOUT)
    others = ", ".join(sorted(known))
    fleets = dict.fromkeys(one.fleet for one in documents)
    new = [fleet for fleet in fleets if fleet not in known and rollout_target(fleet) not in listed]
    return [f"new fleet {fleet} (others: {others})" for fleet in new] if others else []


def _changed(known: DeviceDocument, document: DeviceDocument) -> DeviceDocument:
    """Return the new document of a device. Key and labels stay unless the new document has others."""
    return replace(
        document, fingerprint=document.fingerprint or known.fingerprint, labels=document.labels or known.labels
    )


def read_devices_csv(path: Path) -> list[DeviceDocument]:
    """Return the devices of a CSV file: columns device, fleet, ring, perhaps fingerprint; any other one is a label.

    Raises:
        UsageError: it does not exist, or a line lacks a column. Untrusted: a name is malformed.
    """
    data = files.read_given(path, "a CSV file with the columns device, fleet, ring")
    found = []
    try:
        rows = list(csv.DictReader(io.StringIO(data.decode("utf-8-sig", "replace"), newline=None)))
    except csv.Error as error:
        raise UsageError(f"{path} is not CSV ({error}): expected the columns device, fleet, ring") from None
    for number, row in enumerate(rows, 2):
        values = {name: (value or "").strip() for name, value in row.items() if isinstance(name, str)}
        try:
            device, fleet, ring = (values.pop(name) for name in ("device", "fleet", "ring"))
        except KeyError as error:
            raise UsageError(f"{path}, line {number}: there is no column {error}") from None
        fingerprint = values.pop("fingerprint", "")
        labels = {name: value for name, value in values.items() if value}
        document = DeviceDocument(device, fleet, ring, labels, fingerprint)
        device_data(document)
        found.append(document)
    return found


def remove_device(workspace: Workspace, state: RepositoryState, device: str, now: float) -> list[MissingSignatures]:
    """Remove a device from the repository.

    Raises:
        UsageError: it is not known.
    """
    target = device_target(device)
    if target not in state.targets_of(ROLLOUT):
        raise UsageError(f"{device} is not a device of this repository")
    refuse_second(workspace, [ROLLOUT], now)
    payload = copy_payload(state, ROLLOUT)
    del payload.targets[target]
    return apply(workspace, state, MetadataChange({ROLLOUT: payload}), now)


def fingerprint_of(path: Path) -> str:
    """Return the SHA-256 of a device's public key (DER, SubjectPublicKeyInfo), from PEM, DER, or 64 hexadecimal digits.

    Raises:
        UsageError: there is no such file. Untrusted: it is not a public key.
    """
    data = files.read_given(path, "device.pub, from the directory identity/ of the device", 64 * 1024)
    if re.fullmatch(rb"\s*[0-9a-f]{64}\s*", data):
        return data.decode().strip()
    try:
        pem = data.lstrip().startswith(b"-----BEGIN PUBLIC")
        load = serialization.load_pem_public_key if pem else serialization.load_der_public_key
        key = load(data)
    except (ValueError, UnsupportedAlgorithm):
        raise Untrusted(f"{path} is not a public key in PEM or DER") from None
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def parse_steps(found: list[str]) -> dict[str, float]:
    """Return ring -> percent of `lab=100 prod=5`.

    Raises:
        UsageError: it is something else.
    """
    steps = {}
    for one in found:
        ring, equals, percent = one.partition("=")
        try:
            steps[checked_name(ring, "the ring")] = float(percent.rstrip("%"))
        except ValueError:
            equals = ""
        if not equals or not 0 <= steps[ring] <= 100:
            raise UsageError(f"{one!r} is not a step: expected RING=PERCENT, such as prod=5")
    return steps


def format_time(seconds: float) -> str:
    """Return a time in the format of documents."""
    return datetime.fromtimestamp(seconds, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> float:
    """Return the seconds of `2026-11-22T02:00:00Z`.

    Raises:
        UsageError: it is something else.
    """
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        raise UsageError(f"{text!r} is not a time: expected UTC such as 2026-11-22T02:00:00Z") from None
