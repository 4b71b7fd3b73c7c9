"""`edge-serve safe-mode`: what is said, and the exit status, for servers that are there or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_serve.supervision.command import safe_mode
from edge_serve.supervision.crash_loop import LeftOut, Record, as_text
from edge_serve.supervision.safe_mode import FILE, LOCK
from tests.observe.status.test_client import serving


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A state directory of a server that is not running and left one model out."""
    (tmp_path / FILE).write_text(as_text(Record("boot", left_out={"det": LeftOut("print", "it was loading")})))
    (tmp_path / LOCK).touch()
    return tmp_path


def test_the_command_asks_the_admin_socket(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(directory / "admin.sock")
    environ = {"EDGE_SERVE_ADMIN_SOCKET": path, "EDGE_SERVE_STATE_DIRECTORY": str(directory)}
    with serving(b'{"left_out": ["det", "seg"]}', path=path) as (server, _):
        assert safe_mode(["--leave"], environ) == 0
        assert safe_mode(["--leave", str(directory)], environ) == 0  # another server's, perhaps

    assert [asked for asked, _ in server.seen] == ["/edge-serve/safe-mode/leave"]
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("safe mode is left: the server loads det, seg now")
    assert out[1].startswith("safe mode is left: the next start loads det")


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (503, b'{"error":"Server exiting"}', "HTTP 503, Server exiting"),
        (404, b'{"error":"Not Found"}', "HTTP 404, Not Found"),
        (200, b"<html>", "HTTP 200"),
    ],
)
def test_a_server_that_refuses_is_one_line(
    directory: Path, status: int, body: bytes, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(directory / "admin.sock")
    with serving(body, status, path):
        assert safe_mode(["--leave"], {"EDGE_SERVE_ADMIN_SOCKET": path}) == 1

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"edge-serve: the server at {path} did not leave safe mode: ")
    assert text in captured.err
    assert (directory / FILE).exists()


def test_leave_deletes_the_record_despite_a_dead_socket(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = directory / "admin.sock"
    path.touch()
    environ = {"EDGE_SERVE_ADMIN_SOCKET": str(path), "EDGE_SERVE_STATE_DIRECTORY": str(directory)}
    assert safe_mode(["--leave"], environ) == 0
    assert "the next start loads det" in capsys.readouterr().out
    assert not (directory / FILE).exists()


@pytest.mark.parametrize("arguments", [["--live"], ["a", "b"], ["--leave", "-x"]])
def test_wrong_use_is_one_line_and_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        safe_mode(arguments, {})

    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
