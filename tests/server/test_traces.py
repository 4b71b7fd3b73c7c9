"""Traces of a running server."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from queue import Queue

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.server.bls_models import COUNT, DECOUPLED, DOUBLE, model
from tests.server.running import PATIENCE, Running, python_model, running


def test_requests_are_traced_while_it_is_asked_for(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "m")
    file = tmp_path / "trace.json"
    with running(f"--model-repository={tmp_path / 'models'}", f"--trace-config=triton,file={file}") as server:
        server.add_sub("m")
        asked = {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "2", "trace_count": "1"}
        status, body = server.post("/v2/models/m/trace/setting", asked)
        assert (status, json.loads(body)["trace_level"]) == (200, ["TIMESTAMPS", "TENSORS"])
        for value in range(5):
            assert server.add_sub("m", value)[0] == 200
        assert json.loads(server.get("/v2/models/m/trace/setting")[1])["trace_count"] == "0"
        refused = (400, b'{"error":"Request for unknown model : nope"}')
        assert server.get("/v2/models/nope/trace/setting") == refused
        assert server.post("/v2/models/nope/trace/setting", {}) == refused

    entries = json.loads((tmp_path / "trace.json.0").read_text())
    assert entries[2] == {"id": 1, "model_name": "m", "model_version": 1}
    stamps = [stamp for entry in entries for stamp in entry.get("timestamps", ())]
    assert [stamp["name"] for stamp in stamps] == [
        "HTTP_RECV_START",
        "HTTP_RECV_END",
        "REQUEST_START",
        "QUEUE_START",
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
        "INFER_RESPONSE_COMPLETE",
        "REQUEST_END",
        "HTTP_SEND_START",
        "HTTP_SEND_END",
    ]
    times = [stamp["ns"] for stamp in stamps]
    assert times == sorted(times)
    tensors = [(entry["activity"], entry["tensor"]) for entry in entries if "activity" in entry]
    assert [(activity, tensor["name"], tensor["data"][:5]) for activity, tensor in tensors] == [
        ("TENSOR_QUEUE_INPUT", "INPUT0", "1,1,1"),
        ("TENSOR_QUEUE_INPUT", "INPUT1", "1,1,1"),
        ("TENSOR_BACKEND_OUTPUT", "OUTPUT0", "2,2,2"),
        ("TENSOR_BACKEND_OUTPUT", "OUTPUT1", "0,0,0"),
    ]


IO = """
max_batch_size: 0
input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_INT32 dims: [ -1 ] }
"""
STEP = (
    '{{ model_name: "{}" model_version: -1 '
    'input_map {{ key: "X" value: "{}" }} output_map {{ key: "Y" value: "{}" }} }}'
)

#: three calls, of which two say whose trace they belong to
CALLER = """
    def execute(self, requests):
        trace = requests[0].trace()
        ask("double", 1, trace=trace).exec()
        ask("twice", 1, trace=trace, request_id="own").exec()
        return [text(answer(ask("double", 1).exec()))]
