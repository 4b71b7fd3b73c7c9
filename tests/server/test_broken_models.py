"""Models as people break them: each message names the cause that was found and the line or command that fixes it.

The texts are held here because docs/troubleshooting.md is searched by them.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from edge_serve.check.command import CheckOptions, check_repository, report
from edge_serve.errors import InvalidArgument
from tests.backends.onnx_models import FLOAT, identity, zip_map
from tests.server.broken_models import FIRST, MODEL, MORE, PYTHON, Broken, tensor
from tests.server.running import Running, python_model, running

pytestmark = pytest.mark.slow  # sixty models that do not load

ALL = (*FIRST, *MORE)


@dataclass(frozen=True, slots=True)
class Told:
    """The index and the log of a server that has tried to load all its models."""

    server: Running
    reasons: dict[str, str]
    log: str


def make_all(root: Path) -> None:
    """Write every broken model, and `good`, which the ensembles name."""
    for case in ALL:
        (root / case.name).mkdir()
        case.make(root / case.name)
    identity(root / "good/1/model.onnx", FLOAT, (4,))


NOT_READY = MODEL + "\n    def is_ready(self):\n        return False\n"
#: as where the limit of memory or of threads is reached
NO_THREADS = (
    MODEL
    + """
    def initialize(self, args):
        import threading

        def refuse(*arguments):
            raise RuntimeError("can't start new thread")

        threading._start_new_thread = threading._start_joinable_thread = refuse
