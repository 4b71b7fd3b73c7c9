"""The lock file: only one edge-ota changes the state at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from ota import files
from ota.errors import AlreadyRunning
from ota.layout import StateLayout

_AGAIN = 0.05


@contextlib.contextmanager
def acquire_lock(layout: StateLayout, command: str, patience: float = 0.0) -> Iterator[None]:
    """Acquire the lock. The kernel releases it when this process ends.

    Args:
        patience: how many seconds to wait for another edge-ota.

    Raises:
        AlreadyRunning: another edge-ota has it.
        StoreError: the file cannot be opened.
    """
    files.make_directory(layout.state_dir, 0o750)
    with files.wrap_errors(layout.lock):
        descriptor = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _acquire(layout, descriptor, patience)
        owner = f"{os.getpid()} {command}\n".encode()
        with contextlib.suppress(OSError):  # only messages need it, and a full disk must not keep `gc` from its work
            os.pwrite(descriptor, owner, 0)
            os.ftruncate(descriptor, len(owner))
        yield
    finally:
        os.close(descriptor)


def _acquire(layout: StateLayout, descriptor: int, patience: float) -> None:
    until = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                pid, _, command = os.pread(descriptor, 200, 0).decode(errors="replace").strip().partition(" ")
                owner = f"'edge-ota {command}' (process {pid})" if command else "another edge-ota"
                raise AlreadyRunning(
                    f"{owner} works on {layout.state_dir}: wait until it ends, or stop a run of the timer with "
                    "'systemctl stop edge-ota', and repeat this command"
                ) from None
            time.sleep(_AGAIN)
