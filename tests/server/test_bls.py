"""Models that call models, in the whole server: what they are answered, what ends with whom, what is left behind."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.server.bls_models import COUNT, DECOUPLED, DOUBLE, PATIENT, SELF, model
from tests.server.raw_http import reset_on_close
from tests.server.running import PATIENCE, Running, running

Asks = Callable[..., None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bls")


@pytest.fixture
def signs(folder: Path) -> Path:
    """Where models leave signs of what happened to them; empty at the begin of each test."""
    directory = folder / "signs"
    forget(directory)
    return directory


def forget(signs: Path) -> None:
    for sign in signs.iterdir():
        sign.unlink()


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    """One server for all tests, with models to be called; it loads others on request."""
    (folder / "signs").mkdir()
    root = folder / "models"
    model(root, "double", DOUBLE, output="Y")
    model(root, "count", COUNT, output="Y", more=DECOUPLED)
    model(root, "patient", PATIENT, output="Y")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BLS_SIGNS", str(folder / "signs"))
        with running(f"--model-repository={root}", "--model-control-mode=explicit", "--load-model=double") as made:
            yield made


@pytest.fixture
def asks(server: Running, folder: Path) -> Iterator[Asks]:
    """Loads a model that calls others, "asks" if no name is given, until the end of the test."""
    loaded = []

    def load(code: str, *called: str, name: str = "asks", **more: Any) -> None:
        """Load the model, and before it the models it calls."""
        model(folder / "models", name, code, **more)
        loaded.append(name)
        for needed in (*called, name):
            if needed == name or not is_ready(server, needed):
                status, answer = server.post(f"/v2/repository/models/{needed}/load")
                assert status == 200, answer

    yield load
    for name in loaded:
        server.post(f"/v2/repository/models/{name}/unload")


def is_ready(server: Running, name: str) -> bool:
    return server.get(f"/v2/models/{name}/ready")[0] == 200


def said(server: Running, name: str, x: int | list[int] = 1) -> Any:
    """Return the answer of a model to X, over JSON."""
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


def metric(server: Running, name: str) -> float:
    """Value of a metric, whose name includes its labels; 0 where it is missing."""
    page = server.get("/metrics", server.metrics)[1].decode()
    found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
    return float(found[1]) if found else 0


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


def test_calls_are_answered_with_outputs_or_errors(server: Running, asks: Asks) -> None:
    asks(ASKS, "double", "count")
    successes = 'nv_inference_request_success{model="double",version="1"}'
    before = metric(server, successes)
    good, bad, missing, version, plain, wrong = said(server, "asks", [3, 4])
    again = said(server, "asks", [5])
    prefix = "Error when running inference:"
    assert good == [6, 8]
    assert again[0] == [10]
    assert bad == [2, "no negative numbers"]
    for found, name in ((missing, "nobody"), (version, "double")):
        text = f"Model {name} - {prefix} Failed for execute the inference request. Model '{name}' is not ready."
        assert found == [1, text]
    assert plain[1].startswith(f"Model count - {prefix} Model count is using the decoupled. ")
    assert wrong[1].startswith(f"Model double - {prefix} [request id: <id_unknown>] expected 1 inputs but got 0 inputs")
    assert metric(server, successes) - before == 4  # an error is an answer too


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


def test_async_calls_run_side_by_side_and_may_be_given_up(server: Running, asks: Asks, signs: Path) -> None:
    asks(ASYNC, "double", "count", "patient")
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


def test_a_decoupled_model_is_iterated(server: Running, asks: Asks, signs: Path) -> None:
    asks(STREAMS, "double", "count")
    for how in ("cancel", "drop"):
        forget(signs)
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


def test_large_tensors_go_through_shared_memory_and_leave_none(server: Running, asks: Asks) -> None:
    asks(LARGE, "double", output="Y")
    x = np.arange(25_000_000 // 4, dtype=np.int32)
    with triton.InferenceServerClient(server.url) as client:
        given = triton.InferInput("X", list(x.shape), "INT32")
        given.set_data_from_numpy(x)
        for _ in range(2):
            np.testing.assert_array_equal((x * 4 + 1) * 2, client.infer("asks", [given]).as_numpy("Y"))
        assert "edge_serve_tensor_memory_used_bytes " in server.get("/metrics", server.metrics)[1].decode()
        end = time.monotonic() + PATIENCE
        while metric(server, "edge_serve_tensor_memory_used_bytes"):
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


def test_a_model_calls_itself_while_it_has_instances(server: Running, asks: Asks) -> None:
    asks(NESTED, name="nested", output="Y", instances=3)
    for _ in range(20):
        assert numbers(server, "nested", 2) == [3]


def test_a_circle_in_which_all_would_wait_is_refused(server: Running, asks: Asks) -> None:
    asks(SELF, name="nested", instances=2)
    for _ in range(3):
        found = said(server, "nested", 5)
        assert found[0] == 1
        assert found[1].startswith("Model nested - Error when running inference: every instance of 'nested' waits")


CALLS_PATIENT = """
    def execute(self, requests):
        return [text(answer(ask("patient", 1).exec()))]
