"""How much memory a device has left."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_serve.backends.cuda import memory
from tests.backends.cuda.host import HostCuda

TOTAL = 1 << 30


@pytest.mark.parametrize(
    ("integrated", "meminfo", "free"),
    [
        (True, "MemFree: 1024 kB\nMemAvailable: 819200 kB\n", 800 << 20),  # the cache of files is free, too
        (True, "MemFree: 1024 kB\nMemAvailable: 102400 kB\n", 256 << 20),
        (True, "MemFree: 1024 kB\nMemAvailable: 9999999 kB\n", TOTAL),
        (True, "", 256 << 20),
        (False, "MemFree: 1024 kB\nMemAvailable: 819200 kB\n", 256 << 20),
    ],
)
def test_cached_files_are_free_where_the_host_shares_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, integrated: bool, meminfo: str, free: int
) -> None:
    (tmp_path / "meminfo").write_text(meminfo)
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    cuda = HostCuda(memory=TOTAL, integrated=integrated)
    cuda.set_device(0)
    cuda.malloc(TOTAL - (256 << 20))

    assert memory.memory_info(cuda) == (free, TOTAL)
    assert memory.free_memory(cuda) == f"{free / 1e6:.1f} MB of {TOTAL / 1e6:.1f} MB are free on the device"
