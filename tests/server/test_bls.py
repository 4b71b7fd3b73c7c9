"""Models that call models, in the whole server: what they are answered, what ends with whom, what is left behind."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton

from tests.server.bls_models import COUNT, DECOUPLED, DOUBLE, PATIENT, SELF, model
from tests.server.running import PATIENCE, Running, running


@pytest.fixture
def signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where models leave signs of what happened to them."""
    directory = tmp_path / "signs"
    directory.mkdir()
    monkeypatch.setenv("BLS_SIGNS", str(directory))
    return directory


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with models to be called."""
    directory = tmp_path / "models"
    model(directory, "double", DOUBLE, output="Y")
    model(directory, "count", COUNT, output="Y", more=DECOUPLED)
    model(directory, "patient", PATIENT, output="Y")
    return directory


def said(server: Running, name: str, x: int | list[int] = 1) -> Any:
    """What a model says to X, by JSON."""
    values = x if isinstance(x, list) else [x]
    body = {"inputs": [{"name": "X", "datatype": "INT32", "shape": [len(values)], "data": values}]}
    status, answer = server.post(f"/v2/models/{name}/infer", body)
    assert status == 200, answer
    return json.loads(json.loads(answer)["outputs"][0]["data"][0])


def until(sign: Path) -> None:
    """Wait for a sign."""
    end = time.monotonic() + PATIENCE
    while not sign.exists():
        assert time.monotonic() < end, f"no {sign.name}"
        time.sleep(0.005)


def tensor_memory(server: Running) -> float:
    """Bytes of tensor memory in use."""
    page = server.get("/metrics", server.metrics)[1].decode()
    found = re.search(r"^edge_serve_tensor_memory_used_bytes (\S+)$", page, re.MULTILINE)
    assert found, page
    return float(found[1])


ASKS = """
    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
        good = answer(ask("double", x).exec())
        bad = answer(ask("double", -1).exec())
        missing = answer(ask("nobody", 1).exec())
        version = answer(ask("double", 1, model_version=7).exec())
        plain = answer(ask("count", 2).exec())
        wrong = pb_utils.InferenceRequest(model_name="double", requested_output_names=["Y"], inputs=[])
        return [text(good, bad, missing, version, plain, answer(wrong.exec()))]
"""


def test_calls_are_answered_with_outputs_or_errors(root: Path) -> None:
    model(root, "asks", ASKS)
    with running(f"--model-repository={root}") as server:
        good, bad, missing, version, plain, wrong = said(server, "asks", [3, 4])
        again = said(server, "asks", [5])
        page = server.get("/metrics", server.metrics)[1].decode()
    prefix = "Error when running inference:"
    assert good == [6, 8]
    assert again[0] == [10]
    assert bad == [2, "no negative numbers"]
    for found, name in ((missing, "nobody"), (version, "double")):
        text = f"Model {name} - {prefix} Failed for execute the inference request. Model '{name}' is not ready."
        assert found == [1, text]
    assert plain[1].startswith(f"Model count - {prefix} Model count is using the decoupled. ")
    assert wrong[1].startswith(f"Model double - {prefix} [request id: <id_unknown>] expected 1 inputs but got 0 inputs")
    assert 'nv_inference_request_success{model="double",version="1"} 4\n' in page  # an error is an answer too


ASYNC = """
    async def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
        three = await asyncio.gather(*(ask("double", value).async_exec() for value in (1, 2, 3)))
        stream = await ask("count", 3).async_exec(decoupled=True)
        numbers = [answer(r) for r in stream if r.output_tensors()]
        call = ask("patient", 1).async_exec()
        try:
            await asyncio.wait_for(call, 0.2)
            late = "answered"
        except asyncio.TimeoutError:
            late = "given up"
        return [text([answer(r) for r in three], numbers, late)]
"""


def test_async_calls_run_side_by_side_and_may_be_given_up(root: Path, signs: Path) -> None:
    model(root, "asks", ASYNC)
    with running(f"--model-repository={root}") as server:
        assert said(server, "asks") == [[[2], [4], [6]], [[0], [1], [2]], "given up"]
        until(signs / "cancelled")


STREAMS = """
    def execute(self, requests):
        found = ask("count", 3).exec(decoupled=True)
        first = [answer(r) for r in found if r.output_tensors()]
        again = [answer(r) for r in found if r.output_tensors()]
        ordinary = [answer(r) for r in ask("double", 4).exec(decoupled=True)]
        missing = [r.has_error() for r in ask("nobody", 4).exec(decoupled=True)]
        endless = ask("count", -1).exec(decoupled=True)
        head = [answer(next(endless)) for _ in range(3)]
        if requests[0].request_id() == "drop":
            del endless
        else:
            endless.cancel()
            rest = list(endless)
            assert not rest[-1].output_tensors()
        return [text(first, again, ordinary, missing, head)]