"""


def test_calls_end_with_the_client_of_their_caller(server: Running, asks: Asks, signs: Path) -> None:
    asks(CALLS_PATIENT, "patient", "double")
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
        reset_on_close(client.sock)
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


def test_calls_end_with_the_death_of_their_caller(server: Running, asks: Asks, signs: Path) -> None:
    asks(CALLS_AND_TELLS, "patient")
    with waiting(server, "asks", signs) as client:
        os.kill(int((signs / "pid").read_text()), signal.SIGKILL)
        answer = client.getresponse()
        assert answer.status == 500
        assert b"is not healthy" in answer.read()
    until(signs / "cancelled")


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


def test_a_model_loads_unloads_and_asks(server: Running, asks: Asks) -> None:
    asks(CONTROLS)
    server.post("/v2/repository/models/count/unload")
    assert said(server, "asks", 1) == [False, True, True, False, False]
    assert is_ready(server, "count")
    assert said(server, "asks", 2) == [False]
    triton = "Failed to load model: failed to load 'nobody', failed to poll from model repository"
    assert said(server, "asks", 3)[0].startswith(f"{triton}: no directory 'nobody' in ")
    assert said(server, "asks", 5)[0].startswith("Failed to check model readiness: failed to get model version")
    # it may unload itself
    assert said(server, "asks", 4) == [False, [4]]
    assert server.get("/v2/models/asks/ready")[0] == 400


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


def test_a_model_that_loads_others_and_itself_does_not_hang(server: Running, asks: Asks) -> None:
    server.post("/v2/repository/models/count/unload")
    asks(ITSELF, name="itself")
    why = "model 'itself' cannot be loaded or unloaded by itself while it loads or unloads"
    assert said(server, "itself") == [f"Failed to load model: {why}", f"Failed to unload model: {why}"]
    assert is_ready(server, "count")
    assert server.post("/v2/repository/models/itself/unload")[0] == 200
    server.wait_for_log(f"finalize: Failed to unload model: {why}")
    assert server.get("/v2/models/count/ready")[0] == 400


def test_the_called_model_is_unloaded_meanwhile(server: Running, asks: Asks, signs: Path) -> None:
    asks(CALLS_PATIENT, "patient")
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.http, timeout=PATIENCE)) as unloading:
        with waiting(server, "asks", signs):
            unloading.request("POST", "/v2/repository/models/patient/unload")
        assert unloading.getresponse().read() == b""
    assert (signs / "cancelled").exists(), "it was closed while a call was in it"
    assert is_ready(server, "asks")


#: answers the least and the greatest element of X, once the test lets it
RANGE = """
    def execute(self, requests):
        signs = os.environ["BLS_SIGNS"]
        open(signs + "/started", "w").close()
        end = time.monotonic() + 30
        while not os.path.exists(signs + "/go") and time.monotonic() < end:
            time.sleep(0.002)
        found = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        ranges = [np.array([x.min(), x.max()], np.int32) for x in found]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", one)]) for one in ranges]
