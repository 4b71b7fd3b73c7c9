"""A model that does not give its recorded answers never serves, and the version that served before goes on."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden.golden_files import add_sub, document, sample
from tests.server.bls_models import COUNT, DECOUPLED, DOUBLE, model
from tests.server.load import ADDS_UP, ADDS_UP_CONFIG, Load, busy
from tests.server.running import ADD_SUB, Running, python_model, running
from tests.server.test_check_infer import CONFIG, ECHO, ensemble
from tests.workers.harness import ECHO as ECHO_BACKEND

#: answers with its strings
STRINGS = """
name: "strings" backend: "echo" max_batch_size: 4
dynamic_batching { max_queue_delay_microseconds: 1000 }
input { name: "IN" data_type: TYPE_STRING dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_STRING dims: [ -1 ] }
"""
#: the first instance of its process dies of the first request
DIES = ADD_SUB.replace("        replies = []", "        import os; os._exit(7)\n        replies = []")
#: loads slowly, and is called by `CALLS`
SLOW = (
    """
    def initialize(self, args):
        time.sleep(0.3)
"""
    + DOUBLE
)
CALLS = """
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X")
            call = pb_utils.InferenceRequest(model_name="slow", requested_output_names=["Y"], inputs=[x])
            answer = call.exec()
            if answer.has_error():
                raise pb_utils.TritonModelException(answer.error().message())
            answers.append(pb_utils.InferenceResponse(answer.output_tensors()))
        return answers
"""


def numbers(*values: int) -> Any:
    return np.asarray(values, np.int32)


def rows(value: float) -> Any:
    return np.full((1, 2), value, np.float32)


def sums(root: Path, last: int) -> None:
    """Two sequences whose requests take turns; the last sum is `last`."""
    path = python_model(root, "sums", ADDS_UP, ADDS_UP_CONFIG)

    def step(name: str, number: int, value: int, total: int, **flags: bool) -> dict[str, Any]:
        parameters = {"sequence_id": number, **flags}
        inputs, outputs = {"INPUT": numbers(value).reshape(1, 1)}, {"OUTPUT": numbers(total).reshape(1, 1)}
        return sample(path, name, inputs, outputs, parameters=parameters)

    document(
        path, step("a1", 1, 5, 5, sequence_start=True), step("b1", 2, 7, 7, sequence_start=True),
        step("a2", 1, 1, 6), step("b2", 2, 1, 8, sequence_end=True), step("a3", 1, 1, last, sequence_end=True),
    )  # fmt: skip


def counts(root: Path, *expected: int) -> None:
    model(root, "counts", COUNT, output="Y", more=DECOUPLED)
    responses = [{"Y": numbers(value)} for value in expected]
    document(root / "counts", sample(root / "counts", "three", {"X": numbers(3)}, responses))


def strings(root: Path, second: bytes) -> None:
    (root / "strings/1").mkdir(parents=True, exist_ok=True)
    (root / "strings/config.pbtxt").write_text(STRINGS)
    shutil.copy(ECHO_BACKEND, root / "strings/backend.py")
    texts, said = (np.asarray([[b"one", last]], object) for last in (b"tw\xffo", second))
    document(root / "strings", sample(root / "strings", "texts", {"IN": texts}, {"OUT": said}))


def chain(root: Path, value: float) -> None:
    """An ensemble of two members; the second one has a golden test of its own."""
    for name in ("plain", "tested"):
        python_model(root, name, ECHO.format(before="pass"), CONFIG)
    document(root / "tested", sample(root / "tested", "one", {"IN": rows(1)}, {"OUT": rows(1)}))
    if not (root / "chain").exists():
        ensemble(root, "chain", "plain", "tested")
    document(root / "chain", sample(root / "chain", "two", {"IN": rows(2)}, {"OUT": rows(value)}))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that give their recorded answers."""
    root = tmp_path_factory.mktemp("models")
    add_sub(python_model(root, "add_sub"))
    sums(root, 7)
    counts(root, 0, 1, 2)
    strings(root, b"tw\xffo")
    chain(root, 2)
    model(root, "slow", SLOW, output="Y")
    model(root, "calls", CALLS, output="Y")
    document(root / "calls", sample(root / "calls", "two", {"X": numbers(1, 2)}, {"Y": numbers(2, 4)}))
    return root


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Running]:
    flags = (f"--model-repository={root}", "--model-control-mode=explicit", "--load-model=*")
    with running(*flags, "--strict-readiness=false") as server:
        yield server


def load(server: Running, name: str) -> tuple[int, str]:
    status, answer = server.post(f"/v2/repository/models/{name}/load")
    return status, json.loads(answer)["error"] if answer else ""


def test_models_that_give_their_recorded_answers_serve_and_nothing_is_counted(server: Running) -> None:
    index = {one["name"]: one["state"] for one in json.loads(server.post("/v2/repository/index")[1])}
    assert set(index) == {"add_sub", "sums", "counts", "strings", "chain", "plain", "tested", "slow", "calls"}
    assert set(index.values()) == {"READY"}
    for name, samples in (("sums", 5), ("counts", 1), ("strings", 1), ("chain", 1), ("calls", 1)):
        assert f"model {name} version 1 passed its golden test: {samples} samples in " in server.log()
    page = server.get("/metrics", server.metrics)[1].decode()
    for name in ("add_sub", "sums", "counts", "strings", "chain"):
        assert f'nv_inference_request_success{{model="{name}",version="1"}} 0' in page


