"""Names in shared memory."""

from __future__ import annotations

import os
import time
from collections.abc import Collection

#: seconds; tests that run beside this one have names for a few seconds each
PATIENCE = 30.0
#: of a Triton that runs beside the tests, of directories that other tests have there, and of the stand-in for CUDA
_OTHERS = ("triton_", "edge-ota-", "edge-serve-test-", "edge-serve-cuda-")


def named_memory() -> frozenset[str]:
    """Return the names in /dev/shm that a server may have left there."""
    return frozenset(name for name in os.listdir("/dev/shm") if not name.startswith(_OTHERS))


def assert_gone(names: Collection[str]) -> None:
    """Wait until these names are gone. Those of tests beside this one are, some seconds later; a leak is not.

    Raises:
        AssertionError: some are still there.
    """
    end = time.monotonic() + PATIENCE
    while left := named_memory().intersection(names):
        assert time.monotonic() < end, f"left in shared memory: {left}"
        time.sleep(0.05)