"""

RECEIVED, SENT = ["HTTP_RECV_START", "HTTP_RECV_END"], ["HTTP_SEND_START", "HTTP_SEND_END"]
STARTED = ["REQUEST_START", "QUEUE_START"]
COMPUTED = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
RESPONSE = "INFER_RESPONSE_COMPLETE"
ANSWERED = [RESPONSE, "REQUEST_END"]
GRPC = ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "INFER_RESPONSE_COMPLETE", "GRPC_SEND_START", "GRPC_SEND_END"]

#: (model, number of the trace above it in the list, request id, marks) of each trace, as Triton 2.51 wrote them; where
#: it told the answer before or after the times of the model, as it happened, the order is always the same here
Told = tuple[str, int | None, str, list[str]]
DOUBLED: Told = ("double", None, "r", [*RECEIVED, *STARTED, *COMPUTED, *ANSWERED, *SENT])
EXPECTED: dict[str, list[Told]] = {
    "http": [DOUBLED],
    "http fails": [DOUBLED],
    "grpc": [("double", None, "r", [*STARTED, *COMPUTED, "REQUEST_END", *GRPC])],
    "grpc fails": [("double", None, "r", [*STARTED, *COMPUTED, "REQUEST_END", *GRPC])],
    "cache miss": [("cached", None, "r", [*RECEIVED, *STARTED, *COMPUTED, *ANSWERED, *SENT])],
    "cache hit": [("cached", None, "r", [*RECEIVED, *STARTED, *ANSWERED, *SENT])],
    "ensemble": [
        ("twice", None, "r", [*RECEIVED, *STARTED, *ANSWERED, *SENT]),
        ("double", 0, "r", [*STARTED, *COMPUTED, "REQUEST_END"]),
        ("double", 0, "r", [*STARTED, *COMPUTED, "REQUEST_END"]),
    ],
    "calls": [
        ("caller", None, "r", [*RECEIVED, *STARTED, *COMPUTED, *ANSWERED, *SENT]),
        ("double", 0, "", [*STARTED, *COMPUTED, "REQUEST_END"]),
        ("twice", 0, "own", [*STARTED, "REQUEST_END"]),
        ("double", 2, "own", [*STARTED, *COMPUTED, "REQUEST_END"]),
        ("double", 2, "own", [*STARTED, *COMPUTED, "REQUEST_END"]),
    ],
    "generate": [("double", None, "", [*RECEIVED, *STARTED, *COMPUTED, *ANSWERED, *SENT])],
    "stream": [
        ("several", None, "", [*RECEIVED, *STARTED, *([RESPONSE, *SENT] * 2), RESPONSE, *COMPUTED, "REQUEST_END"]),
    ],
    "grpc stream": [("several", None, "r", [*STARTED, *COMPUTED, "REQUEST_END", *GRPC, *GRPC[-2:]])],
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Told]]:
    """The traces of each kind of request."""
    root = tmp_path_factory.mktemp("traces")
    models, file = root / "models", root / "trace.json"
    model(models, "double", DOUBLE, output="Y")
    model(models, "cached", DOUBLE, output="Y", more="response_cache { enable: true }")
    model(models, "several", COUNT, output="Y", more=DECOUPLED)
    model(models, "caller", CALLER)
    steps = ",".join([STEP.format("double", "X", "BETWEEN"), STEP.format("double", "BETWEEN", "Y")])
    (models / "twice" / "1").mkdir(parents=True)
    (models / "twice" / "config.pbtxt").write_text(
        f'platform: "ensemble"{IO}ensemble_scheduling {{ step [ {steps} ] }}'
    )
    flags = "--cache-config=local,size=1000000", f"--trace-config=triton,file={file}"
    with running(f"--model-repository={models}", *flags, "--allow-grpc=true", "--grpc-port=0") as server:
        asked: dict[str, Callable[[], object]] = {
            "http": lambda: http(server, "double", 1),
            "http fails": lambda: http(server, "double", -1),
            "grpc": lambda: grpc(server, "double", 1),
            "grpc fails": lambda: grpc(server, "double", -1),
            "cache miss": lambda: http(server, "cached", 1),
            "cache hit": lambda: http(server, "cached", 1),
            "ensemble": lambda: http(server, "twice", 1),
            "calls": lambda: http(server, "caller", 1),
            "generate": lambda: server.post("/v2/models/double/generate", {"X": [1]}),
            "stream": lambda: server.post("/v2/models/several/generate_stream", {"X": [2]}),
            "grpc stream": lambda: grpc_stream(server, "several", 2),
        }
        for number, ask in enumerate(asked.values()):
            server.post("/v2/trace/setting", {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": "1"})
            ask()
            wait_for(root / f"trace.json.{number}")
    return {kind: told(root / f"trace.json.{number}") for number, kind in enumerate(asked)}


def told(path: Path) -> list[Told]:
    entries = json.loads(path.read_text())
    ids = list(dict.fromkeys(entry["id"] for entry in entries))
    found: list[Told] = []
    for one in ids:
        (about,) = [entry for entry in entries if entry["id"] == one and "model_name" in entry]
        marks = [stamp["name"] for entry in entries if entry["id"] == one for stamp in entry.get("timestamps", ())]
        parent = ids.index(about["parent_id"]) if "parent_id" in about else None
        found.append((about["model_name"], parent, about.get("request_id", ""), marks))
    return found


@pytest.mark.parametrize("kind", EXPECTED)
def test_marks_are_those_of_triton(seen: dict[str, list[Told]], kind: str) -> None:
    assert seen[kind] == EXPECTED[kind]


def http(server: Running, name: str, value: int) -> None:
    tensor = {"name": "X", "datatype": "INT32", "shape": [1], "data": [value]}
    server.post(f"/v2/models/{name}/infer", {"id": "r", "inputs": [tensor]})


def x(value: int) -> list[triton.InferInput]:
    tensor = triton.InferInput("X", [1], "INT32")
    tensor.set_data_from_numpy(np.array([value], np.int32))
    return [tensor]


def grpc_url(server: Running) -> str:
    return server.wait_for_log(r"gRPC on (\S+)")[1]


def grpc(server: Running, name: str, value: int) -> None:
    with triton.InferenceServerClient(grpc_url(server)) as client, contextlib.suppress(InferenceServerException):
        client.infer(name, x(value), request_id="r")


def grpc_stream(server: Running, name: str, value: int) -> None:
    answers: Queue[object] = Queue()
    with triton.InferenceServerClient(grpc_url(server)) as client:
        client.start_stream(lambda result, error: answers.put(result))
        client.async_stream_infer(name, x(value), request_id="r")
        for _ in range(value):
            answers.get(timeout=PATIENCE)
        client.stop_stream()


def wait_for(path: Path) -> None:
    """Traces are written by a thread, after the answer."""
    end = time.monotonic() + PATIENCE
    while not path.exists() or not path.read_bytes().endswith(b"]"):
        assert time.monotonic() < end, f"{path.name} does not come"
        time.sleep(0.01)