"""


@pytest.mark.parametrize("how", ["cancel", "drop"])
def test_a_decoupled_model_is_iterated(root: Path, signs: Path, how: str) -> None:
    model(root, "asks", STREAMS)
    with running(f"--model-repository={root}") as server:
        body = {"id": how, "inputs": [{"name": "X", "datatype": "INT32", "shape": [1], "data": [1]}]}
        status, answer = server.post("/v2/models/asks/infer", body)
        assert status == 200, answer
        found = json.loads(json.loads(answer)["outputs"][0]["data"][0])
        assert found == [[[0], [1], [2]], [[0], [1], [2]], [[8]], [True], [[0], [1], [2]]]
        until(signs / "cancelled")


LARGE = """
    def execute(self, requests):
        tensor = pb_utils.get_input_tensor_by_name(requests[0], "X")
        passed = pb_utils.InferenceRequest(model_name="double", requested_output_names=["Y"], inputs=[tensor])
        first = pb_utils.get_output_tensor_by_name(passed.exec(), "Y").as_numpy()
        second = pb_utils.get_output_tensor_by_name(ask("double", first).exec(), "Y").as_numpy()
        third = pb_utils.get_output_tensor_by_name(ask("double", second + 1).exec(), "Y").as_numpy()
        assert third.flags.writeable
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", third)])]
"""


def test_large_tensors_go_through_shared_memory_and_leave_none(root: Path) -> None:
    model(root, "asks", LARGE, output="Y")
    x = np.arange(25_000_000 // 4, dtype=np.int32)
    with running(f"--model-repository={root}") as server, triton.InferenceServerClient(server.url) as client:
        given = triton.InferInput("X", list(x.shape), "INT32")
        given.set_data_from_numpy(x)
        for _ in range(2):
            np.testing.assert_array_equal((x * 4 + 1) * 2, client.infer("asks", [given]).as_numpy("Y"))
        end = time.monotonic() + PATIENCE
        while tensor_memory(server):
            assert time.monotonic() < end, "tensor memory was never given back"
            time.sleep(0.02)


NESTED = """
    def execute(self, requests):
        left = int(pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()[0])
        y = left
        if left:
            found = answer(ask("nested", left - 1).exec())
            y = found[0] + left if isinstance(found[1:], list) and len(found) == 1 else -1
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([y], np.int32))])]
"""


def numbers(server: Running, name: str, x: int) -> list[int]:
    """The output of a model that answers with numbers."""
    body = {"inputs": [{"name": "X", "datatype": "INT32", "shape": [1], "data": [x]}]}
    status, answer = server.post(f"/v2/models/{name}/infer", body)
    assert status == 200, answer
    found: list[int] = json.loads(answer)["outputs"][0]["data"]
    return found


def test_a_model_calls_itself_while_it_has_instances(root: Path) -> None:
    model(root, "nested", NESTED, output="Y", instances=3)
    with running(f"--model-repository={root}") as server:
        for _ in range(20):
            assert numbers(server, "nested", 2) == [3]


def test_a_circle_in_which_all_would_wait_is_refused(root: Path) -> None:
    model(root, "nested", SELF, instances=2)
    with running(f"--model-repository={root}") as server:
        for _ in range(3):
            found = said(server, "nested", 5)
            assert found[0] == 1
            assert found[1].startswith("Model nested - Error when running inference: every instance of 'nested' waits")


CALLS_PATIENT = """
    def execute(self, requests):
        return [text(answer(ask("patient", 1).exec()))]
"""


def test_what_a_caller_asked_ends_with_its_client(root: Path, signs: Path) -> None:
    model(root, "asks", CALLS_PATIENT)
    with running(f"--model-repository={root}") as server:
        with waiting(server, "asks", signs):
            pass
        until(signs / "cancelled")
        assert numbers(server, "double", 2) == [4]


@contextlib.contextmanager
def waiting(server: Running, name: str, signs: Path) -> Iterator[http.client.HTTPConnection]:
    """A client that has asked a model that has asked `patient`, which has started; it leaves at the end."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.http, timeout=PATIENCE)) as client:
        body = {"inputs": [{"name": "X", "datatype": "INT32", "shape": [1], "data": [1]}]}
        client.request("POST", f"/v2/models/{name}/infer", json.dumps(body))
        until(signs / "started")
        yield client


