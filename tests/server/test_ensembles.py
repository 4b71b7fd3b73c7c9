"""Ensembles on the running server: deep and wide graphs, large tensors between steps, and graphs that cannot work."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.server.running import Running, python_model, running
from tests.server.sequence_models import events
from tests.server.test_readiness import wait_for

#: OUT = A + B + 1 (B is optional), and whether the model could write into its inputs
ADD = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            total = None
            for tensor in request.inputs():
                value = tensor.as_numpy()
                value += 0
                total = value if total is None else total + value
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", total + 1)]))
        return answers
"""
#: OUT = A + 1, computed in A itself
BUMP = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            value = request.inputs()[0].as_numpy()
            value += 1
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value.copy())]))
        return answers
"""
#: the same in a backend of its own
BUMP_BACKEND = """
from edge_serve.backends.base import Reply
from edge_serve.tensors import DataType, Tensor, from_array

class Backend:
    def complete_config(self, spec): return spec.config
    def open(self, spec, instances): return [Instance() for _ in instances]
    def close(self): pass

class Instance:
    writes_inputs = True

    def execute(self, batch, timing):
        replies = []
        for request in batch:
            value = request.inputs[0].array()
            if not value.flags.writeable:
                value = value.copy()
            value += 1
            replies.append(Reply([Tensor("OUT", DataType.FP32, value.shape, from_array(value, DataType.FP32))]))
        return replies

    def is_ready(self): return True
    def close(self): pass
