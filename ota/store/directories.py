"""The directories of the state, and their permissions."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from pathlib import Path

from ota import files
from ota.layout import StateLayout

#: directories that the server's group may read; files in them have FILE_MODE
SHARED_MODE = 0o750
FILE_MODE = 0o640
PRIVATE_MODE = 0o700


def prepare(layout: StateLayout) -> None:
    """Create the missing directories.

    `state_dir` is setgid, so that each file below it has its group: that of edge-serve, which `SHARED_MODE` lets read.

    Raises:
        StoreError: the disk does not take them.
    """
    files.make_directory(layout.state_dir, SHARED_MODE)
    _set_mode(layout.state_dir, stat.S_ISGID | SHARED_MODE)
    shared = (layout.releases, layout.state_dir / "blobs", layout.stage, layout.partial, layout.trial)
    for one in shared:
        files.make_directory(one, SHARED_MODE)
        _set_mode(one, stat.S_ISGID | SHARED_MODE)
    for one in (layout.metadata, layout.journal, layout.manifests, layout.outbox):
        files.make_directory(one, PRIVATE_MODE)


def check_readable(layout: StateLayout) -> None:
    """Refuse a user without permission to read the state, for whom no release would be visible.

    Raises:
        StoreError: with the way out.
    """
    with files.wrap_errors(layout.journal), contextlib.suppress(FileNotFoundError):
        os.listdir(layout.journal)


def become_owner(state_dir: Path) -> None:
    """Change from root to the user that owns the state, because the agent could not read files of root."""
    with contextlib.suppress(OSError):  # no state yet, or a container that cannot change users
        owner = state_dir.stat().st_uid
        if os.geteuid() != 0 or owner == 0:
            return
        group = state_dir.stat().st_gid
        with contextlib.suppress(KeyError):
            user = pwd.getpwuid(owner)
            os.initgroups(user.pw_name, user.pw_gid)
            group = user.pw_gid
        os.setgid(group)
        os.setuid(owner)


def _set_mode(path: Path, mode: int) -> None:
    with files.wrap_errors(path):
        if stat.S_IMODE(path.stat().st_mode) != mode:
            files.chmod(path, mode)