"""
)
CRASHES = MODEL.replace("return [", "__import__('ctypes').string_at(0)\n        return [")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    root = tmp_path_factory.mktemp("models")
    make_all(root)
    for name, code in (("not_ready", NOT_READY), ("no_threads", NO_THREADS), ("crashes", CRASHES)):
        python_model(root, name, code, PYTHON)
    flags = ("--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false", "--model-load-thread-count=8")
    with running(f"--model-repository={root}", *flags) as server:
        entries = json.loads(server.post("/v2/repository/index")[1])
        states = {entry["name"]: entry.get("state") for entry in entries}
        good = ("good", "not_ready", "no_threads", "crashes")
        assert states == {**{case.name: "UNAVAILABLE" for case in ALL}, **dict.fromkeys(good, "READY")}
        yield Told(server, {entry["name"]: entry.get("reason", "") for entry in entries}, server.log())


def missing(case: Broken, text: str) -> list[str]:
    return [pattern for pattern in case.says if not re.search(pattern, text)]


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_index_and_log_name_the_cause_and_the_fix(told: Told, case: Broken) -> None:
    reason = told.reasons[case.name]

    assert missing(case, reason) == [], reason
    errors = [line for line in told.log.splitlines() if line.startswith("E") and f"'{case.name}'" in line]
    assert any(reason.splitlines()[0].partition(": ")[2][:60] in line for line in errors), errors


@pytest.mark.parametrize("name", ["iris", "type_float32", "empty_ensemble", "lfs"])
def test_the_client_of_a_load_reads_the_same(told: Told, name: str) -> None:
    case = next(case for case in ALL if case.name == name)
    status, answer = told.server.post(f"/v2/repository/models/{name}/load")
    error = json.loads(answer)["error"]

    assert status in (400, 500)
    assert re.match(
        f"(load failed for model '{name}': |failed to load '{name}', failed to poll from model repository)", error
    )
    assert missing(case, error) == [], error


def test_a_failed_ensemble_keeps_its_reason_when_a_member_is_loaded_again(told: Told) -> None:
    assert told.server.post("/v2/repository/models/good/load")[0] == 200
    entries = json.loads(told.server.post("/v2/repository/index")[1])
    assert {entry["name"]: entry.get("reason", "") for entry in entries}["member_dtype"] == told.reasons["member_dtype"]


def test_a_model_that_is_not_ready_is_not_called_restarting(told: Told) -> None:
    """A worker that cannot start a thread, and a model that says itself that it is not ready."""
    rows = json.loads(told.server.get("/edge-serve/status")[1])["models"]
    told_of = {row["name"]: (row["condition"], row["reason"]) for row in rows}

    assert told_of["not_ready"] == ("unready", "its own is_ready() does not return True")
    condition, reason = told_of["no_threads"]
    assert (condition, "cannot start a thread: can't start new thread (raise the limit" in reason) == ("unready", True)
    assert told_of["good"] == ("ready", "")
    assert "model not_ready is not ready: its own is_ready() does not return True" in told.log


def test_a_crash_names_the_line_of_the_model(told: Told) -> None:
    inputs = [{"name": "X", "datatype": "FP32", "shape": [4], "data": [0] * 4}]
    status, answer = told.server.post("/v2/models/crashes/infer", {"inputs": inputs})
    line = next(number for number, text in enumerate(CRASHES.splitlines(), 1) if "string_at" in text)
    place = f"was ended by SIGSEGV in execute, .*/crashes/1/model.py line {line}"

    assert status == 500
    assert re.search(place, json.loads(answer)["error"])
    assert told.server.wait_for_log(rf"^E.* worker crashes:1 \(pid \d+\) {place}$")


@dataclass
class Report:
    """Return the output of `edge-serve check` for a repository."""

    text: str = ""

    def missing(self, case: Broken) -> list[str]:
        """Patterns of a case that are not in the part about its model."""
        found = re.search(rf"^FAILED  {case.name}  .*?(?=^\S|\Z)", self.text, re.MULTILINE | re.DOTALL)
        return missing(case, found[0]) if found is not None else list(case.says)


def checked(root: Path) -> Report:
    """Check all models."""

    async def work() -> Report:
        verdicts = [verdict async for verdict in check_repository([root], CheckOptions())]
        return Report("\n".join(map(report, verdicts)))

    return asyncio.run(work())


@pytest.mark.timeout(300)
def test_check_says_the_same_of_every_model(tmp_path: Path) -> None:
    make_all(tmp_path)
    found = checked(tmp_path)
    assert {case.name: found.missing(case) for case in ALL if found.missing(case)} == {}, found.text
    assert re.findall(r"^ok      (\w+)", found.text, re.MULTILINE) == ["good"]


def test_check_of_a_part_of_a_repository_names_the_repository(tmp_path: Path) -> None:
    identity(tmp_path / "models/iris/1/model.onnx")
    give = f"--model-repository={tmp_path}/models"
    assert f"looks like a model: give its parent, {give}" in checked(tmp_path / "models/iris").text
    with pytest.raises(InvalidArgument, match=f"looks like a version of a model: give {give}"):
        checked(tmp_path / "models/iris/1")


BACKEND = """
class Backend:
    def complete_config(self, spec):
        tensors = {"input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
                   "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}]}
        return {**tensors, **{key: value for key, value in spec.config.items() if value}}

    def open(self, spec, instances):
        return [Instance() for _ in instances]

    def close(self): ...


class Instance:
    def is_ready(self):
        return True

    def close(self): ...
"""


def test_check_shows_what_applies(tmp_path: Path) -> None:
    """Nothing differs, and there is a table for each: the findings N14 say where that was not so."""
    identity(tmp_path / "plain/1/model.onnx", FLOAT, ("N", 4))
    identity(tmp_path / "stray/1/model.onnx", FLOAT, ("N", 4))
    (tmp_path / "stray/config.pbtxt.txt").touch()
    zip_map(tmp_path / "listed/1/model.onnx")
    (tmp_path / "listed/config.pbtxt").write_text(
        "max_batch_size: 8\n" + tensor("output", "output_label", "TYPE_INT64", "1", "reshape { shape: [ ] }")
    )
    (tmp_path / "own/1").mkdir(parents=True)
    (tmp_path / "own/backend.py").write_text(BACKEND)
    (tmp_path / "own/config.pbtxt").write_text('backend: "own"\nmax_batch_size: 8\n')

    text = checked(tmp_path).text

    assert "differs" not in text
    assert re.findall(r"^\w+", text, re.MULTILINE) == ["ok"] * 4, text
    batch = re.findall(r"max_batch_size +(\S+) +(.*)", text)
    applies = ("-", "has a batch dimension, 4 applies")
    assert batch == [("8", "has a batch dimension"), ("8", "-"), applies, applies], text
    assert "note: stray/config.pbtxt.txt is not read, expected stray/config.pbtxt: mv " in text
