"""Defaults that are filled in."""

from __future__ import annotations

import pytest

from edge_serve.config.model.model_config_pb2 import ModelConfig, ModelInstanceGroup
from edge_serve.config.model.normalise import normalise, normalise_instance_groups
from edge_serve.config.model.text import parse_model_config
from edge_serve.errors import InvalidArgument


def _backend(text: str, *files: str, name: str = "m") -> tuple[str, str, str]:
    config = normalise(parse_model_config(text), name, files)
    return config.backend, config.platform, config.default_model_filename


@pytest.mark.parametrize(
    ("text", "files", "found"),
    [
        ("", ["model.onnx"], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ("", ["model.onnx/"], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ("", ["model.plan", "model.onnx"], ("tensorrt", "tensorrt_plan", "model.plan")),
        ("", ["model.plan/", "model.py"], ("python", "", "model.py")),
        ("", ["model.xml"], ("openvino", "", "model.xml")),
        ("", ["model.pt"], ("pytorch", "pytorch_libtorch", "model.pt")),
        ("", ["model.pt2"], ("pytorch", "torch_aoti", "model.pt2")),
        ('backend: "pytorch" runtime: "model.py"', ["model.py", "model.pt"], ("pytorch", "pytorch_libtorch", "")),
        ('backend: "python" runtime: "model.py"', ["model.py"], ("python", "", "model.py")),
        ('backend: "python"', ["model.onnx"], ("python", "", "model.py")),
        ('backend: "onnxruntime"', [], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ('platform: "onnxruntime_onnx"', [], ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ('platform: "torch_aoti"', [], ("pytorch", "torch_aoti", "model.pt2")),
        ('default_model_filename: "model.plan"', [], ("tensorrt", "tensorrt_plan", "model.plan")),
        ('default_model_filename: "net.bin"', ["model.onnx"], ("", "", "net.bin")),
        (
            'backend: "onnxruntime" default_model_filename: "net.onnx"',
            [],
            ("onnxruntime", "onnxruntime_onnx", "net.onnx"),
        ),
        ('backend: "my_own"', ["model.onnx"], ("my_own", "", "")),
        ("", ["model.savedmodel/", "model.onnx"], ("tensorflow", "tensorflow_savedmodel", "model.savedmodel")),
        ("", ["model.graphdef"], ("tensorflow", "tensorflow_graphdef", "model.graphdef")),
        ('platform: "tensorflow_graphdef"', [], ("tensorflow", "tensorflow_graphdef", "model.graphdef")),
        ('backend: "tensorflow"', ["model.graphdef"], ("tensorflow", "tensorflow_graphdef", "model.graphdef")),
        ("", ["model.tflite"], ("openvino", "", "model.tflite")),
        ("", ["model.pdmodel", "model.pdiparams"], ("openvino", "", "model.pdmodel")),
        ('backend: "openvino"', [], ("openvino", "", "model.xml")),
        ('backend: "openvino"', ["model.onnx"], ("openvino", "", "model.onnx")),
        ('backend: "openvino"', ["model.savedmodel/"], ("openvino", "", "model.savedmodel")),
        ('backend: "openvino" default_model_filename: "x.xml"', ["model.onnx"], ("openvino", "", "x.xml")),
        ('backend: "pytorch"', ["model.pt2"], ("pytorch", "torch_aoti", "model.pt2")),
        ('backend: "pytorch"', [], ("pytorch", "pytorch_libtorch", "model.pt")),
        ("", ["xgboost.json"], ("fil", "", "xgboost.json")),
        ("", ["xgboost.ubj"], ("fil", "", "xgboost.ubj")),
        ("", ["model.txt"], ("fil", "", "model.txt")),
        ("", ["checkpoint.tl"], ("fil", "", "checkpoint.tl")),
        ('backend: "fil"', ["model.txt"], ("fil", "", "model.txt")),
        ('backend: "fil"', [], ("fil", "", "")),
        ('backend: "onnxruntime" platform: "tensorrt_plan"', [], ("onnxruntime", "tensorrt_plan", "")),
        ('platform: "ensemble"', ["model.py"], ("", "ensemble", "")),
    ],
)
def test_backend_is_found(text: str, files: list[str], found: tuple[str, str, str]) -> None:
    assert _backend(text, *files) == found


def test_backend_in_the_models_name() -> None:
    assert _backend("", name="model.mine") == ("mine", "", "model.mine")


def test_no_backend_to_be_found() -> None:
    with pytest.raises(InvalidArgument, match="Could not determine backend for model 'm' with no backend in model"):
        _backend("", "model.bin")


def test_defaults() -> None:
    config = normalise(parse_model_config('backend: "python"'), "m")

    assert config.name == "m"
    assert config.version_policy.latest.num_versions == 1
    assert config.optimization.input_pinned_memory.enable
    assert config.optimization.output_pinned_memory.enable


def test_given_values_stay() -> None:
    text = """
    name: "n" backend: "python" max_batch_size: 8 version_policy { all {} }
    optimization { input_pinned_memory { enable: false } }
    dynamic_batching { preferred_batch_size: 4 }
    """
    config = normalise(parse_model_config(text), "m")

    assert config.name == "n"
    assert config.version_policy.WhichOneof("policy_choice") == "all"
    assert not config.optimization.input_pinned_memory.enable
    assert list(config.dynamic_batching.preferred_batch_size) == [4]


def test_whole_batches_are_preferred() -> None:
    dynamic = normalise(parse_model_config('backend: "x" max_batch_size: 8 dynamic_batching {}'), "m")
    oldest = normalise(parse_model_config('backend: "x" max_batch_size: 8 sequence_batching { oldest {} }'), "m")
    none = normalise(parse_model_config('backend: "x" dynamic_batching {}'), "m")
    direct = normalise(parse_model_config('backend: "x" max_batch_size: 8 sequence_batching { direct {} }'), "m")

    assert list(dynamic.dynamic_batching.preferred_batch_size) == [8]
    assert list(oldest.sequence_batching.oldest.preferred_batch_size) == [8]
    assert list(none.dynamic_batching.preferred_batch_size) == []
    assert direct.sequence_batching.WhichOneof("strategy_choice") == "direct"


def test_sequences_idle_a_second() -> None:
    config = normalise(parse_model_config('backend: "x" sequence_batching {}'), "m")
    given = normalise(parse_model_config('backend: "x" sequence_batching { max_sequence_idle_microseconds: 5 }'), "m")

    assert config.sequence_batching.max_sequence_idle_microseconds == 1_000_000
    assert given.sequence_batching.max_sequence_idle_microseconds == 5


def test_ensembles_get_no_optimization() -> None:
    config = normalise(parse_model_config('platform: "ensemble" ensemble_scheduling {}'), "m")

    assert not config.HasField("optimization")


def test_argument_is_left_alone_and_twice_is_once() -> None:
    config = parse_model_config("max_batch_size: 2 dynamic_batching {}")
    before = ModelConfig.FromString(config.SerializeToString())
    once = normalise(config, "m", ["model.onnx"])

    assert config == before
    assert normalise(once, "m", ["model.py"]) == once


def _groups(text: str, gpus: list[int], backend: str = "python") -> list[tuple[str, str, int, list[int]]]:
    config = normalise_instance_groups(parse_model_config(f'name: "m" backend: "{backend}" {text}'), gpus)
    kind = ModelInstanceGroup.Kind.Name
    return [(g.name, kind(g.kind), g.count, list(g.gpus)) for g in config.instance_group]


@pytest.mark.parametrize(
    ("text", "gpus", "backend", "found"),
    [
        ("", [], "python", [("m", "KIND_CPU", 1, [])]),
        ("", [], "onnxruntime", [("m", "KIND_CPU", 2, [])]),
        ("", [0, 1], "onnxruntime", [("m", "KIND_GPU", 1, [0, 1])]),
        ("instance_group {}", [], "python", [("m_0", "KIND_CPU", 1, [])]),
        ("instance_group { kind: KIND_AUTO gpus: 5 }", [0], "python", [("m_0", "KIND_CPU", 1, [5])]),
        ("instance_group { gpus: 1 }", [0, 1], "python", [("m_0", "KIND_GPU", 1, [1])]),
        ("instance_group { kind: KIND_MODEL count: 3 }", [0], "onnxruntime", [("m_0", "KIND_MODEL", 3, [])]),
        (
            'instance_group [ { name: "g" count: 2 kind: KIND_CPU }, { kind: KIND_CPU } ]',
            [0],
            "onnxruntime",
            [("g", "KIND_CPU", 2, []), ("m_1", "KIND_CPU", 2, [])],
        ),
    ],
)
def test_instance_groups(
    text: str, gpus: list[int], backend: str, found: list[tuple[str, str, int, list[int]]]
) -> None:
    assert _groups(text, gpus, backend) == found


def test_kind_auto_is_the_cpu_for_a_backend_that_cannot_use_a_gpu() -> None:
    config = parse_model_config('name: "m" instance_group [ {}, { kind: KIND_GPU } ]')
    kinds = [group.kind for group in normalise_instance_groups(config, [0], auto=False).instance_group]
    assert kinds == [ModelInstanceGroup.KIND_CPU, ModelInstanceGroup.KIND_GPU]


def test_ensembles_get_no_instance_group() -> None:
    config = parse_model_config('platform: "ensemble" ensemble_scheduling {}')

    assert not normalise_instance_groups(config).instance_group


def test_a_file_name_begins_in_the_directory_of_the_version() -> None:
    assert _backend('backend: "python" default_model_filename: "/tmp"') == ("python", "", "tmp")
