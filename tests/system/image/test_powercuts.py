"""Power cuts at random moments of a system update, from the request until the new system is confirmed (by hand)."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.system.disk import Disk
from tests.system.image.moments import Moments
from tests.system.image.test_updates import Device

CUTS = 20
SEED = 18


@pytest.fixture(scope="module")
def updated(image: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Device, Moments, list[Path]]]:
    """Update a device once, and yield it with the moments of its disk at which the power is cut."""
    update: Path | None = request.config.getoption("--update")
    assert update is not None, "--update <edge_N.build.json> names the newer image: make test-image-update builds it"
    disk = Disk(image)
    moments = Moments(disk)
    device = Device(disk, update)
    chance = random.Random(SEED)
    try:
        device.start()
        device.offer()
        begin = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(device.update_to_the_end)
            while not running.done():
                time.sleep(chance.uniform(1, 5))
                moments.freeze()
                print(f"moment {len(moments.files)}: {time.monotonic() - begin:.1f} s", flush=True)
        assert running.result()["version"] == device.new, disk.console()
        assert len(moments.files) >= CUTS
        chosen = sorted(chance.sample(range(len(moments.files)), CUTS))
        yield device, moments, [moments.files[one] for one in chosen]
    finally:
        disk.stop()


@pytest.mark.parametrize("cut", range(CUTS))
def test_the_device_serves_after_a_power_cut(updated: tuple[Device, Moments, list[Path]], cut: int) -> None:
    device, moments, chosen = updated
    moments.cut_at(chosen[cut])

    device.machine.start()
    assert device.serves()
    state = device.wait_for(lambda state: state["confirmed"])
    assert state["version"] in (device.old, device.new)
    print(f"cut at {chosen[cut].stem}: system {state['version']} serves; {device.faults()}", flush=True)
