"""Describes the effect of a signature. The signer's machine derives the description from the metadata itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tuf.api.metadata import Role, Root, Signed, TargetFile, Targets

from ota.documents.device import DeviceDocument
from ota.documents.manifest import FileEntry, Manifest
from ota.documents.rollout import Rollout
from ota.documents.system import SystemDocument
from ota.documents.targets import has_document, read_document
from ota.errors import OtaError
from ota.trust.roots import format_time

#: a list of files is cut after so many: the SHA-256 of the manifest stands for all of them
_MOST_NAMES = 8
#: SHA-256 -> a document that metadata lists
Documents = Mapping[str, bytes]
_NONE: Documents = MappingProxyType({})


def describe(
    role: str, before: Signed | None, after: Signed, names: Mapping[str, str], documents: Documents = _NONE
) -> list[str]:
    """Return the differences in a role's metadata, and in the documents that it lists.

    Args:
        before: as it is published; None = describe the whole content.
        names: key ID -> name, as the publisher calls it; the ID is shown, too.
        documents: those that are known, each with the SHA-256 of its bytes.
    """
    versions = f"from version {before.version} to version {after.version}" if before else f"version {after.version}"
    scope = "" if before else "; its whole content:"
    found = [f"{role}: {versions}, valid until {after.expires:%Y-%m-%d %H:%M} UTC{scope}"]
    if isinstance(after, Root):
        found += _keys(before.roles if isinstance(before, Root) else {}, after.roles, names)
    if isinstance(after, Targets):
        found += _delegations(before if isinstance(before, Targets) else None, after, names)
        found += _targets(before if isinstance(before, Targets) else None, after, documents)
    found += _others(before, after)
    if len(found) == 1:
        found.append("  nothing else changes" if before else "  nothing is listed")
    return found


def _others(before: Signed | None, after: Signed) -> Iterator[str]:
    """Yield the members that no other line describes, if they differ or are unusual."""
    told = ("version", "expires", "roles", "keys", "targets", "delegations")
    usual = {"_type": after.type, "spec_version": after.spec_version, "consistent_snapshot": True}
    old = before.to_dict() if before is not None else {}
    new = after.to_dict()
    for name in sorted({*old, *new} - {*told}):
        if new.get(name) != old.get(name, usual.get(name)):
            yield f"  {_shown(name)} becomes {_shown(json.dumps(new.get(name)))}"


def _keys(before: Mapping[str, Role], after: Mapping[str, Role], names: Mapping[str, str]) -> Iterator[str]:
    for role in sorted({*before, *after}):
        if role not in after:
            yield f"  {_shown(role)} is REMOVED"
            continue
        old = before.get(role)
        for keyid in after[role].keyids:
            if old is None or keyid not in old.keyids:
                yield f"  {_shown(role)} gets the key {_key(keyid, names)}"
        for keyid in old.keyids if old is not None else ():
            if keyid not in after[role].keyids:
                yield f"  {_shown(role)} LOSES the key {_key(keyid, names)}"
        if old is None or old.threshold != after[role].threshold:
            was = f" (was {old.threshold})" if old is not None else ""
            yield f"  {_shown(role)} needs {after[role].threshold} of {len(after[role].keyids)} keys{was}"


def _delegations(before: Targets | None, after: Targets, names: Mapping[str, str]) -> Iterator[str]:
    old, new = _roles(before), _roles(after)
    yield from _keys(old, new, names)
    for role in sorted(new):
        rights, known = _rights(new[role]), _rights(old[role]) if role in old else {}
        if rights.get("paths") != known.get("paths"):
            yield f"  {_shown(role)} may sign {', '.join(map(_shown, rights.get('paths') or [])) or 'nothing'}"
        for name in sorted({*rights, *known} - {"paths"}):
            if rights.get(name) != known.get(name, True if name == "terminating" else None):
                yield f"  {_shown(role)}: {_shown(name)} becomes {_shown(json.dumps(rights.get(name)))}"


def _rights(role: Role) -> dict[str, Any]:
    """Return the members of a delegation other than its keys and their threshold."""
    return {name: value for name, value in role.to_dict().items() if name not in ("name", "keyids", "threshold")}


def _roles(targets: Targets | None) -> Mapping[str, Role]:
    if targets is None or targets.delegations is None or targets.delegations.roles is None:
        return {}
    return targets.delegations.roles


def _targets(before: Targets | None, after: Targets, documents: Documents) -> Iterator[str]:
    old = before.targets if before is not None else {}
    devices: dict[tuple[str, str], list[tuple[str, str]]] = {}
    not_shown = 0
    for path in sorted({*old, *after.targets}):
        if path not in after.targets:
            yield f"  {_shown(path)} is no longer listed"
            continue
        new, known = after.targets[path], old.get(path)
        if new == known:
            continue
        verb = "is listed" if known is None else "has other content"
        facts, facts_before = _facts(path, new, documents), _facts(path, known, documents)
        lines = _differences(facts_before, facts)
        if not lines:
            not_shown += has_document(path) and facts is None
            hashes = ", ".join(f"{name} {value}" for name, value in sorted(new.hashes.items()))
            says = "says the same" if facts_before is not None else "names nothing"
            note = "" if facts is None else f" (it {says})"
            yield f"  {_shown(path)} {verb}, {new.length} bytes, {_shown(hashes)}{note}"
        elif path.startswith("devices/"):
            key = next((one for one in lines if one.startswith("key: ")), "")
            words = "; ".join(one for one in lines if one != key)
            devices.setdefault((verb, words), []).append((_shown(path[8:].removesuffix(".json")), key))
        else:
            yield f"  {_shown(path)} {verb}" + (":" if known is None or facts_before is not None else ", which is now:")
            yield from (f"    {line}" for line in lines)
    for (verb, words), group in devices.items():
        yield from _devices(verb, words, group)
    if not_shown:
        yield (
            f"  NOT SHOWN is the content of {not_shown} of these documents, because the request lacks it. That of a "
            "published one is a file of the web server (targets/rollout/SHA256.FLEET.json). A request lacks that of a "
            "new one if the publisher's machine has an older edge-ota: update that, and write the request again"
        )


def _devices(verb: str, words: str, group: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield lines for devices whose documents differ in the same way, except in their keys: each name, and each key."""
    if len(group) == 1:
        name, key = group[0]
        yield f"  the device {name} {verb}: {'; '.join(one for one in (words, key) if one)}"
        return
    yield f"  each of {len(group)} devices {verb}" + (f": {words}" if words else "")
    if names := [name for name, key in group if not key]:
        yield f"    {', '.join(names)}"
    yield from (f"    {name}; {key}" for name, key in group if key)


