"""Models as people break them: each message names the cause that was found and the line or command that fixes it.

The texts are held here because docs/troubleshooting.md is searched by them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.backends.onnx_models import FLOAT, identity
from tests.server.broken_models import FIRST, MORE, Broken
from tests.server.running import Running, running

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
