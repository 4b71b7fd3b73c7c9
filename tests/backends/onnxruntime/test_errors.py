"""Errors of ONNX Runtime on a GPU: which end the use of the device, and advice. The texts are the library's."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest

from edge_serve.backends.base import DeviceLost
from edge_serve.backends.onnxruntime.errors import translated, translated_on_gpu
from tests.backends.onnx_models import add_sub

_PLACE = "GPU=0 ; hostname=orin ; file=/onnxruntime_src/cuda_execution_provider.cc ; line=446 ; expr=cudaX();"


def failed(text: str, code: int = 1, name: str = "FAIL") -> RuntimeError:
    return RuntimeError(f"[ONNXRuntimeError] : {code} : {name} : {text}")


@pytest.mark.parametrize(
    "text",
    [
        f"CUDA failure 700: an illegal memory access was encountered ; {_PLACE}",
        f"Non-zero status code returned while running Conv. CUDA failure 719: unspecified launch failure ; {_PLACE}",
        f"CUDA failure 214: uncorrectable ECC error encountered ; {_PLACE}",
        "TensorRT EP execution context enqueue failed: an illegal memory access was encountered",
    ],
)
def test_an_error_that_ends_the_use_of_the_device(text: str) -> None:
    told = translated_on_gpu(failed(text))
    assert type(told) is DeviceLost
    assert told.message == f"onnx runtime error 1: {text}"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("Available memory of 19968 is smaller than requested bytes of 1572864",
         "the model reached its limit of device memory (asked for 1.6 MB, and 0.0 MB were left): raise gpu_mem_limit"),
        ("Failed to allocate memory for requested buffer of size 684345600",
         "the device ran out of memory (asked for 684.3 MB): unload models"),
        (f"CUDA failure 2: out of memory ; {_PLACE}", "the device ran out of memory: unload models"),
        ("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED", "the device ran out of memory: unload models"),
        (f"CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version ; {_PLACE}",
         "no NVIDIA driver answers, or it is older than the CUDA of onnxruntime-gpu: see: edge-serve doctor"),
        ('Parse Failed to parse provider option "device_id": CUDA failure 34: CUDA driver is '
         "a stub library ; GPU=-1 ; hostname=vm ; line=70 ; expr=cudaGetDeviceCount(&num_devices);",
         "no NVIDIA driver answers"),
        (f"CUDA failure 209: no kernel image is available for execution on the device ; {_PLACE}",
         "this onnxruntime-gpu has no code for this device"),
    ],
)  # fmt: skip
def test_advice_on_an_error_that_leaves_the_device_usable(text: str, advice: str) -> None:
    told = translated_on_gpu(failed(text))
    assert not isinstance(told, DeviceLost)
    assert told.message.startswith(f"onnx runtime error 1: {text}")
    assert advice in told.message


def test_an_error_of_the_model_stays_as_it_is() -> None:
    error = failed("Got invalid dimensions for input: A", 2, "INVALID_ARGUMENT")
    assert translated_on_gpu(error).message == translated(error).message
    assert translated(error).message == "onnx runtime error 2: Got invalid dimensions for input: A"
    assert translated(ValueError("no text of the library")).message == "onnx runtime error 1: no text of the library"


def test_a_node_on_the_cpu_where_the_configuration_forbids_it(tmp_path: Path) -> None:
    """The text is the library's own: a provider of the CPU package stands for the GPU's."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with pytest.raises(Exception, match="fallback to CPU EP") as caught:
        onnxruntime.InferenceSession(
            str(add_sub(tmp_path / "m.onnx")), options, providers=["AzureExecutionProvider"], enable_fallback=0
        )
    assert "the GPU's provider lacks one: remove the parameter" in translated_on_gpu(caught.value).message
