"""Reads and writes lock files: the wheels of the program for each Python, by version and SHA-256 (deploy/lock.py)."""

from __future__ import annotations

import hashlib
import re
import urllib.parse
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent

#: file in an installed program that lists its wheels
INSTALLED = "wheels.txt"

#: in the names of a lock file, and of a package, with libraries for NVIDIA GPUs
GPU = "cuda12"

#: the wheels that build edge-serve's own wheel
BUILD = FOLDER / "requirements-build.txt"

_HASH = r" \\\n +--hash=sha256:[0-9a-f]{64}"
_ENTRY = re.compile(rf"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+)(?P<hashes>(?:{_HASH})+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Locked:
    """One distribution of a lock file.

    Attributes:
        hashes: SHA-256 of the wheels that may be installed, for all processors
    """

    name: str
    version: str
    hashes: tuple[str, ...]


def lock_file(python: str, gpu: bool = False) -> Path:
    """Return the path of the lock file for a Python such as `3.11`. The file may not exist."""
    return FOLDER / f"requirements-{python}{f'-{GPU}' if gpu else ''}.txt"


def read(text: str) -> list[Locked]:
    """Return the entries of a lock file."""
    return [
        Locked(found["name"], found["version"], tuple(re.findall("[0-9a-f]{64}", found["hashes"])))
        for found in _ENTRY.finditer(text)
    ]


def write(about: str, entries: list[Locked]) -> str:
    """Return the text of a lock file, which begins with a comment."""
    lines = [f"# {about}\n"]
    for entry in sorted(entries, key=lambda entry: entry.name):
        hashes = "".join(f" \\\n    --hash=sha256:{digest}" for digest in sorted(set(entry.hashes)))
        lines.append(f"{entry.name}=={entry.version}{hashes}\n")
    return "".join(lines)


def joined(reports: list[dict[str, Any]], without: Set[str] = frozenset()) -> list[Locked]:
    """Merge pip's reports, one for each processor. Return their distributions without edge-serve itself.

    Raises:
        ValueError: the versions differ between processors.
    """
    by_processor = [{normalized(item["metadata"]["name"]): item for item in report["install"]} for report in reports]
    found = []
    for name in sorted(set().union(*by_processor) - {"edge-serve"} - without):
        items = [processor[name] for processor in by_processor if name in processor]
        versions = {item["metadata"]["version"] for item in items}
        if len(versions) > 1 or len(items) < len(reports):
            raise ValueError(
                f"{name}: {', '.join(sorted(versions))} for {len(items)} of {len(reports)} processors,"
                " expected one version for all: pin it in pyproject.toml"
            )
        found.append(Locked(name, versions.pop(), tuple(_digest(item["download_info"]) for item in items)))
    return found


def normalized(name: str) -> str:
    """Return a distribution's name in the form that package indexes compare."""
    return re.sub("[-_.]+", "-", name).lower()


def _digest(download: dict[str, Any]) -> str:
    known: str | None = download["archive_info"].get("hashes", {}).get("sha256")
    if known is None:  # a wheel from a folder of this machine
        path = urllib.parse.unquote(urllib.parse.urlsplit(download["url"]).path)
        known = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return known
