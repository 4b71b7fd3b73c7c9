"""A server on a machine with GPUs: a stand-in libcuda beside it says which (tests/devices/libcuda.cpp)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from edge_serve.backends.onnxruntime.libraries import has_cuda
from tests.backends.onnx_models import identity
from tests.devices import stand_in
from tests.server.running import python_model, running

#: answers with the place that it was given
MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.place = f"{args['model_instance_kind']} {args['model_instance_device_id']}"

    def execute(self, requests):
        place = np.array([self.place.encode()], dtype=np.object_)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("PLACE", place)]) for _ in requests]
"""
CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "PLACE" data_type: TYPE_STRING dims: [ 1 ] }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the stand-in libcuda.so.1."""
    return stand_in.build(tmp_path_factory.mktemp("cuda"))


def models(root: Path, groups: Mapping[str, str]) -> str:
    for name, group in groups.items():
        python_model(root, name, MODEL, f"{CONFIG}instance_group {{ {group} }}\n")
    return f"--model-repository={root}"


def test_instances_run_on_the_devices_that_the_configuration_names(library: Path, tmp_path: Path) -> None:
    groups = {
        "auto": "kind: KIND_AUTO",
        "cpu": "kind: KIND_CPU",
        "gpu": "kind: KIND_GPU",
        "second": "kind: KIND_GPU gpus: [ 1 ]",
        "fifth": "kind: KIND_GPU gpus: [ 5 ]",
    }
    places = {"auto": "GPU [01]", "cpu": "CPU 0", "gpu": "GPU [01]", "second": "GPU 1"}
    prefix = stand_in.prefix(library, devices=2)
    repository = models(tmp_path, groups)
    identity(tmp_path / "onnx" / "1" / "model.onnx")
    with running(repository, "--exit-on-error=false", prefix=prefix) as server:
        log = server.log()
        if not has_cuda():
            assert "ONNX models run on the CPU: for the GPU put onnxruntime-gpu" in log
            assert server.get("/v2/models/onnx/ready")[0] == 200
        assert re.search(r"GPU 1: Stand-in GPU 1, compute capability 8\.7, memory 8\.0 GiB", log)
        assert (
            "instance group fifth_0 of model fifth specifies invalid or unsupported gpu id 5. GPUs with at least the "
            "minimum required CUDA compute compatibility of 6.000000 are: 0, 1" in log
        )
        for name, place in places.items():
            body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}]}
            status, answer = server.post(f"/v2/models/{name}/infer", body)
            assert status == 200, answer
            assert re.fullmatch(place, json.loads(answer)["outputs"][0]["data"][0])
        metrics = server.get("/metrics", server.metrics)[1].decode()
        assert 'nv_inference_count{gpu_uuid="GPU-a1a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1",model="second"' in metrics
        assert 'nv_inference_count{model="cpu"' in metrics
        assert 'nv_inference_count{model="gpu"' in metrics, "on two GPUs: none is its own"


def test_gpu_below_the_minimum_of_compute_capability_is_not_used(library: Path, tmp_path: Path) -> None:
    root = models(tmp_path, {"gpu": "kind: KIND_GPU", "auto": "kind: KIND_AUTO"})
    arguments = ("--exit-on-error=false", "--min-supported-compute-capability=9.0")
    with running(root, *arguments, prefix=stand_in.prefix(library)) as server:
        assert (
            "instance group gpu_0 of model gpu has kind KIND_GPU but no GPUs are available; "
            "--min-supported-compute-capability is" in server.log()
        )
        assert server.get("/v2/models/auto/ready")[0] == 200


def test_driver_that_does_not_work_costs_gpu_models_alone(library: Path, tmp_path: Path) -> None:
    root = models(tmp_path, {"gpu": "kind: KIND_GPU", "auto": "kind: KIND_AUTO"})
    with running(root, "--exit-on-error=false", prefix=stand_in.prefix(library, init=803)) as server:
        log = server.log()
        assert (
            "no GPU is used: CUDA does not work: cuInit failed with CUDA_ERROR_SYSTEM_DRIVER_MISMATCH; the driver was "
            "replaced under the running kernel: restart the machine" in log
        )
        assert (
            "instance group gpu_0 of model gpu has kind KIND_GPU but server does not support GPUs; CUDA does not work: "
            "cuInit failed with CUDA_ERROR_SYSTEM_DRIVER_MISMATCH; the driver was replaced" in log
        )
        assert server.get("/v2/models/auto/ready")[0] == 200