def test_a_wrong_answer_never_serves_and_the_old_version_stays(server: Running, root: Path) -> None:
    python_model(root, "add_sub", ADD_SUB.replace("a + b", "a + b + (100 if b[0, 0] == 7 else 0)"), version=2)
    clients = Load()
    answers: list[tuple[int, str]] = []
    busy(
        clients,
        [partial(clients.add_sub, server.http, "add_sub")] * 4,
        lambda: answers.extend(load(server, "add_sub") for _ in range(2)),
    )
    said = (
        "model 'add_sub' version 2 fails its golden test: sample 'first': output 'OUTPUT0': 16 of 16 values differ, "
        "the largest difference is 100 at [0, 0]: 107, expected 7 (they must be equal). What to do: repair the model"
    )
    assert [(status, said in text) for status, text in answers] == [(400, True)] * 2, answers[0][1]
    assert clients.failures[:3] == []
    assert clients.answered > 20
    assert json.loads(server.get("/v2/models/add_sub")[1])["versions"] == ["1"]
    assert said in server.log()
    entries = [one for one in json.loads(server.post("/v2/repository/index")[1]) if one["name"] == "add_sub"]
    assert [(one["version"], one["state"], said in one.get("reason", "")) for one in entries] == [
        ("1", "READY", False), ("2", "UNAVAILABLE", True),
    ]  # fmt: skip


@pytest.mark.slow
def test_sequences_responses_strings_and_ensembles_are_compared(server: Running, root: Path) -> None:
    sums(root, 9)
    (root / "sums/1/model.py").write_text(ADDS_UP + "\n")
    status, text = load(server, "sums")
    assert (status, "sample 'a3': output 'OUTPUT': 1 of 1 values differ" in text) == (400, True), text
    counts(root, 0, 5)
    status, text = load(server, "counts")
    assert "sample 'three': 3 responses came, expected 2; sample 'three': output 'Y': 1 of 1 values" in text, text
    strings(root, b"two")
    assert "the first at [0, 1]: 'tw\\\\xffo', expected 'two'" in load(server, "strings")[1]
    chain(root, 2.5)
    status, text = load(server, "chain")
    assert "the largest difference is 0.5 at [0, 0]: 2.0, expected 2.5 (rtol 0.001, atol 1e-05)" in text, text
    assert json.loads(server.get("/v2/models/chain")[1])["versions"] == ["1"]
    chain(root, 2.0)
    assert load(server, "chain") == (200, "")


def test_a_test_that_does_not_fit_the_model(server: Running, root: Path) -> None:
    path = python_model(root, "unfit")
    x, y = np.zeros((1, 16), np.int32), np.zeros((1, 16), np.float32)
    document(path, sample(path, "s", {"INPUT0": x, "INPUT1": y}, {"OUTPUT0": x}))
    status, text = load(server, "unfit")
    said = "golden/golden.json: sample 's' does not fit the model: [request id: <id_unknown>] inference input 'INPUT1' "
    assert (status, f"{said}data-type is 'FP32', but model 'unfit' expects 'INT32'" in text) == (400, True), text
    (path / "golden/golden.json").write_text("{")
    status, text = load(server, "unfit")
    assert (status, "golden/golden.json: it is no strict JSON in UTF-8" in text) == (500, True), text
    os.unlink(path / "golden/golden.json")
    os.mkfifo(path / "golden/golden.json")
    assert "golden/golden.json is a directory, a pipe" in load(server, "unfit")[1]


def test_a_model_that_fails_or_dies_in_its_test(server: Running, root: Path) -> None:
    raises = ADD_SUB.replace("        replies = []", "        raise ValueError('no')\n")
    for name, code, said in (
        ("raises", raises, r"sample 'first': the model failed: .*ValueError: no"),
        ("dies", DIES, r"Internal: golden sample 'first': .*status 7"),
    ):
        add_sub(python_model(root, name, code))
        status, text = load(server, name)
        assert status == 400
        assert re.search(said, text, re.DOTALL), text
    workers = server.workers()
    time.sleep(0.1)
    assert server.workers() == workers, "the worker of a model that failed is still there"


@pytest.mark.slow
def test_a_model_whose_recording_was_interrupted_serves_after_the_rename_that_the_error_names(tmp_path: Path) -> None:
    add_sub(python_model(tmp_path, "add_sub"))
    golden = tmp_path / "add_sub" / "golden"
    golden.rename(golden.with_name(".golden.old"))
    with running(f"--model-repository={tmp_path}", "--model-control-mode=explicit") as server:
        status, error = load(server, "add_sub")
        assert status == 500
        found = re.search(r"a recording was interrupted: rename (\S+) to (\w+)", error)
        assert found is not None, error

        (tmp_path / "add_sub" / found[1]).rename(golden.with_name(found[2]))
        assert load(server, "add_sub") == (200, "")
        assert "model add_sub version 1 passed its golden test: " in server.log()
