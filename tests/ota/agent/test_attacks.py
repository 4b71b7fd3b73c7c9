"""Attacks on the whole line: a thief of a models key, and releases that are signed twice or share a model's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ota.decide.probation import ProbationVerdict
from ota.errors import Occupied, Untrusted
from tests.ota.bundles import files_of, sha256
from tests.ota.device import Device, check_whole, device_with

TENSORRT = b"""platform: "onnxruntime_onnx"
optimization { execution_accelerators { gpu_execution_accelerator: [ { name: "tensorrt" } ] } }
"""


@pytest.fixture
def device(tmp_path: Path) -> Device:
    """A device that serves release 16."""
    return device_with(tmp_path, 16)


@pytest.mark.fault("T9", "U6")
def test_an_engine_inside_an_onnx_file_is_code(device: Device) -> None:
    graph = b"." * (1024 * 1024 - 4) + b"EPContext"
    models = {"det": {"config.pbtxt": TENSORRT, "17/model.onnx": graph, "17/w.bin": b"."}}
    device.publish(release=17, models=models)
    with pytest.raises(Untrusted, match=r"17/model.onnx runs as code \(it has a compiled engine\)"):
        device.run()
    device.trust.documents[f"engines/vision/{sha256(graph)}"] = graph
    assert device.run()["det"].release == 17


@pytest.mark.fault("T9", "U6")
def test_an_engine_in_the_file_of_another_model_of_the_release_is_code(device: Device) -> None:
    """The configuration of a model with the provider could name that file."""
    models = {"det": {"config.pbtxt": TENSORRT, "17/model.onnx": b"."}, "post": files_of("post", 17)}
    models["post"]["17/model.onnx"] = b"EPContext"
    device.publish(release=17, models=models)
    with pytest.raises(Untrusted, match=r"post: 17/model.onnx runs as code \(it has a compiled engine\)"):
        device.run()


@pytest.mark.fault("T9", "U6")
def test_a_configuration_with_odd_escapes_runs_if_the_role_engines_lists_it(device: Device) -> None:
    config = TENSORRT + rb'default_model_filename: "\155odel.onnx"'
    device.publish(release=17, models={"det": {"config.pbtxt": config, "17/model.onnx": b"."}})
    with pytest.raises(Untrusted, match=r"config.pbtxt runs as code \(.* has the escape"):
        device.run()
    device.trust.documents[f"engines/vision/{sha256(config)}"] = config
    assert device.run()["det"].release == 17


@pytest.mark.fault("T9", "T10")
def test_a_family_runs_no_code_that_is_approved_for_another_one(device: Device) -> None:
    code = b"import pickle"
    device.publish(release=17, models={"det": {**files_of("det", 17), "17/model.py": code}}, family="other")
    device.trust.documents[f"engines/other/{sha256(code)}"] = code
    with pytest.raises(Untrusted, match="the manifest of det 17 is of the family other, not vision"):
        device.run()


@pytest.mark.fault("T13")
def test_a_name_that_would_command_a_terminal_is_refused(device: Device) -> None:
    variants = [{"id": "a", "kind": "onnx", "priority": 1, "match": {"\x1b[2J": "x"}}]
    device.publish(release=17, variants=variants)
    with pytest.raises(Untrusted, match=r'match is "\\u001b\[2J", expected names of printable characters'):
        device.run()


@pytest.mark.fault("U4", "T9")
def test_a_bundle_takes_no_model_that_another_one_may_go_back_to(device: Device) -> None:
    old = {"det": files_of("det", 17), "extra": files_of("extra", 17)}
    device.publish(release=17, models=old)
    device.run()
    device.publish(release=18)
    device.run()
    device.publish("evil", 17, {"extra": {**files_of("extra", 17), "labels.txt": b"of a thief"}})
    with pytest.raises(Occupied, match="evil 17 has the model extra, which the bundle det has in release 17"):
        device.run()
    assert not (device.layout.release("extra", 17) / "labels.txt").exists()
    device.want("det", 17)
    assert device.outcomes()["det"].release == 17
    assert device.server.serving == {"det": 17, "extra": 17}


@pytest.mark.fault("U4", "T9")
def test_a_bundle_takes_no_model_of_a_release_that_waits_for_its_hours(device: Device) -> None:
    device.publish(release=17, models={"det": files_of("det", 17), "extra": files_of("extra", 17)})
    device.want("det", 17, window="03:00-03:01")
    device.run()
    device.publish("evil", 17, {"extra": {**files_of("extra", 17), "labels.txt": b"of a thief"}})
    with pytest.raises(Occupied, match="which the bundle det has in release 17"):
        device.run()
    device.want("det", 17)
    assert device.outcomes()["det"].release == 17
    assert check_whole(device.repository / "extra") == 17
    assert not (device.layout.release("extra", 17) / "labels.txt").exists()


@pytest.mark.fault("R7")
def test_a_release_that_is_signed_again_while_it_waits_is_fetched_again(device: Device) -> None:
    device.publish(release=17)
    device.want("det", 17, window="03:00-03:01")
    assert device.run()["det"].release == 16
    other = {"det": {**files_of("det", 17), "17/model.onnx": b"other weights"}}
    device.publish(release=17, models=other)
    assert device.run()["det"].release == 17
    assert (device.repository / "det" / "17/model.onnx").read_bytes() == b"other weights"
    assert device.trial.tried[-2:] == [("det", 17), ("det", 17)]


@pytest.mark.fault("R1")
@pytest.mark.parametrize(("previous", "serving"), [(16, {"det": 16}), (0, {})])
def test_a_release_denied_during_its_probation_is_removed(
    device: Device, previous: int, serving: dict[str, int]
) -> None:
    device.publish(release=17)
    device.probation.verdicts = [(ProbationVerdict.WAIT, "it does not serve")] * 10_000
    assert device.run()["det"].waiting_for == "probation: it does not serve"
    device.want("det", 17, previous=previous, deny=[17] if previous else [16, 17])
    device.run()
    assert device.server.serving == serving
    device.probation.verdicts = []
    device.want("det", 17)
    assert device.run()["det"].release == 17, "it is not on the list of bad releases"


def test_a_bundle_with_another_name_takes_the_models_of_one_whose_releases_are_denied(device: Device) -> None:
    device.want("det", 16, deny=[16])
    device.publish("renamed", 17, {"det": files_of("det", 17)})
    device.run()
    assert device.server.serving == {"det": 17}