CALLS_AND_TELLS = (
    """
    def initialize(self, args):
        with open(os.environ["BLS_SIGNS"] + "/pid", "w") as file:
            file.write(str(os.getpid()))
"""
    + CALLS_PATIENT
)


def test_what_a_caller_asked_ends_with_its_death(root: Path, signs: Path) -> None:
    model(root, "asks", CALLS_AND_TELLS)
    with running(f"--model-repository={root}") as server:
        with waiting(server, "asks", signs) as client:
            os.kill(int((signs / "pid").read_text()), signal.SIGKILL)
            answer = client.getresponse()
            assert answer.status == 500
            assert b"is not healthy" in answer.read()
        until(signs / "cancelled")


@pytest.fixture
def explicit(root: Path) -> Iterator[Running]:
    """A server whose models load on request."""
    model(root, "asks", CONTROLS)
    arguments = ("--model-control-mode=explicit", "--load-model=asks", "--load-model=double")
    with running(f"--model-repository={root}", *arguments) as server:
        yield server


CONTROLS = """
    def execute(self, requests):
        do = int(pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()[0])
        ready = pb_utils.is_model_ready
        try:
            if do == 1:
                before = ready("count")
                pb_utils.load_model("count")
                return [text(before, ready("count"), ready("count", "1"), ready("count", "9"), ready("nobody"))]
            if do == 2:
                pb_utils.unload_model("count")
                return [text(ready("count"))]
            if do == 3:
                pb_utils.load_model("nobody")
            if do == 4:
                pb_utils.unload_model("asks")
                return [text(ready("asks"), answer(ask("double", 2).exec()))]
            if do == 5:
                ready("count", "one")
        except pb_utils.TritonModelException as error:
            return [text(str(error))]
"""


def test_a_model_loads_unloads_and_asks(explicit: Running) -> None:
    assert said(explicit, "asks", 1) == [False, True, True, False, False]
    assert explicit.get("/v2/models/count/ready")[0] == 200
    assert said(explicit, "asks", 2) == [False]
    triton = "Failed to load model: failed to load 'nobody', failed to poll from model repository"
    assert said(explicit, "asks", 3)[0].startswith(f"{triton}: no directory 'nobody' in ")
    assert said(explicit, "asks", 5)[0].startswith("Failed to check model readiness: failed to get model version")


def test_a_model_may_unload_itself(explicit: Running) -> None:
    assert said(explicit, "asks", 4) == [False, [4]]
    assert explicit.get("/v2/models/asks/ready")[0] == 400


ITSELF = """
    def initialize(self, args):
        self.said = []
        for do in (pb_utils.load_model, pb_utils.unload_model):
            try:
                do("itself")
            except pb_utils.TritonModelException as error:
                self.said.append(str(error))
        pb_utils.load_model("count")

    def execute(self, requests):
        return [text(*self.said)]

    def finalize(self):
        pb_utils.unload_model("count")
        try:
            pb_utils.unload_model("itself")
        except pb_utils.TritonModelException as error:
            print("finalize:", error)
"""


def test_a_model_that_loads_others_and_itself_does_not_hang(explicit: Running, root: Path) -> None:
    model(root, "itself", ITSELF)
    assert explicit.post("/v2/repository/models/itself/load")[0] == 200
    why = "model 'itself' cannot be loaded or unloaded by itself while it loads or unloads"
    assert said(explicit, "itself") == [f"Failed to load model: {why}", f"Failed to unload model: {why}"]
    assert explicit.get("/v2/models/count/ready")[0] == 200
    assert explicit.post("/v2/repository/models/itself/unload")[0] == 200
    explicit.wait_for_log(f"finalize: Failed to unload model: {why}")
    assert explicit.get("/v2/models/count/ready")[0] == 400


def test_the_called_model_is_unloaded_meanwhile(root: Path, signs: Path) -> None:
    model(root, "asks", CALLS_PATIENT)
    arguments = ("--model-control-mode=explicit", "--load-model=asks", "--load-model=patient")
    with running(f"--model-repository={root}", *arguments) as server:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.http, timeout=PATIENCE)) as unloading:
            with waiting(server, "asks", signs):
                unloading.request("POST", "/v2/repository/models/patient/unload")
            assert unloading.getresponse().read() == b""
        assert (signs / "cancelled").exists(), "it was closed while a call was in it"
        assert server.get("/v2/models/asks/ready")[0] == 200
