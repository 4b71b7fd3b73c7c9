"""Names in shared memory."""

from __future__ import annotations

import os

#: of a Triton that runs beside the tests, and of directories that other tests have there
_OTHERS = ("triton_", "edge-ota-", "edge-serve-test-")


def named_memory() -> frozenset[str]:
    """Return the names in /dev/shm that a server may have left there."""
    return frozenset(name for name in os.listdir("/dev/shm") if not name.startswith(_OTHERS))
