"""`edge-serve check --json` as the trial of releases: golden tests, budgets, and what could not be loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_serve.check.golden import p95
from tests.forked import program
from tests.golden.golden_files import document, sample
from tests.server.running import python_model
from tests.server.test_check_infer import CONFIG, ECHO, ensemble

pytestmark = pytest.mark.slow  # it tries many releases

#: right the first time it is asked
FICKLE = ECHO.replace("class TritonPythonModel:", "class TritonPythonModel:\n    calls = 0\n").format(
    before="self.calls += 1; import numpy as np\n"
    '        if self.calls > 1: return pb_utils.Tensor("OUT", np.full((1, 2), 9, np.float32))'
)
#: calls `tested`
CALLS = ECHO.format(
    before='return pb_utils.InferenceRequest(model_name="tested", requested_output_names=["OUT"], '
    'inputs=[pb_utils.get_input_tensor_by_name(request, "IN")]).exec().output_tensors()[0]'
)


def release(root: Path, name: str, before: str = "pass", value: float = 1.0, code: str = "", **further: Any) -> Path:
    """Write release 17 of a model that echoes, and the link to it; its golden test expects `value`."""
    path = python_model(root / "releases" / name, "17", code or ECHO.format(before=before), CONFIG, 17)
    (root / "models").mkdir(exist_ok=True)
    (root / "models" / name).symlink_to(f"../releases/{name}/17")
    document(path, sample(path, "ones", {"IN": rows(1)}, {"OUT": rows(value)}), **further)
    return path


def rows(value: float) -> Any:
    return np.full((1, 2), value, np.float32)


def check(root: Path, *options: str) -> tuple[int | None, dict[str, Any]]:
    """Run the check in a process of its own; the exit status, and the document."""
    ended = program("check", str(root), "--json", *options, limit=60.0)
    document: dict[str, Any] = json.loads(ended.output)
    return ended.status, {**document, "by_name": {model["name"]: model for model in document["models"]}}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("device")
    release(root, "a_calls", code=CALLS)
    release(root, "broken").joinpath("golden/golden.json").write_text('{"schema": 9}')
    release(root, "fickle", code=FICKLE)
    fat = "import time; time.sleep(0.02); self.fat = getattr(self, 'fat', None) or bytearray(300 << 20)"
    release(root, "costly", fat, budget={"p95_ms": 15, "memory_bytes": 1 << 28, "requests": 3})
    release(root, "tested", budget={"p95_ms": 5000, "memory_bytes": 1 << 33, "requests": 5})
    release(root, "wrong", value=float("nan"))
    (root / "models/gone").symlink_to("../releases/gone/17")
    python_model(root / "models", "plain", ECHO.format(before="pass"), CONFIG)
    ensemble(root / "models", "chain", "plain", "tested")
    document(root / "models/chain", sample(root / "models/chain", "twos", {"IN": rows(2)}, {"OUT": rows(2)}))
    return root


@pytest.fixture(scope="module")
def told(root: Path) -> dict[str, Any]:
    """The document of one check of all models."""
    status, told = check(root / "models")
    assert (status, told["ok"], told["error"]) == (1, False, "")
    return told


@pytest.mark.fault("L1")
def test_each_model_says_which_part_failed(told: dict[str, Any]) -> None:
    assert {name: (model["ok"], model["failed"]) for name, model in told["by_name"].items()} == {
        "a_calls": (True, ""), "broken": (False, "read"), "chain": (True, ""), "costly": (False, "budget"),
        "fickle": (False, "golden"), "gone": (False, "read"), "plain": (True, ""), "tested": (True, ""),
        "wrong": (False, "golden"),
    }  # fmt: skip
    assert "schema is 9, expected 1" in told["by_name"]["broken"]["error"]
    assert "which does not exist" in told["by_name"]["gone"]["error"]
    assert told["by_name"]["plain"]["golden"] == []


def test_a_good_release_has_figures(told: dict[str, Any]) -> None:
    for name, version in (("tested", 17), ("chain", 1), ("a_calls", 17)):
        (trial,) = told["by_name"][name]["golden"]
        assert (trial["version"], trial["ok"], trial["problems"], trial["over_budget"]) == (version, True, [], False)
        assert 0 < trial["p95_ms"] < 5000
        assert trial["memory_bytes"] > 5e6
    (trial,) = told["by_name"]["tested"]["golden"]
    assert trial["requests"] == 5
    ((output,),) = (one["outputs"] for one in trial["samples"])
    assert output == {
        "output": "OUT", "values": 2, "differ": 0, "largest": None, "at": [], "found": "", "expected": "",
        "rtol": 1e-3, "atol": 1e-5, "problem": "",
    }  # fmt: skip
    (chain,) = told["by_name"]["chain"]["golden"]
    assert chain["memory_bytes"] > trial["memory_bytes"], "an ensemble has the memory of its members"


@pytest.mark.fault("L2", "L3")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wrong", "sample 'ones': output 'OUT': 2 of 2 values differ, the largest difference is inf at [0, 0]: 1.0, "),
        ("costly", "ms, the budget is 15 ms: make the model cheaper, or raise the budget in golden.json"),
        ("costly", "bytes of memory after 3 requests, the budget is 268435456 bytes: "),
        ("fickle", "when it was sent again: sample 'ones': output 'OUT': 2 of 2 values differ"),
    ],
)
def test_a_release_that_fails_its_trial(told: dict[str, Any], name: str, said: str) -> None:
    (trial,) = told["by_name"][name]["golden"]
    assert trial["ok"] is False
    assert said in "\n".join(trial["problems"])
    if name == "wrong":
        ((output,),) = (one["outputs"] for one in trial["samples"])
        assert (output["differ"], output["largest"], output["at"]) == (2, None, [0, 0])


def test_one_release_is_checked_alone_and_shown_to_a_person(root: Path) -> None:
    ended = program("check", str(root / "models"), "--model=tested", limit=60.0)
    assert ended.status == 0
    assert "version 17, golden test: 1 sample as recorded; p95 " in ended.output
    status, told = check(root / "models", "--model=none")
    assert (status, told["models"], "there is no model 'none'" in told["error"]) == (1, [], True)


def test_a_golden_test_is_recorded_and_recorded_again(tmp_path: Path) -> None:
    python_model(tmp_path, "fresh", ECHO.format(before="pass"), CONFIG)
    ensemble(tmp_path, "chain", "fresh")
    old = python_model(tmp_path, "old", ECHO.format(before="pass"), CONFIG)
    stale = sample(old, "ones", {"IN": rows(1)}, {"OUT": rows(3)})
    stale["outputs"][0]["rtol"] = 0.5
    document(old, stale, budget={"p95_ms": 5000})
    names = [f"--model={name}" for name in ("chain", "fresh", "old")]
    status, told = check(tmp_path, "--record-golden", *names)
    assert (status, told["ok"]) == (0, True), told
    assert told["by_name"]["old"]["recorded"] == (
        "recorded 1 samples in old/golden/ from version 1: the samples that were there"
    )
    assert sorted(entry.name for entry in old.iterdir()) == ["1", "config.pbtxt", "golden"]
    test = json.loads((old / "golden/golden.json").read_text())
    assert test["budget"] == {"p95_ms": 5000.0}
    assert test["samples"][0]["outputs"][0]["rtol"] == 0.5
    assert np.fromfile(old / "golden/0.output0", np.float32).tolist() == [1, 1]
    status, told = check(tmp_path, *names)
    trials = [len(told["by_name"][name]["golden"]) for name in ("chain", "fresh", "old")]
    assert (status, trials) == (0, [1, 1, 1]), told
    assert "name each with --model NAME" in program("check", str(tmp_path), "--record-golden").output


def test_a_member_that_fails_its_golden_test_fails_the_ensemble(tmp_path: Path) -> None:
    release(tmp_path, "wrong", value=2.0)
    ensemble(tmp_path / "models", "chain", "wrong")
    status, told = check(tmp_path / "models", "--model=chain")
    assert (status, told["by_name"]["chain"]["failed"]) == (1, "load")
    assert "fails its golden test: sample 'ones'" in told["by_name"]["chain"]["error"]


@pytest.mark.fault("L1")
def test_a_release_that_hangs_or_dies_in_its_trial(tmp_path: Path) -> None:
    release(tmp_path, "dies", "import os; os._exit(7)")
    release(tmp_path, "hangs", "while True: pass")
    status, told = check(tmp_path / "models", "--load-timeout=3")
    assert (status, [told["by_name"][name]["failed"] for name in ("dies", "hangs")]) == (1, ["golden", "golden"])
    (dies,), (hangs,) = (told["by_name"][name]["golden"] for name in ("dies", "hangs"))
    assert "Its worker ended with exit status 7" in dies["problems"][0]
    said = "hangs in its golden test, nothing has come from it for 3 s (--load-timeout)"
    assert said in hangs["problems"][0]

    ensemble(tmp_path / "models", "chain", "hangs")  # whose golden test is a part of its load, as in the server
    status, told = check(tmp_path / "models", "--load-timeout=3", "--model=chain")
    assert (status, told["by_name"]["chain"]["failed"]) == (1, "load")
    assert said in told["by_name"]["chain"]["error"]


def test_the_95th_percentile() -> None:
    assert p95([1.0]) == 1.0
    assert p95([float(i) for i in range(101)]) == 95.0
