"""`edge-serve check --infer --json`: reports models that load and answer wrongly, and continues."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edge_serve.check.infer import differences
from edge_serve.config.model.text import parse_model_config
from edge_serve.config.signature import signature_of
from edge_serve.messages.tensors import DataType, InferTensor
from tests.forked import program
from tests.server.running import python_model

pytestmark = pytest.mark.slow  # it asks many models, some of which hang

#: answers with the input, under the name OUT
ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.answer(r)]) for r in requests]

    def answer(self, request):
        {before}
        return pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(request, "IN").as_numpy())
"""
#: calls `good`
BLS = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.call(r) for r in requests]

    def call(self, request):
        answer = pb_utils.InferenceRequest(
            model_name="good", requested_output_names=["OUT"], inputs=request.inputs()
        ).exec()
        if answer.has_error():
            return pb_utils.InferenceResponse(error=answer.error())
        return pb_utils.InferenceResponse(answer.output_tensors())
"""
CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] }
"""
WRONG = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        outputs = [pb_utils.Tensor("OUT", np.zeros((3,), np.float32)), pb_utils.Tensor("TYPE", np.zeros((1, 2))),
                   pb_utils.Tensor("MISSPELT", np.zeros((1, 2), np.float32)),
                   pb_utils.Tensor("TYPE", np.zeros((1, 2)))]
        return [pb_utils.InferenceResponse(outputs) for r in requests]
"""
WRONG_CONFIG = CONFIG + "".join(
    f'output {{ name: "{name}" data_type: TYPE_FP32 dims: [ 2 ] }}\n' for name in ("TYPE", "MISSING")
)
ONLY_POSITIVE = 'assert pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().min() > 0, "only positive"'
WARMUP = """
model_warmup {
  name: "noise" batch_size: 1 inputs { key: "IN" value { data_type: TYPE_FP32 dims: [ 2 ] random_data: true } }
}
"""


def ensemble(root: Path, name: str, *members: str) -> None:
    """Write a chain of models with IN and OUT."""
    tensors = ["IN", *(f"t{number}" for number in range(1, len(members))), "OUT"]
    steps = [
        f'step [ {{ model_name: "{member}" model_version: -1 input_map {{ key: "IN" value: "{tensors[number]}" }} '
        f'output_map {{ key: "OUT" value: "{tensors[number + 1]}" }} }} ]'
        for number, member in enumerate(members)
    ]
    (root / name / "1").mkdir(parents=True)
    faces = CONFIG.partition("max_batch_size")
    text = f'platform: "ensemble"\nmax_batch_size{faces[2]}ensemble_scheduling {{ {" ".join(steps)} }}\n'
    (root / name / "config.pbtxt").write_text(text)


def check(root: Path, *options: str) -> dict[str, Any]:
    """Run the check in a process of its own; the document, which must be all that is printed."""
    ended = program("check", str(root), "--json", *options, limit=60.0)
    document: dict[str, Any] = json.loads(ended.output)
    assert ended.status == (0 if document["ok"] else 1)
    return {**document, "by_name": {model["name"]: model for model in document["models"]}}


def problems(document: dict[str, Any], name: str) -> str:
    """Return the entry of a model."""
    return "\n".join(text for asked in document["by_name"][name]["asked"] for text in asked["problems"])


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The document of one check of all models."""
    root = tmp_path_factory.mktemp("models")
    python_model(root, "a_dies", ECHO.format(before="import os; os._exit(3)"), CONFIG)
    python_model(root, "b_hangs", ECHO.format(before="while True: pass"), CONFIG)
    ensemble(root, "c_chain", "d_good", "b_hangs")
    python_model(root, "d_good", ECHO.format(before="pass"), CONFIG)
    python_model(root, "e_wrong", WRONG, WRONG_CONFIG)
    python_model(root, "f_blind", ECHO.format(before=ONLY_POSITIVE), CONFIG)
    ensemble(root, "g_chain", "f_blind", "d_good")
    python_model(root, "h_seeing", ECHO.format(before=ONLY_POSITIVE), CONFIG + WARMUP)
    ensemble(root, "i_chain", "h_seeing", "d_good")
    return check(root, "--infer", "--infer-timeout=0.5")


def test_every_model_has_a_verdict_and_those_that_answer_are_good(told: dict[str, Any]) -> None:
    assert {name: model["ok"] for name, model in told["by_name"].items()} == {
        "a_dies": False, "b_hangs": False, "c_chain": False, "d_good": True, "e_wrong": False,
        "f_blind": False, "g_chain": False, "h_seeing": True, "i_chain": True,
    }  # fmt: skip
    (asked,) = told["by_name"]["d_good"]["asked"]
    assert (asked["request"], asked["responses"], asked["outputs"]) == ("zeros", 1, ["OUT TYPE_FP32 [1, 2]"])
    assert told["error"] == ""


