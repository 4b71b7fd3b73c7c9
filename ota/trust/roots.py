"""The factory root, the number of stored roots, and times in TUF's format. Does not import tuf."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ota import files
from ota.errors import StoreError, Untrusted, UsageError
from ota.strict_json import parse

#: as long as a role's metadata may be
MOST_METADATA = 5_000_000
#: new roots that one refresh verifies; a server cannot keep a device busy with more
MOST_ROOTS = 256


def factory_root(path: Path) -> bytes:
    """Return the trusted root of this device.

    Raises:
        UsageError: it does not exist, or no root metadata.
    """
    hint = "copy root.json from the publisher to it ('edge-ota publish init' created it)"
    try:
        data = files.read(path, MOST_METADATA)
    except StoreError as error:
        raise UsageError(f"the trusted root cannot be read: {error.message}; {hint}") from None
    if data is None:
        raise UsageError(f"{path} does not exist, so nothing can be verified: {hint}")
    try:
        signed = parse(data, str(path), MOST_METADATA).get("signed")
    except Untrusted as error:
        raise UsageError(f"{error.message}; {hint}") from None
    if not isinstance(signed, dict) or signed.get("_type") != "root" or not isinstance(signed.get("version"), int):
        raise UsageError(f"{path} is not TUF root metadata; {hint}")
    return data


def stored_roots(metadata_dir: Path, version: int) -> int:
    """Return how many consecutive roots after `version` are stored."""
    count = 0
    while (metadata_dir / "root_history" / f"{version + count + 1}.root.json").exists():
        count += 1
    return count


def parse_time(text: Any) -> float | None:
    """Return a time of TUF, `2026-11-22T20:00:00Z`, as seconds since the epoch; None = invalid."""
    if not isinstance(text, str) or not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", text):
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


def format_time(seconds: float) -> str:
    """Return seconds since the epoch as a time of TUF."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
