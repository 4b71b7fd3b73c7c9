"""Iterative sequences on the running server: a model runs a request again and again, and answers as it likes."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.raw_http import reset_on_close
from tests.server.running import Running, running
from tests.server.sequence_models import CONTROLS, COUNT_DOWN, THIRD_TIME, THREAD, events, sequence_model, step

DECOUPLED = "model_transaction_policy { decoupled: true }"


#: adds 1 to its input, and answers with that in the third run
BUMP = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            value = request.inputs()[0].as_numpy()
            value += 1
            self.runs = 1 if request.flags() & 1 else self.runs + 1
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value[:, :2].copy())]))
            if self.runs < 3:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                answers[-1] = None
        return answers
"""

#: answers in the first of three runs
EARLY = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    runs = 0

    def execute(self, requests):
        for request in requests:
            self.runs += 1
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            pb_utils.Logger.log_info(f"run {self.runs} of early found {value.sum()}")
            if self.runs == 1:
                request.get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            if self.runs < 3:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
"""

#: a thread waits until the client has disconnected, while the request is rescheduled again and again
WATCH = """
import threading
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            if request.flags() & 1:
                threading.Thread(target=self.watch, args=(request.get_response_sender(),), daemon=True).start()
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)

    def initialize(self, args):
        self.name = args["model_name"]

    def watch(self, sender):
        while not sender.is_cancelled():
            time.sleep(0.001)
        pb_utils.Logger.log_info(f"{self.name} noticed")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root: Path = tmp_path_factory.mktemp("models")
    sequence_model(root, "count_down", COUNT_DOWN, f"iterative_sequence: true {CONTROLS}", DECOUPLED)
    sequence_model(root, "oldest", COUNT_DOWN, "iterative_sequence: true oldest { }", DECOUPLED)
    sequence_model(root, "thread", THREAD, "iterative_sequence: true", DECOUPLED)
    sequence_model(root, "early", EARLY, "iterative_sequence: true", DECOUPLED)
    sequence_model(root, "watch", WATCH, "iterative_sequence: true")
    sequence_model(root, "watch_stream", WATCH, "iterative_sequence: true", DECOUPLED)
    sequence_model(root, "third", THIRD_TIME, f"iterative_sequence: true direct {{ }} {CONTROLS}")
    sequence_model(root, "bump", BUMP, "iterative_sequence: true")
    config = root / "bump/config.pbtxt"
    config.write_text(config.read_text().replace("dims: [ 1 ]", "dims: [ -1 ]"))
    sequence_model(root, "plain", THIRD_TIME, CONTROLS)
    sequence_model(root, "plain_stream", COUNT_DOWN, "", DECOUPLED)
    with running(f"--model-repository={root}") as started:
        yield started


def stream(server: Running, model: str, value: int) -> list[Any]:
    status, body = server.post(f"/v2/models/{model}/generate_stream", {"IN": value})
    assert status == 200, body
    return events(body)


@pytest.mark.parametrize("model", ["count_down", "oldest"])
@pytest.mark.parametrize("value", [4, 5])
def test_each_run_answers_into_the_same_stream(server: Running, model: str, value: int) -> None:
    assert [event["OUT"][0] for event in stream(server, model, value)] == list(range(value - 1, -1, -1))


@pytest.mark.parametrize("model", ["count_down", "oldest"])
def test_more_streams_than_seats_all_come_to_their_end(server: Running, model: str) -> None:
    found: dict[int, list[int]] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: [e["OUT"][0] for e in stream(server, model, n)]}))
        for n in range(1, 25)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == {n: list(range(n - 1, -1, -1)) for n in range(1, 25)}


def test_a_thread_sends_while_its_request_is_rescheduled(server: Running) -> None:
    assert [event["OUT"][0] for event in stream(server, "thread", 200)] == list(range(199, -1, -1))


def test_a_request_that_is_answered_runs_as_often_as_the_model_asks_for(server: Running) -> None:
    assert stream(server, "early", 5) == []
    server.wait_for_log("run 3 of early found 5")


def test_a_model_that_answers_once_may_take_several_runs(server: Running) -> None:
    inputs = [{"name": "IN", "shape": [1, 1], "datatype": "INT32", "data": [5]}]

    status, body = server.post("/v2/models/third/infer", {"inputs": inputs})

    assert status == 200, body
    assert json.loads(body)["outputs"][0]["data"] == [5, 3]  # IN, START and CORRID, in each run


@pytest.mark.parametrize("count", [2, 10_000])
def test_each_run_gets_the_inputs_as_the_client_sent_them(server: Running, count: int) -> None:
    value = {"name": "IN", "shape": [1, count], "datatype": "INT32", "parameters": {"binary_data_size": 4 * count}}
    head = json.dumps({"inputs": [value]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}

    status, body = server.request("POST", "/v2/models/bump/infer", head + bytes(4 * count), headers=headers)

    assert status == 200, body
    assert json.loads(body)["outputs"][0]["data"] == [1, 1]


def test_a_client_that_disconnects_ends_the_runs(server: Running) -> None:
    disconnect(
        server, "third", "infer", {"inputs": [{"name": "IN", "shape": [1, 1], "datatype": "INT32", "data": [7]}]}
    )
    end = time.monotonic() + 10
    while 'nv_inference_request_failure{model="third",reason="CANCELED",version="1"} 1' not in metrics(server):
        assert time.monotonic() < end, "it runs on for nobody"
    assert 'nv_inference_pending_request_count{model="third",version="1"} 0' in metrics(server)
    before = executions(server, "third")
    assert executions(server, "third") == before


@pytest.mark.parametrize("model", ["watch", "watch_stream"])
def test_a_kept_sender_hears_that_the_client_has_disconnected(server: Running, model: str) -> None:
    disconnect(server, model, "generate_stream", {"IN": 1})
    server.wait_for_log(f"{model} noticed")


def disconnect(server: Running, model: str, verb: str, content: Any) -> None:
    """Send a request, and disconnect while the model runs."""
    body = json.dumps(content).encode()
    head = f"POST /v2/models/{model}/{verb} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.http)) as sock:
        reset_on_close(sock)
        sock.sendall(head.encode() + body)
        while not executions(server, model):
            pass


def metrics(server: Running) -> str:
    return server.get("/metrics", server.metrics)[1].decode()


def executions(server: Running, model: str) -> int:
    body = server.get(f"/v2/models/{model}/stats")[1]
    return int(json.loads(body)["model_stats"][0]["execution_count"])


def test_a_model_that_is_not_iterative_may_not_reschedule(server: Running) -> None:
    text = (
        "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to "
        "handle such a flag."
    )

    assert step(server, "plain", 1, 5, "start") == (400, text)