def test_a_model_that_dies_is_reported(told: dict[str, Any]) -> None:
    assert "status 3" in problems(told, "a_dies")


def test_a_model_that_hangs_is_reported_and_named_where_an_ensemble_needs_it(told: dict[str, Any]) -> None:
    assert problems(told, "b_hangs").splitlines() == [
        "no answer within 0.5 s (--infer-timeout)",
        "the model was still computing: it hangs, or it needs a longer --infer-timeout",
    ]
    assert "no answer within 0.5 s" in problems(told, "c_chain")
    assert "still computing: b_hangs" in problems(told, "c_chain")


def test_wrong_outputs_are_reported_one_by_one(told: dict[str, Any]) -> None:
    said = problems(told, "e_wrong")

    assert "output OUT is TYPE_FP32 [3], config.pbtxt declares TYPE_FP32 [1, 2]" in said
    assert "output TYPE is TYPE_FP64 [1, 2], config.pbtxt declares TYPE_FP32 [1, 2]" in said
    assert "output TYPE is 2 times in one response: return it once" in said
    assert "output MISSING is missing: config.pbtxt declares TYPE_FP32 [1, 2], the answer has " in said
    assert re.search(r"^the model returned an output 'MISSPELT' \(model.py line \d+\), but ", said, re.MULTILINE)


def test_where_zeros_are_no_good_the_sample_of_a_warmup_is_advised(told: dict[str, Any]) -> None:
    said = problems(told, "f_blind")
    assert "only positive" in said
    assert (
        "it was asked with zeros: if the model cannot take them, write a sample that it can take, a model_warmup"
        in said
    )
    assert said.endswith("into its config.pbtxt")
    assert problems(told, "g_chain").endswith("into the config.pbtxt of f_blind"), "an ensemble may have no warm-up"


def test_an_ensemble_is_asked_with_the_sample_of_the_member_that_takes_its_input(told: dict[str, Any]) -> None:
    (asked,) = told["by_name"]["h_seeing"]["asked"]
    assert asked["request"] == "model_warmup sample 'noise'"
    (asked,) = told["by_name"]["i_chain"]["asked"]
    assert asked["request"] == "the model_warmup sample of h_seeing"


def test_a_model_that_calls_another_one_is_checked_with_it(tmp_path: Path) -> None:
    python_model(tmp_path, "bls", BLS, CONFIG)
    python_model(tmp_path, "good", ECHO.format(before="pass"), CONFIG)

    (error, advice) = problems(check(tmp_path, "--infer", "--model=bls"), "bls").splitlines()
    assert error.endswith("Model 'good' is not ready.")
    assert advice == "it calls 'good', which is not loaded: add --model good, or check the whole repository"

    assert check(tmp_path, "--infer", "--model=bls", "--model=good")["ok"]


def test_a_called_model_that_does_not_exist_is_named(tmp_path: Path) -> None:
    python_model(tmp_path, "bls", BLS, CONFIG)
    assert problems(check(tmp_path, "--infer"), "bls").splitlines()[-1] == (
        "it calls 'good', which is not loaded: no such model is in the repository, or it failed to load"
    )


def test_the_page_names_every_member_of_the_document(told: dict[str, Any]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    model = told["by_name"]["d_good"]
    members = {*told.keys() - {"by_name"}, *model, *model["asked"][0], "what", "declared", "found", "line", "agrees"}

    assert sorted(name for name in members if f"`{name}`" not in page and f"models[].{name}[]" not in page) == [
        "models"
    ]


def test_a_repository_that_is_not_there_is_a_document_too(tmp_path: Path) -> None:
    document = check(tmp_path / "none")

    assert (document["ok"], document["models"]) == (False, [])
    assert document["error"].endswith(
        "No such file or directory; expected a directory of models that this user can read"
    )


def test_a_model_that_is_not_there_is_answered_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "classifier").mkdir()

    assert "there is no model 'clasifier'" in (said := check(tmp_path, "--model=clasifier")["error"])
    assert "did you mean 'classifier'?" in said


def test_only_root_checks_as_another_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from edge_serve import cli

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit) as ended:
        cli.main(["check", "--as", "nobody", str(tmp_path)])

    assert ended.value.code == 2
    assert "only root may act as another user; use sudo" in capsys.readouterr().err


