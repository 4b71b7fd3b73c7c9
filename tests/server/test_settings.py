"""Settings of a real server: ignored ones are logged, and limits hold where they are documented."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psutil
import pytest

from tests.server.running import ADD_SUB_CONFIG, Running, python_model, running

IDENTITY = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor)]) for tensor in tensors]
"""
IO = """
backend: "python"
max_batch_size: 0
input { name: "IN" data_type: TYPE_UINT8 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_UINT8 dims: [ -1 ] }
"""


MIB = 1 << 20
#: of Triton's QA (L0_metrics, L0_socket); 2.51 serves with all of them
SPELLINGS = ("--log-verbose=true", "--metrics-config", "summary_quantiles=0.1:0.0.1,0.7:0.01", "--grpc-port", "-47",
             "--allow-grpc", "0")  # fmt: skip
OPENTELEMETRY = ("--trace-config=mode=opentelemetry", "--trace-config=opentelemetry,url=localhost:4318/v1/traces",
                 "--trace-config=level=TIMESTAMPS")  # fmt: skip
ABSENT = ("--backend-config=tensorflow,version=2", "--backend-directory=/no/such/place")
LIMITS = (f"--http-max-input-size={MIB}", f"--request-memory-bytes={8 * MIB}", "--worker-memory-max-bytes=1000000000")
MEMORY_MAX = 'parameters { key: "EDGE_SERVE_MEMORY_MAX" value { string_value: "512M" } }\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with the settings of all tests."""
    root = tmp_path_factory.mktemp("models")
    python_model(root, "add_sub", config=ADD_SUB_CONFIG + MEMORY_MAX)
    python_model(root, "m", IDENTITY, IO + MEMORY_MAX)
    with running(f"--model-repository={root}", *OPENTELEMETRY, *SPELLINGS, *ABSENT, *LIMITS) as started:
        yield started


def test_opentelemetry_exports_nothing(server: Running) -> None:
    server.wait_for_log(r"^W.*mode=opentelemetry is accepted and ignored: edge-serve exports no traces")
    shown = json.loads(server.get("/v2/trace/setting")[1])
    assert (shown["trace_mode"], shown["trace_level"]) == ("triton", ["OFF"])
    assert server.add_sub("add_sub")[0] == 200


def test_backends_that_are_not_there_are_logged(server: Running) -> None:
    server.wait_for_log("^W.*--backend-config=tensorflow,... has no effect: no backend 'tensorflow' is installed")


def test_workers_inherit_that_the_threads_of_numpy_soon_sleep(server: Running) -> None:
    assert {psutil.Process(pid).environ()["OPENBLAS_THREAD_TIMEOUT"] for pid in server.workers()} == {"20"}


def test_tritons_spellings_start_a_server(server: Running) -> None:
    assert server.add_sub("add_sub")[0] == 200


def test_a_memory_limit_without_effect_is_logged_once(server: Running) -> None:
    text = "EDGE_SERVE_MEMORY_MAX has no effect: workers have memory limits only under systemd"
    server.wait_for_log(f"^W.*{text}")
    assert server.log().count("workers have memory limits only") == 1


def test_the_input_limit_is_of_json_and_the_memory_limit_of_all_bodies(server: Running) -> None:
    def binary(size: int) -> tuple[int, bytes]:
        about = {"name": "IN", "shape": [size], "datatype": "UINT8", "parameters": {"binary_data_size": size}}
        head = json.dumps({"inputs": [about], "parameters": {"binary_data_output": True}}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        return server.request("POST", "/v2/models/m/infer", head + bytes(size), headers=headers)

    assert binary(4 * MIB)[0] == 200, "as in Triton: binary tensors do not count"
    status, text = binary(9 * MIB)
    assert status == 413
    assert b"--request-memory-bytes" in text
    data = [0] * (MIB // 2)
    status, text = server.post("/v2/models/m/infer", {"inputs": [
        {"name": "IN", "shape": [len(data)], "datatype": "UINT8", "data": data}]})  # fmt: skip
    assert status == 400
    assert b"Use --http-max-input-size to increase the limit" in text
