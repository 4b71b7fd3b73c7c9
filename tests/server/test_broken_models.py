"""Models as people break them: each message names the cause that was found and the line or command that fixes it.

The texts are held here because docs/troubleshooting.md is searched by them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.backends.onnx_models import FLOAT, identity
from tests.server.broken_models import FIRST, MORE, Broken
from tests.server.running import PATIENCE, Running, running

ALL = (*FIRST, *MORE)


@dataclass(frozen=True, slots=True)
class Told:
    """What a server said of its models once it had tried to load them all."""

    server: Running
    reasons: dict[str, str]
    log: str


def make_all(root: Path) -> None:
    """Write every broken model, and `good`, which the ensembles name."""
    for case in ALL:
        (root / case.name).mkdir()
        case.make(root / case.name)
    identity(root / "good/1/model.onnx", FLOAT, (4,))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    root = tmp_path_factory.mktemp("models")
    make_all(root)
    flags = ("--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false", "--model-load-thread-count=8")
    with running(f"--model-repository={root}", *flags) as server:
        entries = json.loads(server.post("/v2/repository/index")[1])
        states = {entry["name"]: entry.get("state") for entry in entries}
        assert states == {**{case.name: "UNAVAILABLE" for case in ALL}, "good": "READY"}
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


#: no worker is needed to see what is wrong with these
WITHOUT_WORKER = ("iris", "saved_model", "nested", "quoted_enum", "utf16", "empty_ensemble", "circle")


def check(root: Path, *names: str) -> str:
    """Run `edge-serve check` on some models; its report."""
    chosen = [f"--model={name}" for name in names]
    command = [sys.executable, "-m", "edge_serve", "check", str(root), *chosen]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10 * PATIENCE, check=False)
    assert done.returncode == 1, done.stderr
    return done.stdout


def is_in_report(case: Broken, report: str) -> bool:
    """Whether the part of a report that concerns a model has all that its message must have."""
    found = re.search(rf"^FAILED  {case.name}  .*?(?=^\S|\Z)", report, re.MULTILINE | re.DOTALL)
    assert found is not None, report
    return not missing(case, found[0])


def test_check_says_the_same_of_models_that_cannot_be_read(tmp_path: Path) -> None:
    make_all(tmp_path)
    report = check(tmp_path, *WITHOUT_WORKER)
    assert [case.name for case in ALL if case.name in WITHOUT_WORKER and not is_in_report(case, report)] == [], report


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_check_says_the_same_of_every_model(tmp_path: Path) -> None:
    make_all(tmp_path)
    report = check(tmp_path)
    assert [case.name for case in ALL if not is_in_report(case, report)] == [], report
    assert f"1 of {len(ALL) + 1} models can be served" in report


@pytest.mark.parametrize(("part", "said"), [("iris", "a model"), ("iris/1", "a version of a model")])
def test_check_of_a_part_of_a_repository_names_the_repository(tmp_path: Path, part: str, said: str) -> None:
    identity(tmp_path / "models/iris/1/model.onnx")
    done = subprocess.run(
        [sys.executable, "-m", "edge_serve", "check", str(tmp_path / "models" / part)],
        capture_output=True, text=True, timeout=10 * PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert re.search(
        rf"looks like {said}: give .*--model-repository={tmp_path}/models$", done.stdout + done.stderr, re.M
    )