def test_another_user_checks_the_same_with_whole_paths(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from edge_serve import cli

    asked: dict[str, Any] = {}

    def run(command: list[str], **how: Any) -> subprocess.CompletedProcess[bytes]:
        asked.update(how, command=command)
        if asked["user"] != pwd.getpwnam("nobody").pw_uid:
            raise PermissionError(13, "Permission denied")
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGE_SERVE_BACKEND_DIRECTORY", "backends")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(subprocess, "run", run)
    assert cli.main(["check", "models", "--as", "nobody", "--infer", "--model", "a", "--infer-timeout", "3",
                     "--backend-config", "a=1", "--backend-config=tensorrt,plugins=a,b=c.so"]) == 1  # fmt: skip
    assert asked["command"][-10:] == [
        "check", "--infer", "--infer-timeout=3.0", "--load-timeout=600.0", f"--backend-directory={tmp_path}/backends",
        "--backend-config=a=1", "--backend-config=tensorrt,plugins=a,b=c.so", "--model=a", "--", f"{tmp_path}/models",
    ]  # fmt: skip
    assert (asked["cwd"], asked["env"]["USER"]) == ("/", "nobody")

    assert cli.main(["check", "models", "--as", "root"]) == 1
    assert "as user 'root': Permission denied; is it in a private directory?" in capsys.readouterr().err


def differing(shape: tuple[int, ...], datatype: DataType = DataType.FP32, dims: str = "-1, 2") -> list[str]:
    """Return the finding for an output of this shape, in an answer to one row."""
    config = parse_model_config(
        f'name: "m" backend: "x" max_batch_size: 2 output {{ name: "O" data_type: TYPE_FP32 dims: [ {dims} ] }}', "m"
    )
    return differences([InferTensor("O", datatype, shape, b"")], signature_of(config, "m", 1, {}), 1, "python")


@pytest.mark.parametrize(
    ("shape", "fits"), [((1, 7, 2), True), ((1, 0, 2), True), ((2, 7, 2), False), ((1, 7, 3), False), ((7, 2), False)]
)
def test_a_variable_dimension_fits_any_size_and_the_batch_is_that_of_the_request(
    shape: tuple[int, ...], fits: bool
) -> None:
    assert (differing(shape) == []) is fits


DECOUPLED = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for _ in {times}:
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros((1, 2), np.float32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
NEVER_LOADS = """
class TritonPythonModel:
    def initialize(self, args):
        while True:
            pass

    def execute(self, requests):
        pass
"""
CALLER = ECHO.format(
    before='i = [pb_utils.get_input_tensor_by_name(request, "IN")]; '
    'r = pb_utils.InferenceRequest(model_name="echo", requested_output_names=["OUT"], inputs=i).exec(); '
    "assert not r.has_error(), r.error().message()"
)
SEQUENCE = """
sequence_batching {
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }
}
"""


def test_models_of_every_kind_are_asked_as_they_must_be(tmp_path: Path) -> None:
    echo = ECHO.format(before="pass")
    started = ECHO.format(before='assert pb_utils.get_input_tensor_by_name(request, "START").as_numpy().item() == 1')
    policy = "model_transaction_policy { decoupled: true }\n"
    python_model(tmp_path, "caller", CALLER, CONFIG)
    python_model(tmp_path, "decoupled", DECOUPLED.format(times="range(3)"), CONFIG + policy)
    python_model(tmp_path, "echo", echo, CONFIG)
    python_model(tmp_path, "endless", DECOUPLED.format(times="iter(int, 1)"), CONFIG + policy)
    python_model(tmp_path, "never_loads", NEVER_LOADS, CONFIG)
    python_model(tmp_path, "not_zeros", ECHO.format(before=ONLY_POSITIVE), CONFIG)
    python_model(tmp_path, "sequence", started, CONFIG + SEQUENCE)
    python_model(tmp_path, "silent", DECOUPLED.format(times="()"), CONFIG + policy)
    python_model(tmp_path, "warm_hangs", ECHO.format(before="import time; time.sleep(600)"), CONFIG + WARMUP)
    python_model(tmp_path, "warmed", ECHO.format(before=ONLY_POSITIVE), CONFIG + WARMUP)

    document = check(tmp_path, "--infer", "--infer-timeout=2", "--load-timeout=5")

    assert {name for name, model in document["by_name"].items() if not model["ok"]} == {
        "endless", "never_loads", "not_zeros", "warm_hangs",
    }  # fmt: skip
    assert "did not load within 5 s (--load-timeout)" in document["by_name"]["never_loads"]["error"]
    assert "failed to run warmup sample 'noise'" in (said := document["by_name"]["warm_hangs"]["error"])
    assert "hangs in its warm-up" in said
    assert " s (--load-timeout); " in said
    assert "--hang-timeout-secs" not in said
    assert "responses came, but not the last one within 2 s" in problems(document, "endless")
    assert "only positive" in problems(document, "not_zeros")
    asked = {name: model["asked"][0] for name, model in document["by_name"].items() if model["asked"]}
    assert [asked[name]["responses"] for name in ("decoupled", "silent", "sequence")] == [3, 0, 1]
    assert asked["warmed"]["request"] == "model_warmup sample 'noise'"
