"""The whole server over gRPC, with Triton's own client: infer, stream, shared memory, garbage, and the end."""

from __future__ import annotations

import queue
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException, shared_memory

from tests.server.running import ADD_SUB, Running, python_model, running

COUNT = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for value in range(int(pb_utils.get_input_tensor_by_name(request, "N").as_numpy()[0])):
                output = pb_utils.Tensor("I", np.array([value], np.int32))
                sender.send(pb_utils.InferenceResponse([output]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COUNT_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input { name: "N" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "I" data_type: TYPE_INT32 dims: [ 1 ] }
"""
SLOW = ADD_SUB.replace("        replies = []", "        import time\n        time.sleep(0.7)\n        replies = []")


Served = tuple[Running, triton.InferenceServerClient]


@contextmanager
def serving(root: Path, *flags: str) -> Iterator[Served]:
    """A ready server and a client of its gRPC door."""
    with running(f"--model-repository={root}", "--allow-grpc=true", "--grpc-port=0", *flags) as server:
        address = server.wait_for_log(r"gRPC on (\S+)")[1]
        with triton.InferenceServerClient(address) as client:
            yield server, client


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all tests but that of the stop."""
    root = tmp_path_factory.mktemp("models")
    python_model(root, "add_sub")
    python_model(root, "count", COUNT, COUNT_CONFIG)
    with serving(root, "--allow-client-shm=true") as both:
        yield both


def pair(value: int) -> list[triton.InferInput]:
    """Both inputs of the add/sub model."""
    inputs = [triton.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for one in inputs:
        one.set_data_from_numpy(np.full((1, 16), value, np.int32))
    return inputs


def test_tritons_client_infers_and_reads_everything(served: Served) -> None:
    _, client = served
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("add_sub")
    before = client.get_inference_statistics("add_sub").model_stats[0].inference_count
    result = client.infer("add_sub", pair(3), request_id="7")
    assert result.as_numpy("OUTPUT0").tolist() == [[6] * 16]
    assert result.get_response().id == "7"
    assert client.get_inference_statistics("add_sub").model_stats[0].inference_count == before + 1
    assert client.get_model_config("add_sub").config.max_batch_size == 8
    assert client.get_model_metadata("add_sub").inputs[0].shape == [-1, 16]
    assert [one.state for one in client.get_model_repository_index().models] == ["READY", "READY"]
    with pytest.raises(InferenceServerException, match="unknown model: 'nope'"):
        client.infer("nope", pair(1))


def test_a_decoupled_model_streams(served: Served) -> None:
    _, client = served
    replies: queue.Queue[tuple[triton.InferResult | None, Exception | None]] = queue.Queue()
    client.start_stream(lambda result, error: replies.put((result, error)))
    number = triton.InferInput("N", [1], "INT32")
    number.set_data_from_numpy(np.array([3], np.int32))
    client.async_stream_infer("count", [number], enable_empty_final_response=True)
    found: list[int] = []
    while True:
        result, error = replies.get(timeout=20)
        assert error is None
        assert result is not None
        response = result.get_response()
        found += result.as_numpy("I").tolist() if response.outputs else []
        if response.parameters["triton_final_response"].bool_param:
            break
    client.stop_stream()

    assert found == [0, 1, 2]


def test_shared_memory_of_the_client(served: Served) -> None:
    _, client = served
    region = shared_memory.create_shared_memory_region("r", "/edge-serve-grpc-test", 192)
    try:
        shared_memory.set_shared_memory_region(region, [np.full((1, 16), 5, np.int32)])
        client.register_system_shared_memory("r", "/edge-serve-grpc-test", 192)
        inputs = pair(1)
        inputs[0].set_shared_memory("r", 64)
        output = triton.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory("r", 64, 128)
        for _ in range(2):
            result = client.infer("add_sub", inputs, outputs=[output])
        written = shared_memory.get_contents_as_numpy(region, np.int32, [1, 16], 128)

        assert written.tolist() == [[6] * 16]
        assert list(result.get_response().raw_output_contents) == [b""]
        assert client.get_system_shared_memory_status().regions["r"].byte_size == 192
        client.unregister_system_shared_memory("r")
        with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'r'"):
            client.infer("add_sub", inputs)
    finally:
        shared_memory.destroy_shared_memory_region(region)


def test_garbage_fails_no_other_client(served: Served) -> None:
    server, client = served
    chance = random.Random(1)
    made = service_pb2.ModelInferRequest(model_name="add_sub", raw_input_contents=[bytes(64)] * 2)
    for name in ("INPUT0", "INPUT1"):
        made.inputs.add(name=name, datatype="INT32", shape=[1, 16])
    good = made.SerializeToString()
    with grpc.insecure_channel(server.wait_for_log(r"gRPC on (\S+)")[1]) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        codes = set()
        for _ in range(400):
            data = bytearray(good)
            for _ in range(chance.randint(1, 5)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            try:
                call(bytes(data[: chance.choice((len(data), chance.randrange(len(data))))]), timeout=20)
            except grpc.RpcError as error:
                codes.add(error.code().name)

    assert codes <= {"INTERNAL", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED"}
    assert {"INTERNAL", "INVALID_ARGUMENT"} <= codes
    assert client.infer("add_sub", pair(2)).as_numpy("OUTPUT0").tolist() == [[4] * 16]
    assert "Traceback" not in server.log()


def test_a_stop_answers_what_was_accepted(tmp_path: Path) -> None:
    running_file = tmp_path / "runs"
    models = tmp_path / "models"
    python_model(models, "add_sub", SLOW.replace("import time\n", f"import time; open({str(running_file)!r}, 'w')\n"))
    replies: queue.Queue[tuple[triton.InferResult | None, Exception | None]] = queue.Queue()
    with serving(models) as (server, client):
        client.async_infer("add_sub", pair(2), lambda result, error: replies.put((result, error)))
        end = time.monotonic() + 20
        while not running_file.exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        assert server.stop(signal.SIGTERM) == 0
        result, error = replies.get(timeout=20)

        assert error is None
        assert result is not None
        assert result.as_numpy("OUTPUT0").tolist() == [[4] * 16]
