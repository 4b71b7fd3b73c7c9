"""Units, settings, models, the running server and its versions as the doctor finds them; and the whole command."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge_serve import cli
from edge_serve.config.settings.server import parse_argv
from edge_serve.doctor import command, service
from edge_serve.doctor.finding import Finding
from edge_serve.doctor.ports import DoorPort
from edge_serve.doctor.service import (
    Installation,
    ask_server,
    examine_models,
    examine_settings,
    examine_units,
    examine_versions,
    unit_states,
)
from edge_serve.observe.status.client import StatusTarget
from edge_serve.observe.status.probe import library_versions
from edge_serve.supervision.crash_loop import LeftOut, Record, as_text
from edge_serve.supervision.safe_mode import FILE, LOCK
from edge_serve.systemd.unit import Unit
from tests.observe.status.documents import document
from tests.observe.status.test_client import serving
from tests.server.running import python_model

RUNNING = """Id=edge-serve.service
LoadState=loaded
ActiveState=active
SubState=running
UnitFileState=enabled
Result=success
NRestarts=0
StatusText=3 models ready
NeedDaemonReload=no

Id=edge-serve.socket
LoadState=loaded
ActiveState=active
SubState=running
UnitFileState=enabled
Listen=[::]:8000 (Stream)
NeedDaemonReload=no

Id=edge-serve-grpc.socket
LoadState=loaded
ActiveState=active
SubState=running
UnitFileState=enabled
Listen=127.0.0.1:8001 (Stream)
Listen=[::1]:8001 (Stream)
NeedDaemonReload=no

