"""The agent's state directory as a repository: the metadata that it verified, and the document of a staged system.

The root side of system updates reads it, and verifies everything again: the agent's user may write these files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ota import files
from ota.errors import FetchError, NotInRepository, StoreError


class StagedRepository:
    """Implements `RepositorySource` for one staged system.

    Args:
        metadata: the directory of TUF's local metadata.
        document: the copy of the system's document.
    """

    def __init__(self, metadata: Path, document: Path) -> None:
        self._metadata, self._document = metadata, document

    def __str__(self) -> str:
        return str(self._metadata)

    def get(self, path: str, most_bytes: int) -> bytes:
        """Return a small file. See `RepositorySource`."""
        local = self._local(path)
        try:
            data = files.read(local, most_bytes)
        except StoreError as error:
            raise FetchError(f"{error.message}; 'edge-ota system apply' writes it again") from error
        if data is None:
            missing = NotInRepository if path.endswith(".root.json") else FetchError
            raise missing(f"{local} does not exist: 'edge-ota system apply' fetches it")
        return data

    def stream(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        """Refuse blobs: the files of a system are staged under other names."""
        raise NotInRepository(f"{path} is not staged")

    def _local(self, path: str) -> Path:
        if path.startswith("targets/system/"):
            return self._document
        folder, _, name = path.partition("/")
        if folder == "metadata":
            if re.fullmatch(r"[0-9]+\.root\.json", name):
                return self._metadata / "root_history" / name
            if found := re.fullmatch(r"(?:[0-9]+\.)?([a-z][a-zA-Z0-9_-]*\.json)", name):
                return self._metadata / found[1]
        raise NotInRepository(f"{path} is not staged")
