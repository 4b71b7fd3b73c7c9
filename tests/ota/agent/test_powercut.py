"""Power cuts at every operation of an update. After each: a release serves that is whole, and a later run succeeds."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ota.agent.boot import Boot
from ota.decide.probation import ProbationVerdict
from ota.errors import OtaError
from ota.files import DiskOperation
from tests.ota.bundles import Files, files_of
from tests.ota.clock import NOW
from tests.ota.device import Device
from tests.ota.powercut import Disk, Tree, crash_states, put, recorded

ENSEMBLE = ("inner", "outer")


def models_of(bundle: str, release: int) -> dict[str, Files]:
    names = ENSEMBLE if bundle == "pair" else (bundle,)
    return {model: files_of(model, release) for model in names}


class Update:
    """An update of a bundle from 16 to 17, recorded; `fresh` gives a device after a cut."""

    def __init__(self, root: Path, bundle: str, verdict: ProbationVerdict = ProbationVerdict.GOOD) -> None:
        self.root, self.bundle = root / "device", bundle
        self.models = tuple(models_of(bundle, 1))
        self.verdict = verdict
        device = self.fresh(15)
        device.run()
        self.publish(device, 16)
        device.run()
        self.before = root / "before"
        shutil.copytree(self.root, self.before, symlinks=True)  # without hard links, which changes nothing here
        self.publish(device, 17)
        device.probation.verdicts = [(verdict, "slow")]
        with recorded(device.layout.status) as self.operations:
            device.outcomes()
        self.end = dict(device.server.serving)

    def publish(self, device: Device, release: int) -> None:
        device.publish(self.bundle, release, models_of(self.bundle, release))

    def fresh(self, release: int = 17) -> Device:
        device = Device(self.root)
        self.publish(device, release)
        return device

    def restore(self) -> None:
        """Put the device back to where the recording began."""
        shutil.rmtree(self.root)
        shutil.copytree(self.before, self.root, symlinks=True)

    def states(self, forgetful: Callable[[str], bool] = lambda path: False) -> Iterator[tuple[int, Tree]]:
        self.restore()
        disk = Disk(self.root, forgetful)
        for count, tree in crash_states(self.root, self.operations, disk):
            put(tree, self.root)
            yield count, tree

    def check(self, count: int) -> None:
        """Start the device, and run the agent."""
        device = self.fresh()
        lines: list[str] = []
        Boot(device.settings, NOW, lines.append).run()
        device.server.start()  # checks the files of each release that a link names
        serving = {device.server.serving.get(model) for model in self.models}
        assert serving in ({16}, {17}), f"{device.server.serving} serve after {lines}"
        if count == len(self.operations):
            assert device.server.serving == self.end, f"{device.server.serving} serve after {lines}"
        device.outcomes()
        assert {device.server.serving[model] for model in self.models} == {self.good(device)}

    def good(self, device: Device) -> int:
        """Return the release that must serve after a good run: 17, unless it was remembered as bad."""
        entry = device.journal(self.bundle)
        assert entry.next is None
        assert entry.active == (17 if self.verdict is ProbationVerdict.GOOD else entry.active)
        return entry.active

    def violations(self, states: Iterator[tuple[int, Tree]]) -> Iterator[str]:
        """Yield "" for each state after which all is well, else what is wrong."""
        for count, _ in states:
            before = self.operations[count - 1] if count else DiskOperation("start", "")
            try:
                self.check(count)
            except (AssertionError, OtaError, OSError, KeyError) as error:
                yield f"after {count} ({before.kind} {before.path}): {error}"
            else:
                yield ""


@pytest.mark.fault("C2")
@pytest.mark.parametrize(
    ("bundle", "verdict", "step"),
    [
        pytest.param("det", ProbationVerdict.GOOD, 9, id="an-update"),
        pytest.param("det", ProbationVerdict.BAD, 19, id="a-way-back"),
        pytest.param("pair", ProbationVerdict.GOOD, 53, id="two-models"),
        pytest.param("det", ProbationVerdict.GOOD, 1, id="an-update-every-state", marks=pytest.mark.slow),
        pytest.param("det", ProbationVerdict.BAD, 1, id="a-way-back-every-state", marks=pytest.mark.slow),
        pytest.param("pair", ProbationVerdict.GOOD, 1, id="two-models-every-state", marks=pytest.mark.slow),
        pytest.param("pair", ProbationVerdict.BAD, 1, id="two-models-back-every-state", marks=pytest.mark.slow),
    ],
)
def test_after_each_power_cut_a_whole_release_serves(
    tmp_path: Path, bundle: str, verdict: ProbationVerdict, step: int
) -> None:
    update = Update(tmp_path, bundle, verdict)
    found = list(update.violations(itertools.islice(update.states(), None, None, step)))
    assert [one for one in found if one] == []
    assert len(found) * step > 150


@pytest.mark.fault("C2")
@pytest.mark.parametrize(
    "places",
    [
        pytest.param("/partial/", id="blobs"),
        pytest.param("/stage/det.17/17/$", id="directories-of-a-release", marks=pytest.mark.slow),
        pytest.param("/stage/$|/releases/det/$", id="the-rename-of-a-release", marks=pytest.mark.slow),
        pytest.param("/.release.json/", id="records", marks=pytest.mark.slow),
        pytest.param("/journal/", id="journals", marks=pytest.mark.slow),
    ],
)
def test_an_fsync_that_is_left_out_is_found(tmp_path: Path, places: str) -> None:
    update = Update(tmp_path, "det")
    assert any(update.violations(update.states(lambda path: re.search(places, f"{path}/") is not None)))


@pytest.mark.fault("C4")
@pytest.mark.slow
@pytest.mark.parametrize("verdict", [ProbationVerdict.GOOD, ProbationVerdict.BAD])
def test_power_cuts_during_the_recovery_from_power_cuts(tmp_path: Path, verdict: ProbationVerdict) -> None:
    update = Update(tmp_path, "det", verdict)
    first = [tree for _, tree in itertools.islice(update.states(), None, None, 7)]
    tried = 0
    for tree in first:
        put(tree, update.root)
        before = tmp_path / "second"
        shutil.copytree(update.root, before, symlinks=True, dirs_exist_ok=False)
        device = update.fresh()
        with recorded(device.layout.status) as operations:
            Boot(device.settings, NOW, lambda text: None).run()
            device.server.start()
            device.outcomes()
        shutil.rmtree(update.root)
        before.rename(update.root)
        disk = Disk(update.root)
        for count, again in itertools.islice(crash_states(update.root, operations, disk), None, None, 11):
            put(again, update.root)
            tried += 1
            assert list(update.violations(iter([(0, again)]))) == [""], f"after {count} of {len(operations)}"
    assert tried > 100
