"""Power cuts at every operation of the agent: whatever is left, the next run hands over whole files, and only those."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ota.files import DiskOperation
from tests.ota.powercut import Disk, crash_states, put, recorded
from tests.ota.system.root_side import root_side
from tests.ota.system.test_update import FILES, SystemDevice


class Cuts:
    """An update of the system from 1 to 2, recorded."""

    def __init__(self, base: Path) -> None:
        self.root = base / "device"
        device = self.fresh()
        device.want_system(1)
        device.run()
        self.before = base / "before"
        shutil.copytree(self.root, self.before)
        self.operations: list[DiskOperation] = []
        with recorded(device.layout.status) as self.operations:
            self.check(self.fresh())

    def fresh(self) -> SystemDevice:
        """Return the device after a start."""
        device = SystemDevice(self.root)
        device.publish_system()
        device.serial += 10
        device.want_system(2)
        return device

    def check(self, device: SystemDevice) -> None:
        """Run the agent; the root side finds three whole files."""

        def install(request: Mapping[str, Any]) -> Mapping[str, Any]:
            folder = device.layout.staged_system(2)
            for kind, ending in FILES.items():
                assert (folder / f"edge_2{ending}").read_bytes() == f"{kind} of 2".encode() * 100
            return {"ok": True}

        with root_side(device.image.root, install) as asked:
            assert device.waits() == "2 is installed, and the device restarts into it"
        assert asked == [{"op": "install", "version": 2}]

    def states(self) -> Iterator[int]:
        """Put each state on disk that a power cut could leave."""
        shutil.rmtree(self.root)
        shutil.copytree(self.before, self.root)
        for count, tree in crash_states(self.root, self.operations, Disk(self.root)):
            put(tree, self.root)
            yield count


@pytest.mark.fault("X2")
@pytest.mark.parametrize(
    "step", [pytest.param(7, id="some-states"), pytest.param(1, id="every-state", marks=pytest.mark.slow)]
)
def test_after_each_power_cut_the_next_run_hands_over_whole_files(tmp_path: Path, step: int) -> None:
    cuts = Cuts(tmp_path)
    found = 0
    for _ in itertools.islice(cuts.states(), None, None, step):
        cuts.check(cuts.fresh())
        found += 1
    assert found * step > 60