def _cut(names: Sequence[str]) -> str:
    more = f", and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _differences(before: Mapping[str, str] | None, after: Mapping[str, str] | None) -> list[str]:
    """Return a line for each fact of a document that differs from those before it. None = they are not known."""
    if after is None:
        return []
    old = before or {}
    found = []
    for name in [*after, *(one for one in old if one not in after)]:
        value, was = after.get(name, ""), old.get(name, "")
        if value != was:
            found.append(f"{name}: {value or 'none'}" + ("" if before is None else f" (was {was or 'none'})"))
    return found


def _facts(path: str, listed: TargetFile | None, documents: Documents) -> dict[str, str] | None:
    """Return name -> value of the members of a document; None = its bytes are not known."""
    data = documents.get(listed.hashes.get("sha256", "")) if listed is not None else None
    if listed is None or data is None or len(data) != listed.length:
        return None
    try:
        document = read_document(path, data)
    except OtaError as error:
        told = f"{_shown(error.message)} (SHA-256 {listed.hashes['sha256']})"
        return {"NOT READ BY THIS EDGE-OTA, nor by devices with its version": told}
    match document:
        case Rollout():
            return _rollout(document)
        case DeviceDocument():
            labels = " ".join(f"{name}={value}" for name, value in sorted(document.labels.items()))
            return {"fleet": document.fleet, "ring": document.ring, "labels": labels, "key": document.fingerprint}
        case Manifest():
            return {**_manifest(document), "SHA-256 of manifest.json": listed.hashes["sha256"]}
        case SystemDocument():
            return _system(document)
        case _:
            return {f"lowest release counter of {bundle}": str(number) for bundle, number in document.items()}


def _rollout(rollout: Rollout) -> dict[str, str]:
    found = {
        "serial": str(rollout.serial),
        "devices report to": rollout.report_url,
        "devices start within": f"{rollout.spread_seconds} s" if rollout.spread_seconds else "",
    }
    for wish in rollout.wishes().values():
        facts = {
            "release": str(wish.want),
            "family": wish.family,
            "rings": ", ".join(f"{one.ring} {one.percent:g} %" for one in wish.steps),
            "release of other devices": str(wish.previous or ""),
            "release of other devices by ring": ", ".join(
                f"{ring} {release}" for ring, release in sorted(wish.reached.items())
            ),
            "halted": "yes" if wish.paused else "",
            "denied releases": ", ".join(map(str, sorted(wish.deny))),
            "pinned": ", ".join(f"{device} to {release}" for device, release in sorted(wish.pin.items())),
            "not before": format_time(wish.not_before) if wish.not_before else "",
            "window": wish.window,
            "salt": wish.salt,
        }
        found |= {f"{wish.bundle}: {name}": value for name, value in facts.items()}
    return found


def _manifest(manifest: Manifest) -> dict[str, str]:
    found = {
        "release": f"{manifest.bundle} {manifest.release}, counter {manifest.counter}, of the family {manifest.family}",
        "needs": " ".join(
            f"{name} {version}"
            for name, version in (("agent", manifest.needs_agent), ("server", manifest.needs_server))
            if version
        ),
    }
    found |= {f"model {model}": _files(entries) for model, entries in manifest.models.items()}
    for variant in manifest.variants:
        match_words = "".join(f", {fact} {wanted}" for fact, wanted in variant.match.items())
        found[f"variant {variant.id}"] = f"{variant.kind}, priority {variant.priority}{match_words}"
        for model, entries in variant.files.items():
            found[f"variant {variant.id}, model {model}"] = _files(entries)
    return found


def _system(system: SystemDocument) -> dict[str, str]:
    files = {f"{one.path}": f"{one.size} bytes, SHA-256 {one.sha256}" for one in system.files.values()}
    return {
        "system": system.title,
        "root hash": system.root_hash,
        "can be installed by": f"version {system.needs_version} or later" if system.needs_version else "",
        "format of the data": str(system.state_schema),
        **files,
    }


def _files(entries: Sequence[FileEntry]) -> str:
    names = [one.path for one in entries]
    return f"{len(names)} files, {sum(one.size for one in entries)} bytes: {_cut(names)}"


def _key(keyid: str, names: Mapping[str, str]) -> str:
    return f"{_shown(names.get(keyid, 'without a name'))} ({_shown(keyid[:16])})"


def _shown(text: str) -> str:
    """Return a text without control characters for a terminal. A long one is cut, and its length is added."""
    if len(text) > 200:
        return f"{text[:200]!r}... ({len(text)} characters)"
    return text if text.isprintable() else repr(text)
