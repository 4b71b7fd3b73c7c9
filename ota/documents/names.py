"""Names and paths in documents, and the paths of targets in the repository."""

from __future__ import annotations

import re

from ota.errors import Untrusted

#: a model, a bundle, a family, a fleet, a device, a ring, a variant
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
#: one part of a file's path; edge-ota's own files in a release begin with a dot, so no path collides with them
PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
MOST_PARTS = 8
#: the name of the device's system in rollouts, reports, and the bad list; no bundle may have it
SYSTEM = "system"


def name(found: object, what: str) -> str:
    """Return a checked name.

    Raises:
        Untrusted: it has other characters, or is too long.
    """
    if not isinstance(found, str) or not NAME.fullmatch(found):
        raise Untrusted(f"{what} is {found!r}, expected a name of letters, digits, '.', '_' and '-' (at most 128)")
    return found


def file_path(found: object, what: str) -> str:
    """Return a checked relative path with `/`, whose parts are valid on every file system.

    Raises:
        Untrusted: it is absolute, has `..`, a hidden part, other characters, or too many parts.
    """
    parts = found.split("/") if isinstance(found, str) else []
    if not 1 <= len(parts) <= MOST_PARTS or not all(PART.fullmatch(part) for part in parts):
        expected = f"expected a relative path of at most {MOST_PARTS} parts of letters, digits, '.', '_' and '-'"
        raise Untrusted(f"{what} is {str(found)[:200]!r}, {expected}")
    return str(found)


def manifest_target(family: str, bundle: str, release: int) -> str:
    """Return the target path of a manifest, which the role models-<family> lists."""
    return f"bundles/{family}/{bundle}.{release}.json"


def code_target(family: str, sha256: str) -> str:
    """Return the target path by which the role `engines` approves a file that a device runs as code."""
    return f"engines/{family}/{sha256}"


def floor_target(family: str) -> str:
    """Return the target path of the floor document of a family."""
    return f"bundles/{family}/floor.json"


def system_target(product: str, profile: str, arch: str, version: int) -> str:
    """Return the target path of a system's document, which the role `system` lists."""
    return f"system/{product}/{profile}-{arch}.{version}.json"


def rollout_target(fleet: str) -> str:
    """Return the target path of a fleet's rollout document."""
    return f"rollout/{fleet}.json"


def device_target(device: str) -> str:
    """Return the target path of a device's document."""
    return f"devices/{device}.json"


def blob_path(sha256: str) -> str:
    """Return the path of a blob in the repository and in the store."""
    return f"blobs/sha256/{sha256[:2]}/{sha256}"