"""
ADD_FACE = """
backend: "python"
input { name: "A" data_type: TYPE_FP32 dims: [ -1 ] }
input { name: "B" data_type: TYPE_FP32 dims: [ -1 ] optional: true }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
"""
#: A[0] responses, each with A + its number
REPEAT = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
            sender = request.get_response_sender()
            for i in range(int(value[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value + i)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def ensemble(root: Path, name: str, steps: Sequence[tuple[str, dict[str, str], str]], kind: str = "TYPE_FP32") -> None:
    """An ensemble of X to Y; a step is its model, what its inputs read, and what OUT writes."""
    text = []
    for model, reads, writes in steps:
        maps = " ".join(f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in reads.items())
        out = f'output_map {{ key: "OUT" value: "{writes}" }}'
        text.append(f'step {{ model_name: "{model}" model_version: -1 {maps} {out} }}')
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(
        f"""platform: "ensemble"
        input {{ name: "X" data_type: {kind} dims: [ -1 ] }}
        output {{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }}
        ensemble_scheduling {{ {" ".join(text)} }}"""
    )


def chain(length: int, model: str = "add") -> list[tuple[str, dict[str, str], str]]:
    names = ["X", *(f"t{i}" for i in range(1, length)), "Y"]
    return [(model, {"A": names[i]}, names[i + 1]) for i in range(length)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root: Path = tmp_path_factory.mktemp("models")
    python_model(root, "add", ADD, ADD_FACE)
    python_model(root, "more", ADD, ADD_FACE)
    python_model(root, "bump", BUMP, ADD_FACE)
    python_model(root, "own", "", ADD_FACE.replace("python", "own"))
    (root / "own/backend.py").write_text(BUMP_BACKEND)
    python_model(root, "repeat", REPEAT, f"{ADD_FACE} model_transaction_policy {{ decoupled: true }}")
    ensemble(root, "deep", chain(50))
    wide = [("add", {"A": "X"}, f"w{i}") for i in range(25)]
    sums = [("more", {"A": f"s{i - 1}" if i else "X", "B": f"w{i}"}, f"s{i}" if i < 24 else "Y") for i in range(25)]
    ensemble(root, "wide", wide + sums)
    ensemble(root, "two", [("add", {"A": "X"}, "t"), ("more", {"A": "t", "B": "t"}, "Y")])
    for model in ("bump", "own"):
        twice = [(model, {"A": "X"}, "t"), (model, {"A": "t"}, "u"), ("add", {"A": "t", "B": "u"}, "Y")]
        ensemble(root, f"twice_{model}", twice)
    ensemble(root, "stream", [("repeat", {"A": "X"}, "t"), ("add", {"A": "t"}, "u"), ("more", {"A": "u"}, "Y")])
    ensemble(root, "solo", chain(1, "repeat"))
    ensemble(root, "circle", [("add", {"A": "X", "B": "b"}, "a"), ("more", {"A": "a"}, "b"), ("add", {"A": "b"}, "Y")])
    ensemble(root, "itself", [("itself", {"A": "X"}, "Y")])
    ensemble(root, "clash", chain(2), kind="TYPE_INT64")
    with running(f"--model-repository={root}", "--exit-on-error=false", ready=False) as started:
        started.wait_for_log(r"edge-serve \S+ ready in|not all models|failed to load")
        started.wait_for_log(r"MODEL +VERSION +STATE")
        yield started


def infer(server: Running, model: str, values: Any) -> Any:
    values = np.asarray(values, np.float32)
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "X",
                    "shape": [values.size],
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": values.nbytes},
                }
            ],
            "outputs": [{"name": "Y", "parameters": {"binary_data": True}}],
        }
    ).encode()
    connection = http.client.HTTPConnection("127.0.0.1", server.http, timeout=30)
    connection.request(
        "POST",
        f"/v2/models/{model}/infer",
        head + values.tobytes(),
        {"Inference-Header-Content-Length": str(len(head))},
    )
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status == 200, body[:500]
    start = int(answer.headers["Inference-Header-Content-Length"])
    return np.frombuffer(body[start:], np.float32)


@pytest.mark.parametrize("count", [4, 200_000])
def test_fifty_steps_one_after_the_other(server: Running, count: int) -> None:
    np.testing.assert_array_equal(infer(server, "deep", np.arange(count) % 1000), np.arange(count) % 1000 + 50)


@pytest.mark.parametrize("count", [4, 100_000])
def test_fifty_steps_side_by_side(server: Running, count: int) -> None:
    """25 times X + 1, and a sum over all of them and X."""
    np.testing.assert_array_equal(infer(server, "wide", np.arange(count) % 100), 26 * (np.arange(count) % 100) + 50)


@pytest.mark.parametrize("count", [4, 100_000])
@pytest.mark.parametrize("model", ["bump", "own"])
def test_a_model_that_writes_to_its_input_does_not_change_it_for_others(
    server: Running, model: str, count: int
) -> None:
    """X + 1 of the first step is an input of the second, of the same model, and of the third."""
    np.testing.assert_array_equal(infer(server, f"twice_{model}", np.zeros(count)), np.full(count, 4))


def test_large_tensors_between_steps_are_lent_not_copied(server: Running) -> None:
    """The second model's arena holds its output only: its inputs stay in the first one's."""
    count = 1_000_000
    np.testing.assert_array_equal(infer(server, "two", np.ones(count)), np.full(count, 5))
    maps = [Path(f"/proc/{pid}/maps").read_text() for pid in server.workers()]
    (of_more,) = (text for text in maps if "edge-serve:more-1" in text)
    lent = [line.split()[1] for line in of_more.splitlines() if "edge-serve:add-1" in line]
    assert lent == ["r--s"]


def test_many_clients_of_large_ensembles_get_their_own_answers(server: Running) -> None:
    wrong: list[int] = []

    def client(number: int) -> None:
        for _ in range(4):
            if not (infer(server, "two", np.full(50_000, number)) == 2 * number + 3).all():
                wrong.append(number)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong


@pytest.mark.parametrize("count", [1, 50_000])
def test_each_response_of_a_decoupled_step_is_answered(server: Running, count: int) -> None:
    status, body = server.post("/v2/models/stream/generate_stream", {"X": [3.0] * count})

    assert status == 200
    found = [event["Y"] for event in events(body)]
    assert [value[0] if count > 1 else value for value in found] == [5, 6, 7]
    assert count == 1 or all(len(value) == count for value in found)


def test_the_compute_time_of_a_decoupled_step_counts_for_its_ensemble(server: Running) -> None:
    assert server.post("/v2/models/solo/generate_stream", {"X": [3.0]})[0] == 200

    def read() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(server.get("/v2/models/solo/stats")[1])["model_stats"][0]
        return found

    wait_for(lambda: read()["inference_stats"]["success"]["count"] == 1)
    assert read()["inference_stats"]["compute_infer"]["ns"] > 0


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("itself", "circular dependency between ensembles: itself -> ... -> itself -> itself"),
        ("clash", "inconsistent data type"),
    ],
)
def test_an_ensemble_that_cannot_work_does_not_load_and_says_why(server: Running, model: str, reason: str) -> None:
    assert server.get(f"/v2/models/{model}/ready")[0] == 400
    assert reason in server.log()


def test_steps_that_wait_for_each_other_end_in_one_error(server: Running) -> None:
    status, body = server.post(
        "/v2/models/circle/infer", {"inputs": [{"name": "X", "shape": [1], "datatype": "FP32", "data": [1]}]}
    )

    assert status in (400, 404)
    assert b"error" in body