Id=edge-serve-metrics.socket
LoadState=not-found
ActiveState=inactive
"""


def installed(text: str = RUNNING, **values: str) -> Installation:
    """The service, in the states that systemd prints."""
    return Installation(Unit(), values, None, unit_states(text))


def units(text: str) -> list[Finding]:
    return list(examine_units(installed(text)))


def test_a_running_service_is_good() -> None:
    findings = units(RUNNING)

    assert [finding.good for finding in findings] == [True, True, True]
    assert findings[0].text == "edge-serve.service: active (running), enabled: 3 models ready"
    assert installed().held == {8000, 8001}


@pytest.mark.parametrize(
    ("was", "now", "good", "text", "advice"),
    [
        ("ActiveState=active\nSubState=running", "ActiveState=failed\nSubState=failed", False, "failed", "journalctl"),
        ("UnitFileState=enabled", "UnitFileState=disabled", False, "next boot", "systemctl enable edge-serve.service"),
        ("ActiveState=active\nSubState=running", "ActiveState=inactive\nSubState=dead", None, "inactive", "--now"),
        ("ActiveState=active\nSubState=running", "ActiveState=activating\nSubState=start", None, "start", "status"),
        ("NRestarts=0", "NRestarts=7", True, "restarted 7 times", ""),
    ],
)
def test_other_states_of_the_service(was: str, now: str, good: bool | None, text: str, advice: str) -> None:
    finding = units(RUNNING.replace(was, now, 1))[0]

    assert finding.good is good
    assert text in finding.text
    assert advice in finding.advice


def test_a_changed_unit_file_wants_a_reload() -> None:
    finding = units(RUNNING.replace("NeedDaemonReload=no", "NeedDaemonReload=yes", 1))[-1]

    assert (finding.good, finding.advice) == (False, "systemctl daemon-reload")


def test_no_service_and_no_systemd() -> None:
    assert [finding.good for finding in examine_units(Installation())] == [None]
    assert [finding.good for finding in examine_units(Installation(Unit()))] == [None]


def settings(environ: Mapping[str, str], unit: Unit | None = None) -> list[Finding]:
    return list(examine_settings(Installation(unit, environ), environ))


def test_settings_are_checked_where_there_are_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_serve.check.config.find_unit", lambda: None)
    repository = {"EDGE_SERVE_MODEL_REPOSITORY": str(tmp_path)}

    assert [finding.good for finding in settings({"HOME": "/"})] == [None]
    assert [finding.good for finding in settings({"EDGE_SERVE_BACKEND_DIRECTORY": "/"})] == [None]
    (bad_port,) = settings({"EDGE_SERVE_HTTP_PORT": "x"})
    assert (bad_port.good, "http" in bad_port.text.lower()) == (False, True)
    (misspelt,) = settings({"EDGE_SERVE_MODEL_REPOSITRY": "/"})
    assert (misspelt.good, "did you mean EDGE_SERVE_MODEL_REPOSITORY?" in misspelt.text) == (False, True)
    assert [finding.good for finding in settings(repository)] == [True]
    bad = settings({**repository, "EDGE_SERVE_HTPP_PORT": "1", "EDGE_SERVE_LOG_FILE": f"{tmp_path}/none/log"})
    assert [finding.good for finding in bad] == [False, False]
    assert "did you mean EDGE_SERVE_HTTP_PORT?" in bad[0].text

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (finding,) = settings(repository, Unit())
    assert (finding.good, finding.advice) == (None, "sudo edge-serve doctor")


def models(root: Path, state: str = "") -> list[Finding]:
    config = parse_argv([f"--model-repository={root}", f"--state-directory={state}"] if state else
                        [f"--model-repository={root}"], {})  # fmt: skip
    return list(examine_models(Installation(None, {}, config)))


def test_models_of_the_repository_are_counted_and_bad_entries_named(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "one")
    (tmp_path / "models" / "loop").symlink_to("loop")

    good, bad = models(tmp_path / "models")
    assert (good.good, good.text) == (True, f"1 in {tmp_path}/models")
    assert bad.good is False
    assert bad.text.startswith("loop: ")
    (empty,) = models(tmp_path / "models" / "one" / "1")
    assert empty.good is None
    assert "edge-serve init" in empty.advice
    (missing,) = models(tmp_path / "none")
    assert missing.good is False


def test_the_advice_for_several_repositories_is_a_command(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "the others"]
    for root in roots:
        python_model(root, f"of {root.name}")
    config = parse_argv([f"--model-repository={root}" for root in roots], {})

    (good,) = examine_models(Installation(None, {}, config))
    assert good.advice == f"edge-serve check {tmp_path}/a '{tmp_path}/the others' loads each of them"


def test_the_advice_has_the_settings_of_backends_that_the_server_has(tmp_path: Path) -> None:
    python_model(tmp_path, "one")
    arguments = [f"--model-repository={tmp_path}", "--backend-config=tensorrt,plugins=a.so", "--backend-directory=/b"]
    arguments.append("--backend-config=tensorrt,engine-cache=/c")

    (good,) = examine_models(Installation(None, {}, parse_argv(arguments, {})))
    command = f"edge-serve check --backend-config=tensorrt,plugins=a.so --backend-directory=/b {tmp_path}"
    assert good.advice == f"{command} loads each of them"


def test_models_that_were_left_out_are_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(as_text(Record("boot", left_out={"det": LeftOut("print", "it was loading")})))
    (tmp_path / LOCK).touch()

    finding = models(tmp_path, str(tmp_path))[-1]
    assert (finding.good, finding.text) == (False, "left out after crashes: det")


def port_of(target: StatusTarget, address: str = "127.0.0.1") -> DoorPort:
    return DoorPort(int(target.url.rpartition(":")[2]), address, "--http-port")


def test_a_running_server_is_asked() -> None:
    made = document()
    with serving(json.dumps(made).encode()) as (_, target):
        port = port_of(target)
        answer, finding = ask_server({}, [port], {})
        assert ask_server({}, [replace(port, number=1)], {"url": target.url})[0] == made

    assert answer == made
    assert finding.good is True
    assert finding.text.startswith("ready, ")
    absent, finding = ask_server({}, [port], {})
    assert absent is None
    assert finding.good is None


def test_a_server_is_asked_at_the_address_on_which_it_listens() -> None:
    made = document()
    with serving(json.dumps(made).encode()) as (_, target):
        for address in ("0.0.0.0", "::", "localhost"):
            assert ask_server({}, [port_of(target, address)], {})[0] == made
        for address, host in (("127.0.0.2", "127.0.0.2"), ("::1", "[::1]")):
            answer, finding = ask_server({}, [port_of(target, address)], {})
            assert answer is None
            assert f" http://{host}:{port_of(target).number} " in finding.text


def test_the_doctor_has_the_options_that_it_advises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, token, asked = document(), tmp_path / "token", dict[str, Any]()
    token.write_text("secret\n")
    monkeypatch.setattr(command, "examine", lambda environ, named: asked.update(named) or [])
    assert command.run([f"--token-file={token}", "--admin-socket=/nowhere/admin.sock"]) == 0
    _, finding = ask_server({}, [], asked)
    assert finding.text.startswith("no server answers at /nowhere/admin.sock (No such file or directory); ")

    assert command.run([f"--token-file={token}"]) == 0
    with serving(json.dumps(made).encode()) as (server, target):
        assert ask_server({}, [port_of(target)], asked)[0] == made
    assert server.seen == [("/edge-serve/status", "Bearer secret")]
    assert "cannot read '/none'" in ask_server({}, [], {"token_file": "/none"})[1].text


def test_another_machine_is_not_asked_and_gets_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[StatusTarget] = []
    monkeypatch.setattr(service, "fetch", lambda target, _: asked.append(target))
    (tmp_path / "token").write_text("secret\n")
    for address in ("192.0.2.7", "[::1]"):
        port = DoorPort(8000, address, "--http-port")
        answer, finding = ask_server({}, [port], {"token_file": str(tmp_path / "token")})
        assert answer is None
        assert finding.text == f"not asked: the settings name '{address}', which is no address of this machine"

    assert asked == []


def test_versions_of_the_running_server_are_compared_with_the_installed_ones() -> None:
    now = library_versions()
    (same,) = examine_versions({"versions": now})
    assert same.good is True

    (other,) = examine_versions({"versions": {**now, "edge-serve": "0.0.9", "python": "3.1"}})
    assert other.good is False
    assert f"edge-serve 0.0.9, installed is {now['edge-serve']}" in other.text
    assert "python" not in other.text


def test_a_failed_or_hung_check_is_a_finding_and_others_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[Finding]:
        raise RuntimeError("no such thing")

    def hanging() -> list[Finding]:
        time.sleep(1)
        return []

    monkeypatch.setattr(command, "LIMIT_SECONDS", 0.3)
    found = command.limited({"a": broken, "b": hanging, "c": lambda: [Finding("c", "fine", True)]})

    assert "a: could not be examined: RuntimeError: no such thing" in found[0].text
    assert "b: could not be examined: " in found[1].text
    assert "does not answer" in found[1].text
    assert found[2] == Finding("c", "fine", True)


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_the_command_prints_all_findings(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "find_unit", lambda: None)
    status = cli.main(["doctor", *arguments])

    text = capsys.readouterr().out
    if arguments:
        told: dict[str, Any] = json.loads(text)
        assert told["ok"] is (status == 0)
        assert {"python", "backend", "gpu", "service", "settings", "disk", "port"} <= {
            finding["topic"] for finding in told["findings"]
        }
        assert all(finding["advice"] for finding in told["findings"] if finding["good"] is False)
    else:
        assert ("!!" in text) is (status == 1)
        assert "backend      python: numpy" in text
