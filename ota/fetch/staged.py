"""The agent's state directory as a repository: the metadata that it verified, and the document of a staged system.

The root side of system updates reads it, and verifies everything again: the agent's user may write these files. No
symbolic link is followed, so that no other file is read in the place of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ota.errors import FetchError, NotInRepository
from ota.fetch.directory import DirectorySource


class StagedRepository:
    """Implements `RepositorySource` for one staged system.

    Args:
        document: the path of the system's document below `state_dir`.
    """

    def __init__(self, state_dir: Path, document: Path) -> None:
        self._state_dir, self._document = state_dir, document
        self._source = DirectorySource(state_dir)

    def __str__(self) -> str:
        return str(self._state_dir)

    def get(self, path: str, most_bytes: int) -> bytes:
        """Return a small file. See `RepositorySource`."""
        local = self._local(path)
        try:
            return self._source.get(local, most_bytes)
        except NotInRepository:
            if path.endswith(".root.json"):
                raise  # the root before is the newest
            raise FetchError(f"{self}/{local} does not exist: 'edge-ota system apply' fetches it") from None
        except FetchError as error:
            raise FetchError(f"{error.message}; 'edge-ota system apply' writes it again") from error

    def stream(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        """Refuse blobs: the files of a system are staged under other names."""
        raise NotInRepository(f"{path} is not staged")

    def _local(self, path: str) -> str:
        if path.startswith("targets/system/"):
            return str(self._document)
        folder, _, name = path.partition("/")
        if folder == "metadata":
            if re.fullmatch(r"[0-9]+\.root\.json", name):
                return f"metadata/root_history/{name}"
            if found := re.fullmatch(r"(?:[0-9]+\.)?([a-z][a-zA-Z0-9_-]*\.json)", name):
                return f"metadata/{found[1]}"
        raise NotInRepository(f"{path} is not staged")
