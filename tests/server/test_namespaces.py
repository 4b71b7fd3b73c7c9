"""`--model-namespacing`: models of one name in two repositories. As Triton's qa/L0_model_namespacing asks for."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends.onnx_models import FLOAT, node, save
from tests.server.load import ADDS_UP, ADDS_UP_CONFIG, Client, adds_up_body, touch
from tests.server.quick_polls import QUICK_POLLS
from tests.server.running import ADD_SUB, ADD_SUB_CONFIG, PATIENCE, Running, python_model, running

pytestmark = pytest.mark.slow  # a server for each arrangement of repositories

SUB_ADD = ADD_SUB.replace("a + b", "SUM").replace("a - b", "a + b").replace("SUM", "a - b")
PIPELINE = ADD_SUB_CONFIG.replace('backend: "python"', 'platform: "ensemble"') + (
    'ensemble_scheduling { step { model_name: "%s" model_version: -1 '
    'input_map { key: "INPUT0" value: "INPUT0" } input_map { key: "INPUT1" value: "INPUT1" } '
    'output_map { key: "OUTPUT0" value: "OUTPUT0" } output_map { key: "OUTPUT1" value: "OUTPUT1" } } }\n'
)


def ensemble(root: Path, name: str, member: str) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(PIPELINE % member)


def houses(root: Path) -> tuple[str, ...]:
    """Repositories `add` and `sub`: each with an ensemble of its own over a model that both have; the flags."""
    for name, code in (("add", ADD_SUB), ("sub", SUB_ADD)):
        python_model(root / name, "member", code)
        ensemble(root / name, f"pipeline_{name}", "member")
    return (*(f"--model-repository={root / name}" for name in ("add", "sub")), "--model-namespacing=true")


def sums(server: Running, model: str) -> int:
    """OUTPUT0: 2 where that is the sum of 1 and 1, 0 where it is the difference."""
    status, answer = server.add_sub(model)
    assert status == 200, answer
    return sum_in(answer)


def sum_in(answer: dict[str, Any]) -> int:
    return int(next(output["data"][0] for output in answer["outputs"] if output["name"] == "OUTPUT0"))


def until_it_sums(server: Running, model: str, expected: int) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        status, answer = server.add_sub(model)
        if status == 200 and sum_in(answer) == expected:
            return
        assert time.monotonic() < end, server.log()
        time.sleep(0.05)


def assert_ambiguous(server: Running, model: str) -> None:
    status, answer = server.add_sub(model)
    assert status == 400
    assert answer["error"] == (
        f"There are 2 identifiers of model '{model}' in global map, model namespace must be provided to resolve "
        "ambiguity."
    )


def test_each_ensemble_finds_the_member_beside_it(tmp_path: Path) -> None:
    with running(*houses(tmp_path)) as server:
        assert (sums(server, "pipeline_add"), sums(server, "pipeline_sub")) == (2, 0)
        assert_ambiguous(server, "member")

        index = json.loads(server.post("/v2/repository/index")[1])
        assert sorted(entry["name"] for entry in index) == ["member", "member", "pipeline_add", "pipeline_sub"]
        assert {entry["state"] for entry in index} == {"READY"}
        config = json.loads(server.get("/v2/models/pipeline_sub/config")[1])
        assert config["ensemble_scheduling"]["step"][0]["model_namespace"] == str(tmp_path / "sub")
        page = server.get("/metrics", server.metrics)[1].decode()
        for name in ("add", "sub"):
            assert f'nv_inference_count{{model="member",namespace="{tmp_path / name}",version="1"}} 1' in page
        rows = json.loads(server.get("/edge-serve/status")[1])["models"]
        members = {row["namespace"]: row["totals"]["requests"] for row in rows if row["name"] == "member"}
        assert members == {str(tmp_path / "add"): 1, str(tmp_path / "sub"): 1}


def test_without_namespaces_the_same_models_are_ambiguous_for_the_ensembles_too(tmp_path: Path) -> None:
    flags = houses(tmp_path)[:2]
    with running(*flags, "--exit-on-error=false", ready=False) as server:
        server.wait_for_log("edge-serve .* ready in|not ready")
        index = {entry["name"]: entry for entry in json.loads(server.post("/v2/repository/index")[1])}
        assert index["member"]["reason"] == "model appears in two or more repositories"
        assert index["pipeline_add"].get("state") != "READY"


def test_a_name_that_only_one_repository_has_is_found_from_both(tmp_path: Path) -> None:
    flags = houses(tmp_path)
    shutil.rmtree(tmp_path / "add" / "member")
    with running(*flags) as server:
        assert [sums(server, name) for name in ("pipeline_add", "pipeline_sub", "member")] == [0, 0, 0]


def test_polling_rebinds_ensembles_when_members_change(tmp_path: Path) -> None:
    flags = (*houses(tmp_path), "--model-control-mode=poll", "--repository-poll-secs=1")
    with running(*flags, prefix=QUICK_POLLS) as server:
        shutil.move(tmp_path / "add" / "member", tmp_path / "away")
        until_it_sums(server, "pipeline_add", 0)
        assert (sums(server, "member"), sums(server, "pipeline_sub")) == (0, 0)

        shutil.move(tmp_path / "away", tmp_path / "add" / "member")
        until_it_sums(server, "pipeline_add", 2)
        assert sums(server, "pipeline_sub") == 0
        assert_ambiguous(server, "member")


def test_an_explicit_load_means_every_model_of_the_name(tmp_path: Path) -> None:
    flags = houses(tmp_path)
    for name in ("add", "sub"):
        ensemble(tmp_path / name, "same", "member")
    with running(*flags, "--model-control-mode=explicit") as server:
        assert server.post("/v2/repository/models/same/load", {})[0] == 200
        assert_ambiguous(server, "same")
        assert_ambiguous(server, "member")

        assert server.post("/v2/repository/models/pipeline_sub/load", {})[0] == 200
        assert sums(server, "pipeline_sub") == 0
        assert server.post("/v2/repository/models/same/unload", {})[0] == 200
        assert server.add_sub("same")[0] in (400, 404)


def test_the_configuration_of_a_load_request_is_for_every_model_of_the_name(tmp_path: Path) -> None:
    flags = houses(tmp_path)
    for name in ("add", "sub"):
        python_model(tmp_path / name, "member", version=2)
    tensors = {kind: [{"name": f"{kind.upper()}{i}", "data_type": "TYPE_INT32", "dims": [16]} for i in (0, 1)]
               for kind in ("input", "output")}  # fmt: skip
    config = json.dumps({"backend": "python", "max_batch_size": 8, "version_policy": {"all": {}}, **tensors})
    with running(*flags, "--model-control-mode=explicit") as server:
        assert server.post("/v2/repository/models/member/load", {"parameters": {"config": config}})[0] == 200
        index = json.loads(server.post("/v2/repository/index", {"ready": True})[1])
        assert sorted(one["version"] for one in index if one["name"] == "member") == ["1", "1", "2", "2"]


def test_an_explicit_load_rebinds_ensembles(tmp_path: Path) -> None:
    flags = houses(tmp_path)
    shutil.move(tmp_path / "add" / "member", tmp_path / "away")
    with running(*flags, "--model-control-mode=explicit") as server:
        assert server.post("/v2/repository/models/pipeline_add/load", {})[0] == 200
        assert sums(server, "pipeline_add") == 0
        shutil.move(tmp_path / "away", tmp_path / "add" / "member")
        assert server.post("/v2/repository/models/pipeline_add/load", {})[0] == 200
        assert sums(server, "pipeline_add") == 2
        assert_ambiguous(server, "member")


def test_models_whose_configuration_comes_from_their_files_keep_them(tmp_path: Path) -> None:
    """All are described in one worker when the server starts."""
    for name, factor in (("double", 2), ("triple", 3)):
        save(tmp_path / name / "m" / "1" / "model.onnx", [node("Mul", ["x", "factor"], ["y"])],
             {"x": (FLOAT, ("N", 1))}, {"y": (FLOAT, ("N", 1))}, {"factor": np.array(factor, np.float32)})  # fmt: skip
        pipeline = tmp_path / name / f"pipeline_{name}"
        (pipeline / "1").mkdir(parents=True)
        (pipeline / "config.pbtxt").write_text(
            'platform: "ensemble" max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } '
            'output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ensemble_scheduling { step { model_name: "m" '
            'model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } }'
        )
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
    flags = (f"--model-repository={tmp_path / name}" for name in ("double", "triple"))
    with running(*flags, "--model-namespacing=true") as server:
        for name, expected in (("double", 2), ("triple", 3)):
            status, answer = server.post(f"/v2/models/pipeline_{name}/infer", body)
            assert status == 200, answer
            assert json.loads(answer)["outputs"][0]["data"] == [expected]


@pytest.mark.parametrize("flag", ["--model-namespacing=true", "--model-namespacing=false"])
def test_a_directory_with_colons_keeps_its_name(tmp_path: Path, flag: str) -> None:
    python_model(tmp_path, "a::b")
    with running(f"--model-repository={tmp_path}", flag) as server:
        index = json.loads(server.post("/v2/repository/index")[1])
        assert [entry["state"] for entry in index] == ["READY"]
        if flag.endswith("false"):
            assert sums(server, "a::b") == 2


def test_a_sequence_ends_in_the_version_in_which_it_began(tmp_path: Path) -> None:
    touched = python_model(tmp_path / "a", "adds_up", ADDS_UP, ADDS_UP_CONFIG)
    python_model(tmp_path / "b", "m")
    flags = (*(f"--model-repository={tmp_path / name}" for name in "ab"), "--model-namespacing=true")
    with running(*flags, "--model-control-mode=explicit", "--load-model=adds_up") as server:
        client = Client(server.http)
        client.infer("adds_up", adds_up_body(7, 1, start=True))
        touch(touched)
        assert server.post("/v2/repository/models/adds_up/load")[0] == 200
        status, answer = client.infer("adds_up", adds_up_body(7, 1, end=True))
        assert status == 200, answer
        assert answer["outputs"][0]["data"] == [2]
        client.close()
