"""config/stages.py: a model directory becomes a configuration, compared with what Triton 2.51 answered.

triton_configs.json holds config.pbtxt files and, as Triton printed them at `/v2/models/<m>/config`, their results.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edge_serve.config.checks.ensemble import check_ensemble_members, member_key
from edge_serve.config.model.json_form import model_config_from_json, model_config_to_json
from edge_serve.config.model.model_config_pb2 import ModelConfig
from edge_serve.config.stages import load_model_config, merge_completed, settle_instances
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, UnreadableEntry

RECORDED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("triton_configs.json").read_text())


def _write(root: Path, name: str, text: str | None, filename: str = "model.py") -> Path:
    """A model directory with one version."""
    model = root / name
    (model / "1").mkdir(parents=True)
    (model / "1" / filename).touch()
    if text is not None:
        (model / "config.pbtxt").write_text(text)
    return model


def _load(root: Path, repository: str, name: str) -> ModelConfig:
    """All stages of a load for a recorded model, members of an ensemble included."""
    text = RECORDED[f"{repository}/{name}"]["text"]
    model = root / name if (root / name).exists() else _write(root, name, text)
    config = merge_completed(settle_instances(load_model_config(model, auto_complete=True)), None)
    steps = config.ensemble_scheduling.step
    if steps:
        members = {member_key(step): _load(root, repository, step.model_name) for step in steps}
        config.model_transaction_policy.decoupled = check_ensemble_members(config, members)
    return config


@pytest.mark.parametrize("key", [key for key, record in RECORDED.items() if "json" in record])
def test_same_answer_as_triton(key: str, tmp_path: Path) -> None:
    repository, name = key.split("/")
    config = _load(tmp_path, repository, name)
    document = model_config_to_json(config)

    assert document == RECORDED[key]["json"]
    assert model_config_from_json(RECORDED[key]["json"]) == config


def test_the_recording_is_there() -> None:
    assert sum("json" in record for record in RECORDED.values()) > 50


def test_missing_file_is_completed(tmp_path: Path) -> None:
    config = load_model_config(_write(tmp_path, "m", None, "model.onnx"), auto_complete=True)

    assert (config.name, config.backend) == ("m", "onnxruntime")


def test_missing_file_without_auto_completion(tmp_path: Path) -> None:
    with pytest.raises(Internal, match=r"failed to open text file for read .*config\.pbtxt: No such file"):
        load_model_config(_write(tmp_path, "m", None), auto_complete=False)


def test_no_version_directory(tmp_path: Path) -> None:
    (tmp_path / "m" / "abc").mkdir(parents=True)
    (tmp_path / "m" / "abc" / "model.py").touch()

    with pytest.raises(InvalidArgument, match="Could not determine backend for model 'm'"):
        load_model_config(tmp_path / "m", auto_complete=True)


def test_no_directory_at_all(tmp_path: Path) -> None:
    with pytest.raises(Internal, match="failed to open directory"):
        load_model_config(tmp_path / "m", auto_complete=True)


def test_lowest_version_determines_the_backend(tmp_path: Path) -> None:
    model = _write(tmp_path, "m", None, "model.onnx")
    (model / "10").mkdir()
    (model / "10" / "model.plan").touch()

    assert load_model_config(model, auto_complete=True).backend == "onnxruntime"


def test_name_must_be_the_directory_s(tmp_path: Path) -> None:
    model = _write(tmp_path, "m", 'name: "other" backend: "python"')
    with pytest.raises(InvalidArgument) as caught:
        load_model_config(model, auto_complete=True)

    assert caught.value.message == (
        "unexpected directory name 'm' for model 'other', directory name must equal model name; remove the line name: "
        '"other" from config.pbtxt, or: mv m other'
    )


def test_errors_name_the_model_and_hide_the_path(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument) as caught:
        load_model_config(_write(tmp_path, "m", "colour: 3"), auto_complete=True)

    assert caught.value.message.startswith("m/config.pbtxt:1:1: unknown field 'colour'")
    assert str(tmp_path) not in caught.value.message


INCOMPLETE = 'backend: "python" input { name: "X" data_type: TYPE_INT32 }'
NO_DIMS = "model input 'X' must specify 'dims' for m"


def test_inputs_are_checked_at_once_without_auto_completion(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=NO_DIMS):
        load_model_config(_write(tmp_path, "m", INCOMPLETE), auto_complete=False)


def test_inputs_are_checked_after_auto_completion(tmp_path: Path) -> None:
    config = load_model_config(_write(tmp_path, "m", INCOMPLETE), auto_complete=True)
    with pytest.raises(InvalidArgument, match=NO_DIMS):
        merge_completed(config, None)

    document = model_config_to_json(config)
    document["input"][0]["dims"] = [3]
    assert list(merge_completed(config, document).input[0].dims) == [3]


def test_completed_configuration_is_normalised_again(tmp_path: Path) -> None:
    config = load_model_config(_write(tmp_path, "m", None), auto_complete=True)
    document = model_config_to_json(config) | {"max_batch_size": 8, "dynamic_batching": {}}

    assert list(merge_completed(config, document).dynamic_batching.preferred_batch_size) == [8]


@pytest.mark.parametrize(
    "change", [{"name": "other"}, {"max_batch_size": -1}, {"no_such_field": 1}, {"input": [{"name": "X"}]}]
)
def test_configuration_from_the_model_is_checked(tmp_path: Path, change: dict[str, Any]) -> None:
    config = load_model_config(_write(tmp_path, "m", None), auto_complete=True)

    with pytest.raises(EdgeServeError):
        merge_completed(config, model_config_to_json(config) | change)


def test_custom_configuration(tmp_path: Path) -> None:
    model = _write(tmp_path, "m", "max_batch_size: 1")
    (model / "configs").mkdir()
    (model / "configs" / "h100.pbtxt").write_text("max_batch_size: 2")

    assert load_model_config(model, auto_complete=True, config_name="h100").max_batch_size == 2
    assert load_model_config(model, auto_complete=True, config_name="a100").max_batch_size == 1


def test_override_replaces_the_file(tmp_path: Path) -> None:
    model = _write(tmp_path, "m", "max_batch_size: 1 response_cache { enable: true }")
    config = load_model_config(model, auto_complete=True, override='{"max_batch_size": "2"}')

    assert (config.max_batch_size, config.response_cache.enable, config.backend) == (2, False, "python")


@pytest.mark.parametrize("override", ["", "{", "[]", '{"colour": 1}', b"\xff"])
def test_bad_override(tmp_path: Path, override: str | bytes) -> None:
    with pytest.raises(InvalidArgument, match=r"^Invalid config override: "):
        load_model_config(_write(tmp_path, "m", None), auto_complete=True, override=override)


def test_instances_are_settled_for_the_machine(tmp_path: Path) -> None:
    model = _write(tmp_path, "m", "instance_group { kind: KIND_GPU }")
    config = load_model_config(model, auto_complete=True)

    assert list(settle_instances(config, [0]).instance_group[0].gpus) == [0]
    with pytest.raises(InvalidArgument, match="instance group m_0 of model m has kind KIND_GPU but no GPUs"):
        settle_instances(config, [])
    with pytest.raises(InvalidArgument, match="server does not support GPUs"):
        settle_instances(config)


def test_file_that_is_no_file(tmp_path: Path) -> None:
    model = _write(tmp_path, "m", None)
    (model / "config.pbtxt").mkdir()

    with pytest.raises(Internal, match="not a file"):
        load_model_config(model, auto_complete=True)


@pytest.mark.parametrize("config_name", [None, "h100"])
def test_a_link_whose_target_is_gone_is_not_a_missing_file(tmp_path: Path, config_name: str | None) -> None:
    model = _write(tmp_path, "m", "max_batch_size: 1" if config_name else None)
    (model / "configs").mkdir()
    link = model / "configs" / "h100.pbtxt" if config_name else model / "config.pbtxt"
    link.symlink_to(tmp_path / "shared.pbtxt")

    with pytest.raises(Internal, match=r"pbtxt: No such file or directory; it is a link to a file that does not exist"):
        load_model_config(model, auto_complete=True, config_name=config_name)

    (tmp_path / "shared.pbtxt").write_text("max_batch_size: 2")
    assert load_model_config(model, auto_complete=True, config_name=config_name).max_batch_size == 2


def test_a_circle_of_links_is_not_a_missing_file(tmp_path: Path) -> None:
    model = _write(tmp_path, "m", None)
    (model / "config.pbtxt").symlink_to("config.pbtxt")

    with pytest.raises(UnreadableEntry, match="Too many levels of symbolic links"):
        load_model_config(model, auto_complete=True)
