"""What lies in shared memory under a name."""

from __future__ import annotations

import os


def named_memory() -> frozenset[str]:
    """Names in /dev/shm, but for those of a Triton that runs beside the tests."""
    return frozenset(name for name in os.listdir("/dev/shm") if not name.startswith("triton_python_backend"))
