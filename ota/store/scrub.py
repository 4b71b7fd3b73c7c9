"""The scrub: reads installed releases and compares each file with its record, to find silent disk errors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ota import files
from ota.errors import StoreError
from ota.layout import StateLayout
from ota.store import releases


@dataclass(frozen=True, slots=True)
class Damage:
    """A file of a release that differs from its record. `path` = "" for the release as a whole."""

    model: str
    release: int
    path: str
    found: str

    def __str__(self) -> str:
        where = f"{self.model} {self.release}"
        return f"{where}: {self.path}: {self.found}" if self.path else f"{where}: {self.found}"


def scrub(
    layout: StateLayout,
    wanted: Iterable[tuple[str, int]],
    progress: Callable[[str, int], None] = lambda model, release: None,
) -> Iterator[Damage]:
    """Yield the damage of releases: missing, changed, or additional files.

    Args:
        wanted: model and release.
        progress: called before each release is read.
    """
    for model, release in wanted:
        progress(model, release)
        directory = layout.release(model, release)
        record = releases.read_record(directory)
        if record is None:
            yield Damage(model, release, "", "its record is missing or damaged")
            continue
        for path, (sha256, size) in sorted(record.every_file().items()):
            found = _compare(directory / path, sha256, size)
            if found:
                yield Damage(model, release, path, found)
        for path in sorted(_files_in(directory) - set(record.every_file()) - {releases.RECORD}):
            yield Damage(model, release, path, "is not a file of the release")


def _compare(path: Path, sha256: str, size: int) -> str:
    try:
        found, length = files.sha256_of(path)
    except StoreError as error:
        return error.message
    if length != size:
        return f"has {length} bytes, expected {size}"
    return "" if found == sha256 else f"has the SHA-256 {found[:12]}..., expected {sha256[:12]}..."


def _files_in(directory: Path) -> set[str]:
    found: set[str] = set()
    for folder, _, names in os.walk(directory):
        found.update(str(Path(folder, name).relative_to(directory)) for name in names)
    return found


def remove_part(layout: StateLayout, damage: Damage) -> bool:
    """Remove a file that an interrupted write left in a release. Return whether the damage is such a file.

    No path of a manifest begins with a dot.
    """
    path = layout.release(damage.model, damage.release) / damage.path
    if not (path.name.startswith(".") and path.name.endswith(".new")):
        return False
    with files.wrap_errors(path), contextlib.suppress(FileNotFoundError):  # a repair replaces that of its own file
        files.unlink(path)
        files.sync_directory(path.parent)
    return True


def discard(layout: StateLayout, found: Iterable[Damage]) -> list[str]:
    """Remove the blobs of damaged files, so that the next run fetches them again. Return their SHA-256.

    The release stays as it is until `repair` puts the fetched blobs in place.
    """
    gone = []
    for damage in found:
        record = releases.read_record(layout.release(damage.model, damage.release))
        if record is None or damage.path not in record.files:
            continue
        sha256, size = record.files[damage.path]
        discard_blob(layout, sha256, size)
        gone.append(sha256)
    return gone


def discard_blob(layout: StateLayout, sha256: str, size: int) -> None:
    """Remove a blob if it is damaged, so that a fetch brings it again.

    Raises:
        StoreError: it cannot be removed.
    """
    blob = layout.blob(sha256)
    if _compare(blob, sha256, size):
        with files.wrap_errors(blob), contextlib.suppress(FileNotFoundError):
            files.unlink(blob)
            files.sync_directory(blob.parent)
