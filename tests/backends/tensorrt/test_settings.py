"""Settings of TensorRT in configuration and command line. Texts: Triton's tensorrt_backend."""

from __future__ import annotations

from typing import Any

import pytest

from edge_serve.backends.cuda.path_settings import PathSettings
from edge_serve.backends.tensorrt.settings import (
    BackendSettings,
    ModelSettings,
    Strategy,
    backend_settings,
    check_dla_core,
    dla_core,
    group_of,
    model_settings,
)
from edge_serve.config.model.json_form import model_config_from_json, model_config_to_json
from edge_serve.errors import InvalidArgument, Unsupported


def parameters(**values: str) -> dict[str, Any]:
    return {"name": "m", "parameters": {key: {"string_value": value} for key, value in values.items()}}


def test_defaults() -> None:
    assert backend_settings({}) == BackendSettings()
    assert backend_settings({"default-max-batch-size": "4"}) == BackendSettings()
    assert model_settings({}) == ModelSettings()
    assert model_settings({"name": "m", "optimization": {}}) == ModelSettings()


def test_code_of_plans_is_not_run_by_default() -> None:
    assert not backend_settings({}).version_compatible
    for text, found in (("true", True), ("On", True), ("1", True), ("false", False), ("off", False), ("0", False)):
        assert backend_settings({"version-compatible": text}).version_compatible is found
    with pytest.raises(InvalidArgument, match=r"^failed to convert 'yes' to boolean$"):
        backend_settings({"version-compatible": "yes"})


@pytest.mark.parametrize(
    ("text", "plugins"),
    [
        ("", ()),
        (";", ()),
        ("a.so", ("a.so",)),
        ("/x/a.so;b.so;", ("/x/a.so", "b.so")),
        (" a.so ; b.so", ("a.so", "b.so")),
    ],
)
def test_plugins(text: str, plugins: tuple[str, ...]) -> None:
    assert backend_settings({"plugins": text}).plugins == plugins


def test_unsupported_settings_are_noted() -> None:
    (note,) = backend_settings({"coalesce-request-input": "true"}).notes
    assert note.startswith("coalesce-request-input is not supported and has no effect:")
    assert backend_settings({"coalesce-request-input": "0", "execution-policy": "BLOCKING"}).notes == ()
    (note,) = backend_settings({"execution-policy": "DEVICE_BLOCKING"}).notes
    assert note.startswith("execution-policy=DEVICE_BLOCKING is not supported and has no effect:")
    with pytest.raises(InvalidArgument, match="execution-policy is 'NONE', expected one of DEVICE_BLOCKING, BLOCKING"):
        backend_settings({"execution-policy": "NONE"})


def test_strategy_of_execution_contexts() -> None:
    for strategy in Strategy:
        assert model_settings(parameters(execution_context_allocation_strategy=strategy.value)).strategy is strategy
    with pytest.raises(InvalidArgument) as failed:
        model_settings(parameters(execution_context_allocation_strategy="USER_MANAGED"))
    assert failed.value.message == (
        "Invalid value for 'execution_context_allocation_strategy': 'USER_MANAGED' for model instance 'm'. Supported "
        "values are 'STATIC' and 'ON_PROFILE_CHANGE'."
    )


def test_library_is_chosen_among_those_of_tensorrt() -> None:
    assert backend_settings({"library": "tensorrt_rtx"}).library == "tensorrt_rtx"
    with pytest.raises(
        InvalidArgument, match="library=rtx names no library, expected one of tensorrt, tensorrt_lean, t"
    ):
        backend_settings({"library": "rtx"})


def test_multi_device_is_not_supported() -> None:
    for text in ("true", "TRUE", "1"):
        with pytest.raises(
            Unsupported, match="'m' sets enable_multi_device, and TensorRT Multi-Device is not supported:"
        ):
            model_settings(parameters(enable_multi_device=text, multi_device_gpus="0,1"))
    for text in ("false", "0", ""):
        assert model_settings(parameters(enable_multi_device=text)) == ModelSettings()


def test_optimization_in_the_form_that_workers_receive() -> None:
    optimization = {
        "priority": "PRIORITY_MAX", "gather_kernel_buffer_threshold": 3,
        "input_pinned_memory": {"enable": False}, "output_pinned_memory": {"enable": True},
        "cuda": {"busy_wait_events": True, "output_copy_stream": True},
    }  # fmt: skip
    found = model_settings(model_config_to_json(model_config_from_json({"name": "m", "optimization": optimization})))
    assert found.path == PathSettings(output_stream=True, busy_wait=True, pinned_input=False, priority="PRIORITY_MAX")
    assert [note.split(":")[0] for note in found.notes] == [
        "gather_kernel_buffer_threshold is not supported and has no effect"
    ]


def test_group_of_an_instance() -> None:
    groups = [{"name": "a", "profile": ["0"]}, {"name": "a_0", "profile": ["1"]}, {"name": "b.c"}]
    config = {"instance_group": groups}
    for instance, index in (("a_0", 0), ("a_12", 0), ("a_gpu1_0", 0), ("a_0_1", 1), ("a_0_gpu0_3", 1), ("b.c_0", 2)):
        assert group_of(config, instance) == groups[index]
    assert group_of(config, "bxc_0") == {}
    assert group_of({}, "a_0") == {}


def test_dla_core() -> None:
    devices = [{"kind": "KIND_NVDLA", "device_id": "1"}]  # 64-bit numbers of this field are strings in Triton's JSON
    assert dla_core({}, "m_0", "m") == -1
    assert dla_core({"secondary_devices": devices}, "m_0", "m") == 1
    with pytest.raises(InvalidArgument, match=r"^m_0 of model m must have either zero or or one secondary devices$"):
        dla_core({"secondary_devices": devices * 2}, "m_0", "m")
    with pytest.raises(InvalidArgument, match=r"^secondary device for m_0 of model m must be KIND_NVDLA$"):
        dla_core({"secondary_devices": [{"kind": "KIND_TPU"}]}, "m_0", "m")


def test_dla_core_that_the_device_lacks() -> None:
    check_dla_core(-1, 0)
    check_dla_core(1, 2)
    for core, available, advice in ((2, 2, "write a device_id below 2 in instance_group"),
                                    (0, 0, "remove secondary_devices in instance_group")):  # fmt: skip
        with pytest.raises(InvalidArgument) as failed:
            check_dla_core(core, available)
        assert failed.value.message == (
            f"unable to create TensorRT runtime with DLA Core ID: {core}, available number of DLA cores: {available}; "
            f"{advice}"
        )
