"""`edge-ota status` about the version floors. K3."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ota.cli import main
from ota.layout import StateLayout
from tests.ota.simulator import Repository
from tests.ota.trust.device import Device


@pytest.fixture
def state(tmp_path: Path, repository: Repository) -> Device:
    """A device whose files lie where the agent has them."""
    layout = StateLayout(tmp_path / "state")
    device = Device(layout.state_dir, repository.root())
    device.places = (layout.floors, tmp_path / "copy.json")
    return device


def _status(device: Device, *flags: str) -> int:
    where = ["--state-dir", str(device.metadata.parent), "--floor-copy", str(device.places[1])]
    return main(["status", *where, *flags])


@pytest.mark.fault("K3")
def test_lost_floors_are_shown(repository: Repository, state: Device, capsys: pytest.CaptureFixture[str]) -> None:
    state.run(repository)
    assert _status(state) == 0
    assert "floors" not in capsys.readouterr().out

    state.lose_floors()
    repository.advance(4e9 - repository.now)  # `status` asks the real clock
    repository.publish_root()
    repository.publish()
    state.run(repository, 4e9)
    assert _status(state) == 0
    assert "both copies of the version floors were lost" in capsys.readouterr().out
    assert _status(state, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["floors_lost"] == 4e9
    assert document["floors_warnings"] == []


@pytest.mark.fault("K1")
def test_a_clock_that_is_not_set_is_shown(
    state: Device, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state.metadata.mkdir(parents=True)
    monkeypatch.setattr(time, "time", lambda: 4e9)
    for issued, is_shown in ((4e9 - 60, False), (4e9 + 3600, True)):
        floors = state.floors()
        floors.issued = issued
        floors.save()
        assert _status(state) == 0
        assert ("clock: the clock of this device is not set" in capsys.readouterr().out) == is_shown


@pytest.mark.fault("K3")
def test_a_damaged_copy_is_shown(repository: Repository, state: Device, capsys: pytest.CaptureFixture[str]) -> None:
    state.run(repository)
    state.places[1].write_bytes(b"\x00" * 100)

    assert _status(state) == 0
    assert f"version floors ignored: {state.places[1]} is not JSON" in capsys.readouterr().out


def test_the_password_of_the_repository_is_not_shown(
    repository: Repository, state: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    state.run(repository)
    assert _status(state, "--url", "https://user:secret@ota.example/fleet /mnt/mirror") == 0
    assert "no release is installed; 'edge-ota check' asks ota.example/fleet /mnt/mirror" in capsys.readouterr().out
