"""CUDA shared memory with Triton's own client library, over HTTP and gRPC.

Where a GPU and cuda-bindings are installed, both sides use them; elsewhere stand-ins (tests/stand_ins).
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from edge_serve.devices.find import find_devices
from tests.devices import stand_in
from tests.server.running import ADD_SUB, Running, python_model, running
from tests.server.test_tensorrt import addsub
from tests.server.test_tensorrt import write as write_plan

# a server with GPUs, or with a stand-in for them
pytestmark = [pytest.mark.slow, *([pytest.mark.gpu] if find_devices().found else [])]

ROOT = Path(__file__).parents[2]
STAND_INS = ROOT / "tests/stand_ins"
COUNT = 20_000
NBYTES = 4 * COUNT
CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
input { name: "INPUT1" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ -1 ] }
"""


ON_GPU_CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "ABOUT" data_type: TYPE_STRING dims: [ -1 ] }
"""
KEEP = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }'
#: adds 1 on its GPU; says where the input was, and where it runs itself
ON_GPU = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils
from gpu_arrays import GpuArray

class TritonPythonModel:
    def initialize(self, args):
        self.about = [args["model_instance_kind"], args["model_instance_device_id"]]

    def execute(self, requests):
        replies = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X")
            values = x.as_numpy() if x.is_cpu() else GpuArray.from_dlpack(x).numpy()
            y = pb_utils.Tensor.from_dlpack("Y", GpuArray(values + 1, int(self.about[1])))
            about = np.array([str(x.__dlpack_device__()), *self.about], object)
            replies.append(pb_utils.InferenceResponse([y, pb_utils.Tensor("ABOUT", about)]))
        return replies
"""
#: calls `gpu` with a tensor on GPU 0, wants its output there, and streams it twice
CALLER = """
import numpy as np
import triton_python_backend_utils as pb_utils
from gpu_arrays import GpuArray

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            x = GpuArray(pb_utils.get_input_tensor_by_name(request, "X").as_numpy())
            call = pb_utils.InferenceRequest(
                model_name="gpu", requested_output_names=["Y", "ABOUT"], inputs=[pb_utils.Tensor.from_dlpack("X", x)],
                preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 0))
            y, about = call.exec().output_tensors()
            about = pb_utils.Tensor("ABOUT", np.append(about.as_numpy(), str(y.__dlpack_device__())).astype(object))
            sender = request.get_response_sender()
            for _ in range(2):
                sender.send(pb_utils.InferenceResponse([y, about]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture(scope="module")
def real() -> bool:
    """Return whether this machine has a GPU that the tests use."""
    found = bool(find_devices().found)
    if found and find_spec("cuda") is None:
        pytest.skip("cuda-bindings is not installed")
    return found


@pytest.fixture(scope="module")
def prefix(real: bool, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the start of a command whose process finds CUDA."""
    if real:
        return ["env"]
    library = stand_in.build(tmp_path_factory.mktemp("cuda"))
    return [*stand_in.prefix(library, devices=2), f"PYTHONPATH={STAND_INS}:{ROOT}"]


