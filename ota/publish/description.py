"""Describes the effect of a signature. The signer's machine derives the description from the metadata itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tuf.api.metadata import Role, Root, Signed, Targets


def describe(role: str, before: Signed | None, after: Signed, names: Mapping[str, str]) -> list[str]:
    """Return the differences in a role's metadata.

    Args:
        before: as it is published; None = describe the whole content.
        names: key ID -> name, as the publisher calls it; the ID is shown, too.
    """
    versions = f"from version {before.version} to version {after.version}" if before else f"version {after.version}"
    scope = "" if before else "; its whole content:"
    found = [f"{role}: {versions}, valid until {after.expires:%Y-%m-%d %H:%M} UTC{scope}"]
    if isinstance(after, Root):
        found += _keys(before.roles if isinstance(before, Root) else {}, after.roles, names)
    if isinstance(after, Targets):
        found += _delegations(before if isinstance(before, Targets) else None, after, names)
        found += _targets(before if isinstance(before, Targets) else None, after)
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


def _targets(before: Targets | None, after: Targets) -> Iterator[str]:
    old = before.targets if before is not None else {}
    for path in sorted({*old, *after.targets}):
        if path not in after.targets:
            yield f"  {_shown(path)} is no longer listed"
        elif old.get(path) != after.targets[path]:
            listed = "has other content" if path in old else "is listed"
            hashes = ", ".join(f"{name} {value}" for name, value in sorted(after.targets[path].hashes.items()))
            yield f"  {_shown(path)} {listed}, {after.targets[path].length} bytes, {_shown(hashes)}"


def _key(keyid: str, names: Mapping[str, str]) -> str:
    return f"{_shown(names.get(keyid, 'without a name'))} ({_shown(keyid[:16])})"


def _shown(text: str) -> str:
    """Return a text without control characters for a terminal. A long one is cut, and its length is added."""
    if len(text) > 200:
        return f"{text[:200]!r}... ({len(text)} characters)"
    return text if text.isprintable() else repr(text)
