"""`edge-serve status` and `top`: what is printed, and the exit status."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edge_serve import __version__, cli
from edge_serve.observe.status import client, command
from tests.observe.status.documents import document, server
from tests.observe.status.test_client import serving


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "MEASURED_SECONDS", 0.0)
    monkeypatch.delenv("EDGE_SERVE_ADMIN_SOCKET", raising=False)


@pytest.mark.parametrize(("ready", "status"), [(True, 0), (False, 1)])
def test_the_exit_status_says_whether_it_is_ready(ready: bool, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    made = document(server=server(ready=ready))
    with serving(json.dumps(made).encode()) as (_, target):
        assert cli.main(["status", "--url", target.url]) == status
        assert cli.main(["status", "--json", "--url", target.url]) == status

    text = capsys.readouterr().out
    assert text.startswith("edge-serve 1.2.3 on cart-7: " + ("ready" if ready else "not ready"))
    assert json.loads(text[text.index("{") :]) == made


def test_a_closed_standard_output_leaves_the_exit_status() -> None:
    with serving(json.dumps(document()).encode()) as (_, target):
        line = f"exec {sys.executable} -m edge_serve status --url {target.url} >&-"
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=30)

    assert (done.returncode, done.stderr) == (0, "")


def test_a_report_that_cannot_be_written_has_an_exit_status_of_its_own() -> None:
    with serving(json.dumps(document()).encode()) as (_, target), open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "edge_serve", "top", "--url", target.url]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=30)

    said = "edge-serve: cannot write the output: No space left on device\n"
    assert (done.returncode, done.stderr) == (cli.OUTPUT_LOST, said)


def test_top_into_a_file_is_one_report(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(json.dumps(document()).encode()) as (_, target):
        assert cli.main(["top", "--url", target.url]) == 0

    out = capsys.readouterr().out
    assert out.startswith("edge-serve 1.2.3 on cart-7: ready")
    assert "\x1b" not in out


def test_top_on_a_terminal_without_a_screen_is_one_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    with serving(json.dumps(document()).encode()) as (_, target):
        assert cli.main(["top", "--url", target.url]) == 0

    assert "\x1b" not in capsys.readouterr().out


def test_a_server_of_another_version_than_the_installed_one_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = {**document(), "versions": {"edge-serve": "0.0.9"}}
    for made, hints in ((old, 1), ({**document(), "versions": {"edge-serve": __version__}}, 0)):
        path = str(tmp_path / f"{hints}.sock")
        with serving(json.dumps(made).encode(), path=path):
            assert cli.main(["status", "--admin-socket", path]) == 0
        hint = f"the server runs version 0.0.9, installed is {__version__}: systemctl restart edge-serve"
        assert capsys.readouterr().out.count(hint) == hints


@pytest.mark.parametrize("name", ["status", "top"])
def test_no_server_is_one_line_and_status_3(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--admin-socket", "/nowhere/admin.sock"]) == 3

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "edge-serve: no server answers at /nowhere/admin.sock (No such file or directory); "
        "--admin-socket or --url says where else to look\n"
    )


@pytest.mark.parametrize("name", ["status", "top"])
@pytest.mark.parametrize("told", [{"server": 1}, {"server": {}}, {**document(), "models": [{}]}])
def test_a_document_of_another_release_is_one_line_and_status_4(
    name: str, told: object, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(json.dumps(told).encode()) as (_, target):
        assert cli.main([name, "--url", target.url]) == 4

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("edge-serve: the status is not as this release writes it (")
    assert captured.err.count("\n") == 1


def test_ctrl_c_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(target: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "fetch", interrupt)
    assert cli.main(["status"]) == 130


def test_a_missing_token_file_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--token-file", "/nowhere/token"]) == 4
    assert capsys.readouterr().err == "edge-serve: cannot read '/nowhere/token': No such file or directory\n"


@pytest.mark.parametrize(
    "arguments", [["status", "x"], ["top", "--interval", "0"], ["top", "--interval", "x"], ["status", "--url"]]
)
def test_wrong_use_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("edge-serve: ")
    assert said.endswith(f"; see 'edge-serve {arguments[0]} --help'\n")


def test_the_page_and_the_help_tell_every_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    known = [command.READY, command.NOT_READY, 2, client.ABSENT, client.UNKNOWN, cli.OUTPUT_LOST, cli.INTERRUPTED]
    page = (Path(__file__).parents[3] / "docs" / "status.md").read_text()
    with pytest.raises(SystemExit):
        cli.main(["status", "--help"])
    told = " ".join(capsys.readouterr().out.partition("exit status:")[2].split())

    assert [int(row) for row in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)] == known
    assert [int(number) for number in re.findall(r"\b\d+\b", told)] == known
