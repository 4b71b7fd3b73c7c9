"""Repairs of releases whose record is lost: `edge-ota verify --repair`."""

from __future__ import annotations

from pathlib import Path

import pytest

from ota.agent.operator import actions, repair
from ota.errors import FetchError
from ota.store import history, releases, scrub
from ota.store.journal import UpdateStage
from ota.store.scrub import Damage
from tests.ota.bundles import files_of, sha256
from tests.ota.device import Device, device_with


@pytest.fixture
def device(tmp_path: Path) -> Device:
    """A device that serves release 16 of det, and served 15 before."""
    return device_with(tmp_path, 15, 16)


def damage(device: Device) -> list[Damage]:
    """Return what `edge-ota verify` finds."""
    return list(scrub.scrub(device.layout, repair.installed(device.layout)))


def record(device: Device, model: str = "det", release: int = 15) -> Path:
    return device.layout.release(model, release) / releases.RECORD


@pytest.mark.fault("D6")
@pytest.mark.parametrize("release", [15, 16])
def test_a_release_whose_record_is_lost_is_installed_again(device: Device, release: int) -> None:
    record(device, release=release).unlink()
    assert [str(one) for one in damage(device)] == [f"det {release}: its record is missing or damaged"]
    assert repair.repair(device.parts(), damage(device)) == []
    assert damage(device) == []
    assert history.read(device.layout)[-1]["message"] == "its record is missing or damaged: installed again"
    assert actions.roll_back(device.parts(), "det", "").active == 15
    assert device.server.serving == {"det": 15}


@pytest.mark.fault("D6")
def test_a_release_whose_files_are_lost_with_its_record_is_fetched_again(device: Device) -> None:
    model = files_of("det", 15)["15/model.onnx"]
    for path in (record(device), device.layout.release("det", 15) / "15/model.onnx", device.layout.blob(sha256(model))):
        path.unlink()
    assert repair.repair(device.parts(), damage(device)) == []
    assert (damage(device), device.fetcher.fetched[-1]) == ([], "15/model.onnx")


@pytest.mark.fault("D6")
def test_a_release_whose_record_and_blob_are_damaged_is_fetched_again(device: Device) -> None:
    device.publish("seg", 1)
    device.run()
    for path in (device.layout.release("det", 15) / "15/model.onnx", device.layout.release("seg", 1) / "1/model.onnx"):
        data = path.read_bytes()
        path.chmod(0o640)
        path.write_bytes(b"X" + data[1:])  # a hard link of its blob
    record(device).unlink()
    assert repair.repair(device.parts(), damage(device)) == []
    assert damage(device) == []


@pytest.mark.fault("D6")
def test_all_models_of_a_bundle_keep_their_variant(tmp_path: Path) -> None:
    """The files of the other variant are as long, and its blobs are on this device, too."""
    device, names = Device(tmp_path), ("front", "inner")
    variants = []
    for variant, priority in (("evil", 1), ("good", 9)):
        data = files_of(variant, 15)["15/model.onnx"]
        entry = {"path": "15/model.onnx", "sha256": sha256(data), "bytes": len(data)}
        of_models = {name: {"files": [entry]} for name in names}
        variants.append({"id": variant, "kind": "onnx", "priority": priority, "models": of_models})
        device.fetcher.blobs[sha256(data)] = data
    device.publish("pair", 15, {name: files_of(name, 15) for name in names}, variants=variants)
    device.trial.bad.add(("front", 15))
    assert device.outcomes()["pair"].error is not None
    device.trial.bad.clear()
    device.run()
    for lost in (("inner",), names):
        for name in lost:
            record(device, name).unlink()
        assert repair.repair(device.parts(), damage(device)) == []
        assert {one.variant for one in releases.every_release(device.layout)} == {"good"}
        assert damage(device) == []
    for name in names:
        record(device, name).unlink()
    (device.layout.release("front", 15) / "15/model.onnx").unlink()
    found = damage(device)
    assert repair.repair(device.parts(), found) == found, "it is unknown which variant this was"


def test_a_release_that_is_being_fetched_is_no_damage(device: Device) -> None:
    device.publish(release=17)
    device.fetcher.failures.append(FetchError("cut off"))
    assert device.outcomes()["det"].error is not None
    following = device.journal().next
    assert following is not None
    assert following.stage is UpdateStage.PLANNED
    assert damage(device) == []
    device.run()
    assert damage(device) == []


def test_without_a_manifest_the_damage_is_left(device: Device) -> None:
    record(device).unlink()
    device.layout.manifest("det", 15).unlink()
    found = damage(device)
    assert repair.repair(device.parts(), found) == found
