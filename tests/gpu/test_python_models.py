"""A Python model with PyTorch on a real GPU: streamed outputs, and inputs in CUDA shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc

from tests.server.running import Running, python_model, running

COUNT = 100_000
CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "ON_GPU" data_type: TYPE_BOOL dims: [ 1 ] }
instance_group { kind: KIND_GPU gpus: [ 0 ] }
model_transaction_policy { decoupled: true }
parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }
"""
#: streams x + 1, x + 2 and x + 3 from a stream of its own; says whether x was on the GPU
CODE = """
import numpy as np
import torch
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        assert args["model_instance_kind"] == "GPU"
        self.device = torch.device("cuda", int(args["model_instance_device_id"]))
        self.stream = torch.cuda.Stream(self.device)

    def execute(self, requests):
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "X")
            place = pb_utils.Tensor("ON_GPU", np.array([not given.is_cpu()]))
            x, sender = torch.from_dlpack(given).to(self.device), request.get_response_sender()
            for number in range(3):
                with torch.cuda.stream(self.stream):
                    self.stream.wait_stream(torch.cuda.default_stream(self.device))
                    y = x + number + 1
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", y), place]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    pytest.importorskip("cuda.bindings.runtime", reason="cuda-bindings is not installed")
    root: Path = tmp_path_factory.mktemp("models")
    python_model(root, "torch", CODE, CONFIG)
    flags = ("--allow-client-shm=true", "--allow-grpc=true", "--grpc-port=0")
    with running(f"--model-repository={root}", *flags) as served:
        yield served


@pytest.fixture
def client(server: Running) -> Iterator[Any]:
    port = server.wait_for_log(r"gRPC on 127\.0\.0\.1:(\d+)")[1]
    with grpc.InferenceServerClient(f"127.0.0.1:{port}") as made:
        yield made


def stream(client: Any, tensor: Any) -> Iterator[Any]:
    answers: SimpleQueue[Any] = SimpleQueue()
    client.start_stream(lambda result, error: answers.put(error or result))
    client.async_stream_infer("torch", [tensor])
    for _ in range(3):
        yield answers.get(timeout=60)
    client.stop_stream()


def test_tensors_on_the_gpu_are_streamed(client: Any) -> None:
    x = np.random.default_rng(1).random(COUNT, np.float32)
    given = grpc.InferInput("X", [COUNT], "FP32")
    given.set_data_from_numpy(x)
    for number, answer in enumerate(stream(client, given)):
        assert np.array_equal(answer.as_numpy("Y"), x + number + 1)
        assert answer.as_numpy("ON_GPU").tolist() == [False]


def test_input_in_cuda_shared_memory_stays_on_the_gpu(client: Any) -> None:
    cudashm = pytest.importorskip("tritonclient.utils.cuda_shared_memory")
    x = np.random.default_rng(2).random(COUNT, np.float32)
    region = cudashm.create_shared_memory_region("x", x.nbytes, 0)
    cudashm.set_shared_memory_region(region, [x])
    client.register_cuda_shared_memory("x", cudashm.get_raw_handle(region), 0, x.nbytes)
    given = grpc.InferInput("X", [COUNT], "FP32")
    given.set_shared_memory("x", x.nbytes)
    for number, answer in enumerate(stream(client, given)):
        assert np.array_equal(answer.as_numpy("Y"), x + number + 1)
        assert answer.as_numpy("ON_GPU").tolist() == [True]
    client.unregister_cuda_shared_memory("x")
    cudashm.destroy_shared_memory_region(region)