"""
#: an ensemble of it, whose member reads the memory of the caller
AROUND = """
platform: "ensemble"
input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_INT32 dims: [ -1 ] }
ensemble_scheduling { step {
  model_name: "range" model_version: -1
  input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" }
} }
"""
_CALL = """
    def call(self, x):
        return pb_utils.InferenceRequest(model_name="around", requested_output_names=["Y"], inputs=[x])
"""
THREAD_CALLS = f"""{_CALL}
    def later(self, x, call):
        note("seen-" + str(x.as_numpy()[0]), answer(call.exec()))

    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "X")
        threading.Thread(target=self.later, args=(x, self.call(x)), daemon=True).start()
        return [text("called")]
"""
TASK_CALLS = f"""{_CALL}
    tasks = []

    async def later(self, x):
        note("seen-" + str(x.as_numpy()[0]), answer(await self.call(x).async_exec()))

    async def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "X")
        self.tasks.append(asyncio.ensure_future(self.later(x)))
        await asyncio.sleep(0)
        return [text("called")]
"""
#: one instance calls the other if X begins with 1, and its worker dies
DYING_CALL = """
    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "X")
        if requests[0].request_id() == "inner":
            return self.inner(x.as_numpy())
        if x.as_numpy()[0] == 1:
            threading.Thread(target=self.die, daemon=True).start()
            inputs, wanted = [x], ["TEXT"]
            pb_utils.InferenceRequest("inner", 0, inputs, wanted, "asks").exec()
        return [text("called")]

    def inner(self, x):
        signs = os.environ["BLS_SIGNS"]
        open(signs + "/started", "w").close()
        end = time.monotonic() + 30
        while not os.path.exists(signs + "/go") and time.monotonic() < end:
            time.sleep(0.002)
        note("range", [int(x.min()), int(x.max())])
        return [text("called")]

    def die(self):
        while not os.path.exists(os.environ["BLS_SIGNS"] + "/started"):
            time.sleep(0.002)
        os._exit(1)
"""


@pytest.fixture
def around(folder: Path) -> str:
    """Return the name of an ensemble that reads the memory of its caller late."""
    model(folder / "models", "range", RANGE, output="Y")
    (folder / "models" / "around" / "1").mkdir(parents=True, exist_ok=True)
    (folder / "models" / "around" / "config.pbtxt").write_text(AROUND)
    return "around"


def send(server: Running, name: str, value: int, elements: int = 100_000) -> None:
    """Send a tensor, large by default, whose elements are equal."""
    given = triton.InferInput("X", [elements], "INT32")
    given.set_data_from_numpy(np.full(elements, value, np.int32))
    triton.InferenceServerClient(server.url).infer(name, [given])


@pytest.mark.parametrize("code", [THREAD_CALLS, TASK_CALLS], ids=["thread", "task"])
def test_a_call_that_outlives_its_request_reads_its_own_input(
    server: Running, asks: Asks, around: str, signs: Path, code: str
) -> None:
    """The requests come in the same memory, one after the other, while the called model is busy."""
    asks(code, "range", around)
    busy = threading.Thread(target=send, args=(server, "range", 0, 1))
    busy.start()
    until(signs / "started")
    for value in (1, 2, 3):
        send(server, "asks", value)
    (signs / "go").touch()
    for value in (1, 2, 3):
        until(signs / f"seen-{value}")
    busy.join()
    assert [json.loads((signs / f"seen-{value}").read_text()) for value in (1, 2, 3)] == [[1, 1], [2, 2], [3, 3]]


@pytest.mark.slow
def test_memory_that_a_call_reads_outlives_its_caller(server: Running, asks: Asks, signs: Path) -> None:
    """The called instance of the same model reads the memory in place, and may write to it."""
    asks(DYING_CALL, instances=2)
    with pytest.raises(InferenceServerException):
        send(server, "asks", 1)
    send(server, "asks", 2)
    (signs / "go").touch()
    until(signs / "range")
    assert json.loads((signs / "range").read_text()) == [1, 1]
