"""Dismisses failures of versions that are gone from the repository, so that they no longer count for readiness."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from edge_serve.aio.offload import offload
from edge_serve.models.control.records import ModelRecord

log = logging.getLogger(__name__)


async def dismiss_gone(records: Iterable[ModelRecord]) -> None:
    """Dismiss each failed version whose directory does not exist any more. Reads the disk only if a version failed."""
    failed = [version for record in records for version in record.failed()]
    found = {version.directory: version for version in failed if version.directory is not None}
    for directory in await offload(_gone, list(found)) if found else ():
        version = found[directory]
        if version.directory == directory:  # it was not loaded again meanwhile
            version.dismissed = True
            log.info("%s is gone: that this version failed to load no longer counts", directory)


def _gone(directories: Iterable[Path]) -> list[Path]:
    """Return the directories that do not exist. One that cannot be read may exist."""
    gone = []
    for directory in directories:
        try:
            directory.stat()
        except (FileNotFoundError, NotADirectoryError):
            gone.append(directory)
        except OSError:
            continue
    return gone
