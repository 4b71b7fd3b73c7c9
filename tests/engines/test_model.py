"""The request for an engine of a model: shapes, files, and settings from its configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edge_serve.devices.device import Gpu, Gpus
from edge_serve.engines import model
from edge_serve.engines.model import BUILD_PARAMETER
from edge_serve.engines.options import EngineOptions
from edge_serve.engines.profiles import BatchHints
from edge_serve.engines.request import EngineRequest, engine_key
from edge_serve.engines.settings import CacheSettings, build_limit, cache_settings
from edge_serve.errors import InvalidArgument

GPUS = Gpus((Gpu(0, "Orin", "GPU-1", (8, 7), 1 << 30), Gpu(1, "A2", "GPU-2", (8, 6), 1 << 30)), (12, 6))
CACHE = CacheSettings(Path("/cache"), 100)


def config(parameter: str = "true", **more: Any) -> dict[str, Any]:
    return {"name": "m", "backend": "tensorrt", "parameters": {BUILD_PARAMETER: {"string_value": parameter}}, **more}


def version(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).touch()
    return root


def test_configuration_determines_batch_dims_and_reshape() -> None:
    inputs = [
        {"name": "x", "dims": [3, -1]},
        {"name": "y", "dims": [4], "reshape": {"shape": [2, 2]}},
        {"name": "s", "dims": [2], "is_shape_tensor": True},
        {"name": "z"},
    ]
    found = config(max_batch_size=8, input=inputs, dynamic_batching={"preferred_batch_size": [2, 4]})
    assert model.batch_hints(found) == BatchHints(8, (2, 4), {"x": (3, -1), "y": (2, 2)})


@pytest.mark.parametrize(
    ("names", "given", "expected"),
    [
        (("model.onnx", "other.onnx"), "", "model.onnx"),
        (("net.onnx", "other.onnx"), "net.onnx", "net.onnx"),
        (("net.onnx",), "model.plan", "net.onnx"),
    ],
)
def test_onnx_file_of_a_version(tmp_path: Path, names: tuple[str, ...], given: str, expected: str) -> None:
    found = config(default_model_filename=given)
    assert model.find_onnx(version(tmp_path, *names), found) == tmp_path / expected


def test_several_onnx_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"found a.onnx, b.onnx in .*, expected model.onnx"):
        model.find_onnx(version(tmp_path, "a.onnx", "b.onnx"), config())


def test_plan_of_a_model_that_onnx_runtime_serves_lies_beside_its_file(tmp_path: Path) -> None:
    assert model.plan_output(tmp_path, {}).name == "model.plan"
    assert model.plan_output(tmp_path, {"default_model_filename": "net.onnx"}).name == "net.plan"
    assert model.plan_output(tmp_path, {"default_model_filename": "engine.trt"}).name == "engine.trt"


@pytest.mark.parametrize(
    ("parameter", "files", "expected"),
    [("", (), False), ("false", (), False), ("true", (), True), ("--fp16", (), True), ("true", ("orin.plan",), False)],
)
def test_load_builds_where_it_is_asked_for_and_no_plan_lies(
    tmp_path: Path, parameter: str, files: tuple[str, ...], expected: bool
) -> None:
    found = config(parameter, cc_model_filenames={"8.7": "orin.plan"})
    assert model.builds_at_load(found, version(tmp_path, *files), 0, GPUS) is expected
    if files:
        assert model.builds_at_load(found, tmp_path, 1, GPUS), "the plan of another compute capability does not count"


def test_request_has_the_options_of_the_parameter_and_the_dla_of_the_instances(tmp_path: Path) -> None:
    group = {"kind": "KIND_GPU", "secondary_devices": [{"kind": "KIND_NVDLA", "device_id": 1}]}
    found = model.model_request(
        config("--fp16 --workspace-mb=5", instance_group=[group]), version(tmp_path, "model.onnx"), CACHE, GPUS,
        {"plugins": "/a.so;/b.so", "library": "tensorrt_rtx"}, EngineOptions(workspace_bytes=7),
    )  # fmt: skip
    assert found.options == EngineOptions(("FP16",), dla_core=1, workspace_bytes=7)
    assert (found.plugins, found.library) == (("/a.so", "/b.so"), "tensorrt_rtx")
    assert (found.device_name, found.cuda, found.cache_bytes) == ("Orin", "12.6", 100_000_000)
    assert EngineRequest.from_json(found.to_json()) == found


@pytest.mark.parametrize("key", ["engine-cache-mb", "engine-build-secs"])
def test_setting_of_the_server_that_is_no_number_is_refused(key: str) -> None:
    with pytest.raises(InvalidArgument, match=f"--backend-config=tensorrt,{key} is '4 GB', expected a number"):
        cache_settings({key: "4 GB"}, {}), build_limit({key: "4 GB"})


def test_key_depends_on_everything_that_the_engine_depends_on(tmp_path: Path) -> None:
    base = model.file_request(tmp_path / "m.onnx", CACHE, GPUS, EngineOptions(), 0)
    other = model.file_request(tmp_path / "m.onnx", CACHE, GPUS, EngineOptions(), 1)
    keys = {
        engine_key(base, ["a"], "10.3.0", "8.7"), engine_key(base, ["b"], "10.3.0", "8.7"),
        engine_key(base, ["a", "b"], "10.3.0", "8.7"), engine_key(base, ["a"], "10.4.0", "8.7"),
        engine_key(base, ["a"], "10.3.0", "8.6"), engine_key(other, ["a"], "10.3.0", "8.7"),
        engine_key(replace(base, options=EngineOptions(level=1)), ["a"], "10.3.0", "8.7"),
        engine_key(replace(base, options=EngineOptions(tf32=False)), ["a"], "10.3.0", "8.7"),
    }  # fmt: skip
    assert len(keys) == 8
    moved = model.file_request(tmp_path / "elsewhere.onnx", CacheSettings(Path("/other"), 1), GPUS, EngineOptions(), 0)
    assert engine_key(moved, ["a"], "10.3.0", "8.7") in keys


def test_key_of_an_engine_that_was_cached_before_the_newest_options_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_serve.engines.request.os.uname", lambda: SimpleNamespace(machine="x86_64"))
    request = EngineRequest("/m.onnx", "/", "/c", 0, device_name="Orin", cuda="12.6")
    old = "557dd0b9f6c733834220ffb0d6ccea5431aa0a62505b486a4a3d0960059171b3"
    assert engine_key(request, ["d"], "10.3.0", "8.7") == old
