"""The parameters of config.pbtxt as properties of the library. Without the library."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from edge_serve.errors import InvalidArgument
from packs.openvino.settings import OpenVinoSettings, settings_of


def settings(parameters: Mapping[str, str] | None = None, instances: int = 1) -> OpenVinoSettings:
    given = parameters or {}
    return settings_of({"parameters": {key: {"string_value": value} for key, value in given.items()}}, instances)


def test_the_defaults() -> None:
    assert settings() == OpenVinoSettings("CPU", properties={"INFERENCE_PRECISION_HINT": "f32"})


@pytest.mark.parametrize(
    ("parameters", "properties"),
    [
        ({"INFERENCE_NUM_THREADS": "3"}, {"INFERENCE_NUM_THREADS": 3}),
        ({"COMPILATION_NUM_THREADS": "0"}, {}),
        (
            {"COMPILATION_NUM_THREADS": "2", "TARGET_DEVICE": "GPU"},
            {"COMPILATION_NUM_THREADS": 2},
        ),
        ({"PERFORMANCE_HINT": "throughput"}, {"PERFORMANCE_HINT": "THROUGHPUT"}),
        ({"NUM_STREAMS": "auto"}, {"NUM_STREAMS": "AUTO"}),
        ({"NUM_STREAMS": "NUMA"}, {"NUM_STREAMS": "NUMA"}),
        ({"NUM_STREAMS": "2"}, {"NUM_STREAMS": 2}),
        ({"HINT_BF16": "yes"}, {"INFERENCE_PRECISION_HINT": "bf16"}),
        ({"INFERENCE_PRECISION_HINT": "F16"}, {"INFERENCE_PRECISION_HINT": "f16"}),
    ],
)
def test_parameters_become_properties(parameters: dict[str, str], properties: dict[str, object]) -> None:
    assert settings(parameters).properties == {"INFERENCE_PRECISION_HINT": "f32", **properties}


def test_instances_have_streams_of_their_own_unless_asked_otherwise() -> None:
    assert settings({}, 3).properties["NUM_STREAMS"] == 3
    assert settings({"NUM_STREAMS": "1"}, 3).properties["NUM_STREAMS"] == 1
    assert "NUM_STREAMS" not in settings({"PERFORMANCE_HINT": "THROUGHPUT"}, 3).properties
    assert "NUM_STREAMS" not in settings({"TARGET_DEVICE": "AUTO"}, 3).properties


def test_an_npu_has_one_precision() -> None:
    assert settings({"TARGET_DEVICE": "npu"}) == OpenVinoSettings("NPU", properties={})


def test_switches() -> None:
    found = settings({"ENABLE_BATCH_PADDING": "YES", "RESHAPE_IO_LAYERS": "yes", "SKIP_OV_DYNAMIC_BATCHSIZE": "YES"})
    assert (found.pads, found.reshapes) == (True, True)
    found = settings({"ENABLE_BATCH_PADDING": "true", "RESHAPE_IO_LAYERS": "no"})
    assert (found.pads, found.reshapes) == (False, False)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "INFERENCE_NUM_THREADS",
            "x",
            "expected the parameter 'INFERENCE_NUM_THREADS' to be a non-negative number, got x",
        ),
        ("COMPILATION_NUM_THREADS", "-1", "to be a non-negative number, got -1"),
        ("HINT_BF16", "no", "expected the parameter 'HINT_BF16' to be YES, got no"),
        ("NUM_STREAMS", "many", "expected the parameter 'NUM_STREAMS' to be either AUTO/NUMA/<int_value>, got many"),
        ("PERFORMANCE_HINT", "fast", "to be LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT, got fast"),
        ("INFERENCE_PRECISION_HINT", "int8", "to be f32/f16/bf16/dynamic, got int8"),
    ],
)
def test_other_values_are_refused_with_tritons_texts(name: str, value: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        settings({name: value})
