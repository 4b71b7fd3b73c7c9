"""Every committed configuration passes our own checks and names its own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_serve.config.checks.checks import check_model_config
from edge_serve.config.model.normalise import normalise
from edge_serve.config.model.text import parse_model_config
from edge_serve.config.signature import read_labels

REPOSITORY = Path(__file__).parents[2] / "model_repository"
MODELS = sorted(path.parent.name for path in REPOSITORY.glob("*/config.pbtxt"))


def test_the_repository_has_its_fifteen_models() -> None:
    assert len(MODELS) == 15


@pytest.mark.parametrize("name", MODELS)
def test_configuration_is_valid_and_complete(name: str) -> None:
    folder = REPOSITORY / name
    config = normalise(parse_model_config((folder / "config.pbtxt").read_bytes()), name)
    check_model_config(config)
    assert (folder / "1").is_dir()
    labelled = {output.name for output in config.output if output.label_filename}
    if name != "densenet_onnx" or (folder / "densenet_labels.txt").exists():  # the one file that is fetched
        assert read_labels(config, folder).keys() == labelled
    if config.HasField("ensemble_scheduling") or any(tensor.optional for tensor in config.input):
        assert not config.model_warmup  # nothing of its own to warm up, or no request that stands for all
        return
    (sample,) = config.model_warmup
    controls = [control.name for control in config.sequence_batching.control_input]
    assert set(sample.inputs) == {tensor.name for tensor in config.input} | set(controls)
    for tensor in sample.inputs.values():
        assert -1 not in tensor.dims
        assert not tensor.input_data_file or (folder / "warmup" / tensor.input_data_file).is_file()
