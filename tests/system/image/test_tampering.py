"""A root with one changed byte, on the image as shipped. test_updates has the same with a system to go back to."""

from __future__ import annotations

from pathlib import Path

from tests.system.disk import Disk
from tests.system.image.esp import before_superblock, flip
from tests.system.machine import Machine, wait_until
from tests.system.service import Service


def test_verity_refuses_a_root_with_one_changed_byte(image: Path) -> None:
    boot = Disk(image, shipped=True)
    try:
        flip(boot.disk, before_superblock(boot.disk, "edge_"))
        boot.start()
        refused = wait_until(lambda: "There is no other system to start" in boot.since_start(), 30 * boot.patience, 0.5)
        print(boot.console()[-1500:])
        assert refused
        assert "its root cannot be used" in boot.since_start()
        assert "Timed out waiting for device" not in boot.since_start(), "the initrd waits for nothing"
        assert Service(Machine(boot)).status_of("GET", "/v2/health/live") != 200
    finally:
        boot.stop()
