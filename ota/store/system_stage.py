"""The staged files of a system: `system/<version>/` in the state directory, for the root side to install.

The files are hard links to blobs, so that a system takes its space once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ota import files
from ota.documents.manifest import FileEntry
from ota.documents.system import SystemDocument, read_system, version_of_target
from ota.errors import OtaError, StoreError
from ota.layout import StateLayout
from ota.store.directories import SHARED_MODE
from ota.strict_json import parse

_MOST_DOCUMENT = 1024 * 1024


def document_path(layout: StateLayout, product: str, version: int) -> Path:
    """Return the path of the signed document's copy."""
    return layout.staged_system(version) / f"{product}_{version}.json"


def begin(layout: StateLayout, document: SystemDocument, data: bytes) -> None:
    """Store the document, which keeps its blobs from garbage collection. Remove the files of other versions."""
    keep_only(layout, document.version)
    path = document_path(layout, document.product, document.version)
    if files.read(path) != data:
        files.make_directory(path.parent, SHARED_MODE)
        files.write_durably(path, data, 0o640)


def assemble(layout: StateLayout, document: SystemDocument) -> None:
    """Link the fetched blobs under the names that the root side expects."""
    for entry in document.files.values():
        files.replace_by_link(layout.blob(entry.sha256), layout.staged_system(document.version) / entry.path)


def is_assembled(layout: StateLayout, document: SystemDocument) -> bool:
    """Return whether all files are there, by their lengths. The root side compares their hashes."""
    folder = layout.staged_system(document.version)
    return all(files.has_size(folder / one.path, one.size) for one in document.files.values())


def discard_damaged(layout: StateLayout, document: SystemDocument) -> list[str]:
    """Remove each staged file that is not whole, and its blob, so that the next run fetches it. Return their names.

    A file is not whole if it is missing, cannot be read, or differs from its signed hash.

    Raises:
        StoreError: a file cannot be removed.
    """
    gone = []
    for entry in document.files.values():
        staged_file, blob = layout.staged_system(document.version) / entry.path, layout.blob(entry.sha256)
        if not _is_genuine(staged_file, entry):
            for path in (staged_file, blob):
                with files.wrap_errors(path), contextlib.suppress(FileNotFoundError):
                    files.unlink(path)
            gone.append(entry.path)
    return gone


def _is_genuine(path: Path, entry: FileEntry) -> bool:
    try:
        return files.sha256_of(path) == (entry.sha256, entry.size)
    except StoreError:
        return False


def keep_only(layout: StateLayout, version: int) -> None:
    """Remove the files of all versions but one; 0 = of all."""
    for folder in _folders(layout):
        if folder.name != str(version):
            files.remove_tree(folder)


def has_files(layout: StateLayout) -> bool:
    """Return whether a version has files here, also if its document cannot be read."""
    return bool(_folders(layout))


def staged(layout: StateLayout) -> SystemDocument | None:
    """Return the document of the version that is staged or being fetched; None = none."""
    return next((document for document in _documents(layout)), None)


def every_file(layout: StateLayout) -> Iterator[FileEntry]:
    """Yield the files of staged versions."""
    for document in _documents(layout):
        yield from document.files.values()


def _documents(layout: StateLayout) -> Iterator[SystemDocument]:
    for folder in _folders(layout):
        for path in sorted(folder.glob("*.json")):
            try:
                data = files.read(path, _MOST_DOCUMENT) or b""
                found = parse(data, str(path), _MOST_DOCUMENT)
                names = [str(found.get(one)) for one in ("product", "profile", "arch")]
                target = f"system/{names[0]}/{names[1]}-{names[2]}.{folder.name}.json"
                if version_of_target(target):
                    yield read_system(data, target)
            except OtaError:
                continue  # the next run fetches the document again


def _folders(layout: StateLayout) -> list[Path]:
    try:
        return sorted(one for one in layout.system.iterdir() if one.is_dir() and not one.is_symlink())
    except OSError:
        return []
