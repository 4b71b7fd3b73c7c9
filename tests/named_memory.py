"""What lies in shared memory under a name."""

from __future__ import annotations

import os

#: of a Triton that runs beside the tests, and of the repositories of tests/ota
_OTHERS = ("triton_python_backend", "edge-ota-")


def named_memory() -> frozenset[str]:
    """Return the names in /dev/shm that a server may have left there."""
    return frozenset(name for name in os.listdir("/dev/shm") if not name.startswith(_OTHERS))
