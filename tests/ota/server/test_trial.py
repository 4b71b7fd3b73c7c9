"""The trial of a release with the real `edge-serve check`, as a child process and in a unit."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from ota.errors import NotHeld, ServerError, TrialFailed
from ota.server.trial import UnitTrial, judge
from ota.server.unit import ask_unit
from tests.ota.server.units import accepting
from tests.server.running import python_model

PROGRAM = str(Path(sys.executable).with_name("edge-serve"))
UNIT = [sys.executable, "-m", "ota", "run-trial", "--edge-serve", PROGRAM]


@pytest.mark.slow
def test_a_child_process_tries_models(tmp_path: Path) -> None:
    python_model(tmp_path, "good")
    python_model(tmp_path, "bad", "raise ValueError('no weights')")
    subject = UnitTrial("", PROGRAM)
    subject.run(tmp_path, ["good"], 60)
    with pytest.raises(TrialFailed, match=r"bad: .*no weights"):
        subject.run(tmp_path, ["good", "bad"], 60)
    with pytest.raises(TrialFailed, match=r"absent"):
        subject.run(tmp_path, ["absent"], 60)


@pytest.mark.slow
def test_a_unit_tries_models_below_its_directory_only(tmp_path: Path) -> None:
    state = tmp_path / "state"
    python_model(state / "trial" / "det", "bad", "raise ValueError('no weights')")
    path = tmp_path / "trial.sock"
    with accepting(path, [*UNIT, "--state-dir", str(state)]):
        with pytest.raises(TrialFailed, match=r"bad: .*no weights"):
            UnitTrial(str(path), "").run(state / "trial" / "det", ["bad"], 60)
        for wrong in (str(tmp_path), f"{state}/trial/../..", "trial/det", 7):
            found = ask_unit(str(path), {"repository": wrong, "models": ["bad"], "limit": 9}, 9)
            assert "expected a path below" in found["error"], wrong
        with pytest.raises(ServerError, match=r"could not be held: .*lacks models"):
            UnitTrial(str(path), "").run(state / "trial" / "det", [], 60)


@pytest.mark.fault("L1")
def test_a_program_that_hangs_or_is_not_there_is_no_verdict(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nsleep 60\n")
    slow.chmod(0o755)
    with pytest.raises(ServerError, match=r"did not end within 0.2 s and was killed"):
        UnitTrial("", str(slow)).run(tmp_path, ["m"], 0.2)
    with pytest.raises(ServerError, match=r"cannot be started"):
        UnitTrial("", str(tmp_path / "none")).run(tmp_path, ["m"], 9)
    with pytest.raises(ServerError, match=r"no result"):
        UnitTrial("", "/bin/true").run(tmp_path, ["m"], 9)


def test_a_setting_that_cannot_be_read_is_of_this_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_SERVE_BACKEND_CONFIG", "tensorrt")
    state, path = tmp_path / "state", tmp_path / "trial.sock"
    python_model(state / "trial" / "det", "m")
    with (
        accepting(path, [*UNIT, "--state-dir", str(state)]),
        pytest.raises(NotHeld, match=r"Bad environment variable \"EDGE_SERVE_BACKEND_CONFIG\""),
    ):
        UnitTrial(str(path), "").run(state / "trial" / "det", ["m"], 60)


def test_a_unit_that_does_not_answer_is_no_verdict(tmp_path: Path) -> None:
    path = tmp_path / "trial.sock"
    with pytest.raises(ServerError, match=r"cannot be used"):
        UnitTrial(str(path), "").run(tmp_path, ["m"], 1)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ota.server.unit.START_SECONDS", 0.2)
            with pytest.raises(ServerError, match=r"did not answer within 0.1 s"):
                UnitTrial(str(path), "").run(tmp_path, ["m"], 0.1)
    with (
        accepting(tmp_path / "other.sock", ["/bin/sh", "-c", "cat >/dev/null"]),
        pytest.raises(ServerError, match=r"answered 'nothing'"),
    ):
        UnitTrial(str(tmp_path / "other.sock"), "").run(tmp_path, ["m"], 1)


@pytest.mark.fault("L1")
@pytest.mark.parametrize(
    "answer", ['{"models": 5}', '{"models": [{"name": {}}]}', '{"models": [{"name": "m", "golden": 5}]}']
)
def test_a_unit_that_answers_with_another_structure_is_no_verdict(tmp_path: Path, answer: str) -> None:
    path = tmp_path / "trial.sock"
    with (
        accepting(path, ["/bin/sh", "-c", f"cat >/dev/null; echo '{answer}'"]),
        pytest.raises(ServerError, match=r"its result is malformed"),
    ):
        UnitTrial(str(path), "").run(tmp_path, ["m"], 1)


def test_an_error_of_a_model_commands_no_terminal() -> None:
    with pytest.raises(TrialFailed, match=r"^m: \?\[2J no\n weights$"):
        judge({"models": [{"name": "m", "error": "\x1b[2J no\n weights"}]}, ["m"])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (None, "edge-serve did not check it"),
        ({"ok": False, "error": "no file"}, "no file"),
        ({"ok": False, "golden": [{"problems": ["OUTPUT0 differs by 3"]}]}, "OUTPUT0 differs by 3"),
        ({"ok": False}, "failed without a reason"),
        ({"ok": "yes"}, "failed without a reason"),
    ],
)
def test_the_reason_of_a_failed_trial(row: dict[str, Any] | None, reason: str) -> None:
    with pytest.raises(TrialFailed, match=f"m: .*{reason}"):
        judge({"models": [{"name": "m", **row}] if row is not None else []}, ["m"])


def test_a_good_row_passes_and_a_wrong_repository_does_not() -> None:
    judge({"models": [{"name": "m", "ok": True}], "error": ""}, ["m"])
    with pytest.raises(TrialFailed, match=r"cannot be read"):
        judge({"models": [{"name": "m", "ok": True}], "error": "it cannot be read"}, ["m"])
