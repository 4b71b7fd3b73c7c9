"""The command line as a whole: help that fits a screen, the version, and mistyped commands and options."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge_serve import __version__, cli
from edge_serve.commands.help import COMMANDS, MOST_USED
from edge_serve.config.settings.server import SETTINGS
from edge_serve.config.settings.table import flag_of

#: lines of a screen, and of a large one
SCREEN, LARGE = 30, 45


def run(*arguments: str) -> int:
    """Run the program in this process; its exit status."""
    try:
        return cli.main(list(arguments))
    except SystemExit as ended:
        return int(ended.code or 0)


def test_help_lists_the_commands_and_the_most_used_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0

    text = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n  {name} " in text
    for name in MOST_USED:
        assert f"\n  {flag_of(name)} " in text
    assert "edge-serve serve --help" in text
    assert len(text.splitlines()) <= LARGE
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"serve"}))
def test_the_help_of_a_command_fits_a_screen(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name, "--help") == 0
    text = capsys.readouterr().out
    assert run("help", name) == 0
    assert capsys.readouterr().out == text

    assert text.startswith(f"usage: edge-serve {name} ")
    assert len(text.splitlines()) <= SCREEN
    assert "xit status: 0 " in text


@pytest.mark.parametrize("arguments", [("serve", "--help"), ("--help", "--all")])
def test_all_options_are_shown_on_demand(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 0

    text = capsys.readouterr().out
    assert [name for name in SETTINGS if f"  {flag_of(name)}" not in text] == []
    assert "EDGE_SERVE_" in text
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("flag", ["--version", "-V", "-v", "version"])
def test_the_version_is_one_line(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(flag) == 0

    text = capsys.readouterr().out
    assert text.startswith(f"edge-serve {__version__}, Python 3.")
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["stauts"], "unknown command 'stauts', did you mean 'status'?"),
        (["zzz"], "unknown command 'zzz', expected one of serve, check, "),
        (["--http-prot=1"], "unrecognized option '--http-prot', did you mean '--http-port'?"),
        (["--model-repository=x", "models"], "Unexpected argument: models"),
        (["--model-repository"], "option '--model-repository' requires an argument"),
        ([], "--model-repository must be specified"),
        (["check", "--infr", "x"], "unrecognized option '--infr', did you mean '--infer'?"),
        (["check"], "the following arguments are required: REPOSITORY"),
        (["check", "x", "--infer-timeout", "soon"], "found 'soon', expected 0.1 to 86400 seconds"),
        (["doctor", "now"], "unexpected argument 'now'"),
        (["status", "--jsno"], "unrecognized option '--jsno', did you mean '--json'?"),
        (["token", "f", "boss"], "found role 'boss', expected one of health, read, infer, admin"),
    ],
)
def test_a_command_line_that_cannot_be_used_is_status_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EDGE_SERVE_MODEL_REPOSITORY", raising=False)
    assert run(*arguments) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("edge-serve: ")
    assert said in captured.err
    assert "--help'" in captured.err
    assert len(captured.err.splitlines()) <= 2


def test_a_directory_instead_of_an_option_is_answered_with_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(tmp_path)) == 2

    assert f"'edge-serve --model-repository {tmp_path}' serves its models" in capsys.readouterr().err


def test_a_command_leaves_the_log_of_the_process_as_it_was(tmp_path: Path) -> None:
    root = logging.getLogger("edge_serve")
    before = root.handlers[:], root.propagate, root.level

    assert run("check", "--help") == 0
    assert run("init", "m", "--python", "--model-repository", str(tmp_path)) == 0
    assert (root.handlers[:], root.propagate, root.level) == before


def test_every_command_of_the_list_can_be_run() -> None:
    assert COMMANDS.keys() == {"serve", *cli._COMMANDS}
    for place in cli._COMMANDS.values():
        module, _, function = place.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_a_reader_that_has_read_enough_is_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "edge_serve", "--help"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=30)
    os.close(writing)

    assert (done.returncode, done.stderr) == (cli.BROKEN_PIPE, "")


def test_output_on_a_full_disk_is_no_traceback() -> None:
    command = [sys.executable, "-m", "edge_serve", "--help"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=30)

    assert done.returncode == cli.OUTPUT_LOST
    assert done.stderr == "edge-serve: cannot write the output: No space left on device\n"