@pytest.fixture(scope="module")
def cudashm(real: bool) -> Iterator[Any]:
    """Yield Triton's module for clients."""
    with pytest.MonkeyPatch.context() as patch:
        if not real:
            patch.syspath_prepend(str(STAND_INS))
        yield import_module("tritonclient.utils.cuda_shared_memory")
    for name in [
        name for name in sys.modules if name == "cuda" or name.startswith(("cuda.", "tritonclient.utils.cuda"))
    ]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def server(real: bool, prefix: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("models")
    python_model(root, "simple", ADD_SUB, CONFIG)
    if not real:  # of the stand-ins
        write_plan(root, "plan", addsub("INT32"))
        python_model(root, "gpu", ON_GPU, f"{ON_GPU_CONFIG} instance_group {{ kind: KIND_GPU gpus: [ 1 ] }} {KEEP}")
        python_model(root, "caller", CALLER, f"{ON_GPU_CONFIG} model_transaction_policy {{ decoupled: true }} {KEEP}")
    flags = ("--allow-client-shm=true", "--allow-grpc=true", "--grpc-port=0")
    with running(f"--model-repository={root}", *flags, prefix=prefix) as served:
        yield served


class Client:
    """Regions of a client, registered over HTTP or gRPC."""

    def __init__(self, cudashm: Any, server: Running, protocol: str) -> None:
        port = server.wait_for_log(r"gRPC on 127\.0\.0\.1:(\d+)")[1]
        self.api: Any = http if protocol == "http" else grpc
        self.ask = self.api.InferenceServerClient(server.url if protocol == "http" else f"127.0.0.1:{port}")
        self.cudashm = cudashm
        self.regions: dict[str, Any] = {}

    def make(self, name: str, nbytes: int = NBYTES, device: int = 0, register: int = 0) -> None:
        region = self.regions[name] = self.cudashm.create_shared_memory_region(name, nbytes, device)
        self.ask.register_cuda_shared_memory(name, self.cudashm.get_raw_handle(region), device, register or nbytes)

    def put(self, name: str, *arrays: Any) -> None:
        self.cudashm.set_shared_memory_region(self.regions[name], [np.asarray(one, np.int32) for one in arrays])

    def get(self, name: str, count: int) -> list[int]:
        found: list[int] = self.cudashm.get_contents_as_numpy(self.regions[name], np.int32, [count]).tolist()
        return found

    def input(self, name: str, region: str, count: int, offset: int = 0) -> Any:
        made = self.api.InferInput(name, [1, count], "INT32")
        made.set_shared_memory(region, 4 * count, offset=offset)
        return made

    def output(self, name: str, region: str, nbytes: int, offset: int = 0) -> Any:
        made = self.api.InferRequestedOutput(name)
        made.set_shared_memory(region, nbytes, offset=offset)
        return made

    def names(self) -> list[str]:
        found = self.ask.get_cuda_shared_memory_status()
        return [one["name"] for one in found] if self.api is http else sorted(found.regions)

    def close(self) -> None:
        self.ask.unregister_cuda_shared_memory()
        self.ask.close()
        for region in self.regions.values():
            self.cudashm.destroy_shared_memory_region(region)


@pytest.fixture(params=["http"])
def client(request: pytest.FixtureRequest, cudashm: Any, server: Running) -> Iterator[Client]:
    made = Client(cudashm, server, request.param)
    yield made
    made.close()


BOTH = pytest.mark.parametrize("client", ["http", "grpc"], indirect=True)


@BOTH
@pytest.mark.parametrize("count", [16, COUNT])
def test_tensors_lie_in_the_memory_of_a_gpu(client: Client, count: int) -> None:
    client.make("in", 8 * count)
    client.make("out", 4 * count)
    for first in range(2):
        client.put("in", np.arange(first, first + count), np.full(count, 7))
        inputs = [client.input("INPUT0", "in", count), client.input("INPUT1", "in", count, 4 * count)]
        outputs = [client.output("OUTPUT0", "out", 4 * count), client.api.InferRequestedOutput("OUTPUT1")]

        answer = client.ask.infer("simple", inputs, outputs=outputs)

        assert client.get("out", count) == list(range(7 + first, 7 + first + count))
        assert answer.as_numpy("OUTPUT1")[0].tolist() == list(range(first - 7, first - 7 + count))


def test_tensorrt_reads_and_writes_the_memory_of_a_gpu(client: Client, real: bool) -> None:
    if real:
        pytest.skip("the plan is of the stand-in for TensorRT")
    client.make("in", 128)
    client.make("out", 64)
    client.put("in", np.arange(4), np.ones(4))
    inputs = [client.input("INPUT0", "in", 4), client.input("INPUT1", "in", 4, 16)]

    client.ask.infer("plan", inputs, outputs=[client.output(f"OUTPUT{n}", "out", 16, 16 * n) for n in (0, 1)])

    assert client.get("out", 8) == [1, 2, 3, 4, -1, 0, 1, 2]


def test_region_of_another_gpu(client: Client, real: bool) -> None:
    if real and len(find_devices().found) < 2:
        pytest.skip("one GPU only")
    client.make("far", 64, device=1)
    client.put("far", np.arange(16))
    plain = client.api.InferInput("INPUT1", [1, 16], "INT32")
    plain.set_data_from_numpy(np.ones((1, 16), np.int32))

    client.ask.infer(
        "simple", [client.input("INPUT0", "far", 16), plain], outputs=[client.output("OUTPUT0", "far", 64)]
    )

    assert client.get("far", 16) == list(range(1, 17))


@BOTH
def test_status_and_unregistering(client: Client) -> None:
    client.make("a", 64)
    client.make("b", 128)
    assert client.names() == ["a", "b"]
    client.ask.unregister_cuda_shared_memory("a")
    client.ask.unregister_cuda_shared_memory("never")
    client.ask.unregister_system_shared_memory("b")
    assert client.names() == ["b"]
    with pytest.raises(InferenceServerException, match="is registered as CUDA shared memory, not system shared memory"):
        client.ask.get_system_shared_memory_status("b")
    with pytest.raises(InferenceServerException, match="Unable to find cuda shared memory region: 'a'"):
        client.ask.get_cuda_shared_memory_status("a")
    with pytest.raises(InferenceServerException, match="shared memory region 'b' already in manager"):
        client.make("b", 64)
    with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'a'"):
        client.ask.infer("simple", [client.input(name, "a", 16) for name in ("INPUT0", "INPUT1")])


def test_invalid_registrations_are_refused_at_once(client: Client) -> None:
    with pytest.raises(
        InferenceServerException, match="'big': invalid args; byte_size is 65, but the memory has 64 bytes"
    ):
        client.make("big", 64, register=65)
    with pytest.raises(InferenceServerException, match="'far': invalid args; there is no GPU 9, expected one of: 0"):
        client.ask.register_cuda_shared_memory("far", client.cudashm.get_raw_handle(client.regions["big"]), 9, 64)
    zeros = base64.b64encode(bytes(64))
    with pytest.raises(
        InferenceServerException, match="'zero': invalid args; cudaIpcOpenMemHandle failed with cudaErr"
    ):
        client.ask.register_cuda_shared_memory("zero", zeros, 0, 64)
    with pytest.raises(
        InferenceServerException, match="must be a valid base64 encoded cudaIpcMemHandle_t; found 3 bytes"
    ):
        client.ask.register_cuda_shared_memory("short", b"AAAA", 0, 64)
    assert client.names() == []


def test_parts_beyond_a_region_are_refused(client: Client) -> None:
    client.make("in", 64)
    for offset, text in (
        (64, "Invalid offset for shared memory"),
        (4, r"Invalid offset \+ byte size for shared memory"),
    ):
        with pytest.raises(InferenceServerException, match=text):
            client.ask.infer("simple", [client.input(name, "in", 16, offset) for name in ("INPUT0", "INPUT1")])
    outputs = [client.output("OUTPUT0", "in", 8)]
    with pytest.raises(InferenceServerException, match=r"for output 'OUTPUT0' \(8 bytes\) should be at least 64 bytes"):
        client.ask.infer("simple", [client.input(name, "in", 16) for name in ("INPUT0", "INPUT1")], outputs=outputs)


def x_of(api: Any, count: int) -> Any:
    made = api.InferInput("X", [count], "INT32")
    made.set_data_from_numpy(np.arange(count, dtype=np.int32))
    return made


@pytest.mark.parametrize("count", [16, COUNT])
def test_python_model_on_a_gpu_gets_and_returns_tensors_there(client: Client, real: bool, count: int) -> None:
    if real:
        pytest.skip("the model uses the stand-in for CUDA: tests/gpu has one with PyTorch")
    client.make("in", 4 * count)
    client.make("out", 4 * count)
    client.put("in", np.arange(count))
    there = client.api.InferInput("X", [count], "INT32")
    there.set_shared_memory("in", 4 * count)
    about = client.api.InferRequestedOutput("ABOUT")
    for given, device in ((x_of(client.api, count), "(1, 0)"), (there, "(2, 0)")):
        answer = client.ask.infer("gpu", [given])
        assert answer.as_numpy("Y").tolist() == list(range(1, count + 1))
        assert answer.as_numpy("ABOUT").tolist() == [device.encode(), b"GPU", b"1"]

        client.ask.infer("gpu", [given], outputs=[client.output("Y", "out", 4 * count), about])
        assert client.get("out", count) == list(range(1, count + 1))


@pytest.mark.parametrize("client", ["grpc"], indirect=True)
def test_python_model_calls_another_with_tensors_on_a_gpu_and_streams(client: Client, real: bool) -> None:
    if real:
        pytest.skip("the model uses the stand-in for CUDA")
    answers: SimpleQueue[Any] = SimpleQueue()
    client.ask.start_stream(lambda result, error: answers.put(error or result))
    client.ask.async_stream_infer("caller", [x_of(client.api, COUNT)])
    for _ in range(2):
        answer = answers.get(timeout=20)
        assert answer.as_numpy("Y").tolist() == list(range(1, COUNT + 1))
        assert answer.as_numpy("ABOUT").tolist() == [b"(1, 0)", b"GPU", b"1", b"(2, 0)"]
    client.ask.stop_stream()


def maps_of(server: Running) -> str:
    return "".join(Path(f"/proc/{pid}/maps").read_text() for pid in server.workers())


def test_worker_closes_a_region_that_is_unregistered(server: Running, client: Client, real: bool) -> None:
    client.make("in")
    client.put("in", np.arange(COUNT))
    inputs = [client.input(name, "in", COUNT) for name in ("INPUT0", "INPUT1")]
    client.ask.infer("simple", inputs)
    assert real or "edge-serve-cuda-" in maps_of(server)

    client.ask.unregister_cuda_shared_memory("in")

    with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'in'"):
        client.ask.infer("simple", inputs)
    for name in ("INPUT0", "INPUT1"):
        inputs[int(name[-1])].set_data_from_numpy(np.zeros((1, COUNT), np.int32))
    client.ask.infer("simple", inputs)  # the worker has heard of it before this
    # the thread that answered the first request lets go of it a moment later
    until = time.monotonic() + 5
    while "edge-serve-cuda-" in maps_of(server):
        assert time.monotonic() < until, maps_of(server)
        time.sleep(0.01)


def test_worker_whose_device_is_lost_is_started_again(
    cudashm: Any, real: bool, prefix: list[str], tmp_path: Path
) -> None:
    if real:
        pytest.skip("a real device is not broken on purpose")
    python_model(tmp_path, "simple", ADD_SUB, CONFIG)
    flags = ("--allow-client-shm=true", "--allow-grpc=true", "--grpc-port=0")
    broken = [*prefix, "STAND_IN_CUDA_FAILS=cudaIpcOpenMemHandle=719@1"]  # the second region that a process opens
    with running(f"--model-repository={tmp_path}", *flags, prefix=broken) as server:
        client = Client(cudashm, server, "http")
        for region in ("a", "b"):
            client.make(region, 64)
        client.ask.infer("simple", [client.input(name, "a", 16) for name in ("INPUT0", "INPUT1")])
        with pytest.raises(InferenceServerException, match="cudaIpcOpenMemHandle failed with"):
            client.ask.infer("simple", [client.input("INPUT0", "a", 16), client.input("INPUT1", "b", 16)])
        server.wait_for_log("the worker ends because its device is lost")
        server.wait_for_log("model simple is back in worker")
        client.ask.infer("simple", [client.input(name, "b", 16) for name in ("INPUT0", "INPUT1")])
        client.close()


#: registers a region over HTTP, and dies without a word
DYING = """
import os, sys
import tritonclient.http as http
import tritonclient.utils.cuda_shared_memory as cudashm
region = cudashm.create_shared_memory_region("dead", 64, 0)
client = http.InferenceServerClient(sys.argv[1])
client.register_cuda_shared_memory("dead", cudashm.get_raw_handle(region), 0, 64)
{rest}
os._exit(0)
"""


def test_client_that_died_fails_its_own_requests_alone(server: Running, client: Client, real: bool) -> None:
    paths = [] if real else [str(STAND_INS), str(ROOT)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    freed = (
        "" if real else "cudashm.destroy_shared_memory_region(region); del region"
    )  # the stand-in's names outlive a killed process
    subprocess.run([sys.executable, "-c", DYING.format(rest=freed), server.url], check=True, timeout=30, env=environ)
    client.make("alive", 64)

    with pytest.raises(InferenceServerException, match="CUDA shared memory region 'dead' cannot be opened"):
        client.ask.infer("simple", [client.input(name, "dead", 16) for name in ("INPUT0", "INPUT1")])
    client.ask.infer("simple", [client.input(name, "alive", 16) for name in ("INPUT0", "INPUT1")])
    (dead,) = [name for name in client.names() if name == "dead"]
    client.ask.unregister_cuda_shared_memory(dead)
