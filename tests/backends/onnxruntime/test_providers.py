"""Execution providers in a configuration. Keys and texts: Triton's onnxruntime_backend."""

from __future__ import annotations

from typing import Any

import pytest

from edge_serve.backends.onnxruntime.providers import Provider, notes, on_stream, providers
from edge_serve.errors import InvalidArgument


def parameters(**values: str) -> dict[str, Any]:
    return {"parameters": {key.replace("__", "."): {"string_value": value} for key, value in values.items()}}


def accelerated(side: str, *entries: dict[str, Any]) -> dict[str, Any]:
    return {"optimization": {"execution_accelerators": {f"{side}_execution_accelerator": list(entries)}}}


def test_providers_of_an_instance() -> None:
    both = accelerated("gpu", {"name": "tensorrt", "parameters": {"precision_mode": "FP16", "trt_dla_core": "1"}})
    assert providers({}, "CPU", 0) == [Provider("CPUExecutionProvider")]
    assert providers(both, "CPU", 0) == [Provider("CPUExecutionProvider")]
    assert providers(both, "GPU", 1) == [
        Provider("TensorrtExecutionProvider", {"trt_fp16_enable": "True", "trt_dla_core": "1", "device_id": "1"}),
        Provider("CUDAExecutionProvider", {"device_id": "1"}),
        Provider("CPUExecutionProvider"),
    ]
    openvino = accelerated("cpu", {"name": "openvino"})
    assert [provider.name for provider in providers(openvino, "CPU", 0)] == [
        "OpenVINOExecutionProvider",
        "CPUExecutionProvider",
    ]


def test_options_in_the_librarys_names() -> None:
    options = {"max_workspace_size_bytes": "5", "int8_calibration_table_name": "t", "precision_mode": "FP32"}
    tensorrt = accelerated("gpu", {"name": "tensorrt", "parameters": options})
    assert providers(tensorrt, "GPU", 0)[0].options == {
        "trt_max_workspace_size": "5",
        "trt_int8_calibration_table_name": "t",
        "device_id": "0",
    }
    old = parameters(cudnn_conv_algo_search="1", arena_extend_strategy="0", gpu_mem_limit="9")
    new = accelerated("gpu", {"name": "cuda", "parameters": {"gpu_mem_limit": "7"}})
    assert providers(old | new, "GPU", 0)[0].options == {
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kNextPowerOfTwo",
        "gpu_mem_limit": "7",
        "device_id": "0",
    }


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (accelerated("gpu", {"name": "warp"}), "unknown Execution Accelerator 'warp' is requested"),
        (accelerated("cpu", {"name": "tensorrt"}), "unknown Execution Accelerator 'tensorrt' is requested"),
        (
            accelerated("gpu", {"name": "tensorrt", "parameters": {"colour": "red"}}),
            "unknown parameter 'colour' is provided for TensorRT Execution Accelerator",
        ),
        (
            accelerated("gpu", {"name": "tensorrt", "parameters": {"precision_mode": "FP7"}}),
            "unsupported precision mode 'FP7' is requested",
        ),
        (
            accelerated("gpu", {"name": "tensorrt", "parameters": {"trt_colour": "red"}}),
            "unknown parameter 'trt_colour' is provided for TensorRT Execution Accelerator",
        ),
        (
            accelerated("gpu", {"name": "tensorrt", "parameters": {"trt_dla_core": "one"}}),
            "failed to convert 'one' to integral number",
        ),
        (
            accelerated("gpu", {"name": "tensorrt", "parameters": {"trt_sparsity_enable": "yes"}}),
            "failed to convert 'yes' to boolean",
        ),
        (
            accelerated("gpu", {"name": "tensorrt", "parameters": {"max_workspace_size_bytes": "1G"}}),
            "failed to convert '1G' to unsigned long long integral number",
        ),
        (
            accelerated("gpu", {"name": "cuda", "parameters": {"use_ep_level_unified_stream": "maybe"}}),
            "failed to convert 'maybe' to boolean",
        ),
        (
            accelerated("gpu", {"name": "cuda", "parameters": {"gpu_mem_limit": "2 GB"}}),
            "failed to convert '2 GB' to unsigned long long integral number",
        ),
        (parameters(arena_extend_strategy="2"), "unsupported arena_extend_strategy value '2' is requested"),
        (parameters(cudnn_conv_algo_search="3"), "unsupported cudnn_conv_algo_search value '3' is requested"),
    ],
)
def test_faulty_accelerators(config: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        providers(config, "GPU", 0)
    assert caught.value.message == text


def test_truth_values_as_the_python_api_takes_them() -> None:
    """TensorRT's are True and False alone: with "1", the session silently started on the CPU."""
    given = {"trt_engine_cache_enable": "1", "trt_timing_cache_enable": "off", "precision_mode": "INT8",
             "int8_use_native_calibration_table": "true", "trt_engine_cache_path": ""}  # fmt: skip
    assert providers(accelerated("gpu", {"name": "tensorrt", "parameters": given}), "GPU", 0)[0].options == {
        "trt_engine_cache_enable": "True",
        "trt_timing_cache_enable": "False",
        "trt_int8_enable": "True",
        "trt_int8_use_native_calibration_table": "True",
        "device_id": "0",
    }
    given = {
        "do_copy_in_default_stream": "ON",
        "use_ep_level_unified_stream": "false",
        "cudnn_conv_use_max_workspace": "0",
    }
    assert providers(accelerated("gpu", {"name": "cuda", "parameters": given}), "GPU", 0)[0].options == {
        "do_copy_in_default_stream": "1",
        "use_ep_level_unified_stream": "0",
        "cudnn_conv_use_max_workspace": "0",
        "device_id": "0",
    }


def test_the_device_and_the_stream_are_the_servers_own() -> None:
    given = {"device_id": "7", "user_compute_stream": "1", "has_user_compute_stream": "1"}
    wanted = providers(accelerated("gpu", {"name": "tensorrt"}, {"name": "cuda", "parameters": given}), "GPU", 1)
    assert [one.options for one in wanted] == [{"device_id": "1"}, {"device_id": "1"}, {}]
    own = {"device_id": "1", "user_compute_stream": "94"}
    assert [one.options for one in on_stream(wanted, 94)] == [own, own, {}]


def test_graphs_of_the_library_have_no_effect_and_a_line_in_the_log() -> None:
    config = accelerated(
        "gpu",
        {"name": "tensorrt", "parameters": {"trt_cuda_graph_enable": "1"}},
        {"name": "cuda", "parameters": {"enable_cuda_graph": "1", "gpu_mem_limit": "9"}},
    )
    assert [one.options for one in providers(config, "GPU", 0)] == [
        {"device_id": "0"},
        {"gpu_mem_limit": "9", "device_id": "0"},
        {},
    ]
    assert [line.split("'")[1] for line in notes(config)] == ["trt_cuda_graph_enable", "enable_cuda_graph"]
    assert notes({}) == []


def test_the_cpu_is_left_out_where_the_configuration_forbids_it() -> None:
    strict = parameters(session__disable_cpu_ep_fallback="1")
    assert [one.name for one in providers(strict, "GPU", 0)] == ["CUDAExecutionProvider"]
    assert [one.name for one in providers(strict, "CPU", 0)] == ["CPUExecutionProvider"]
