"""The command line of edge-ota: what is refused, with the nearest word and the right page of help."""

from __future__ import annotations

from pathlib import Path

import pytest

from ota.cli import main


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("aply", "unknown command 'aply'; did you mean 'apply'? (see 'edge-ota --help')"),
        ("run-trail", "unknown command 'run-trail' (see 'edge-ota --help')"),
        ("status --jsn", "unknown option '--jsn'; did you mean '--json'? (see 'edge-ota status --help')"),
        ("status --jsn=1", "unknown option '--jsn'; did you mean '--json'? (see 'edge-ota status --help')"),
        ("status now", "unexpected argument 'now' (see 'edge-ota status --help')"),
        ("publish relase x", "unknown command 'relase'; did you mean 'release'? (see 'edge-ota publish --help')"),
        (
            "publish init p2 --presets small",
            "unknown option '--presets'; did you mean '--preset'? (see 'edge-ota publish init --help')",
        ),
        ("publish init --hepl", "unknown option '--hepl'; did you mean '--help'? (see 'edge-ota publish init --help')"),
        ("publish init --pres=small", "the following arguments are required: DIR (see 'edge-ota publish init --help')"),
        ("--config=/x status", "unknown option '--config'; options follow the command (see 'edge-ota --help')"),
        ("--config /x status", "unknown option '--config'; options follow the command (see 'edge-ota --help')"),
        ("--hepl", "unknown option '--hepl'; did you mean '--help'? (see 'edge-ota --help')"),
        ("publish device ad", "unknown command 'ad'; did you mean 'add'? (see 'edge-ota publish device --help')"),
    ],
)
def test_a_mistyped_word_is_named_with_the_nearest(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    assert capsys.readouterr().err == f"edge-ota: {said}\n"


def test_help_lists_the_commands_that_operators_type(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    page = capsys.readouterr().out
    assert "apply " in page
    assert [name for name in ("run-", "verify-system", "SUPPRESS") if name in page] == []

    with pytest.raises(SystemExit):
        main(["run-trial", "--help"])
    page = " ".join(capsys.readouterr().out.split()).replace("- ", "-")  # argparse breaks lines at hyphens
    assert "for edge-ota-trial@.service" in page
    assert "the settings file (default: EDGE_OTA_CONFIG, else /etc/edge-ota/edge-ota.conf)" in page


def test_status_where_nothing_ran_names_the_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, state = tmp_path / "edge-ota.conf", tmp_path / "state"
    monkeypatch.setenv("EDGE_OTA_CONFIG", str(file))
    never = f"edge-ota never ran here: {state} does not exist\n"
    hint = "--config FILE or EDGE_OTA_CONFIG names another file\n"
    assert main(["status", f"--state-dir={state}"]) == 0
    assert capsys.readouterr().out == f"{never}settings: {file}, which does not exist; {hint}"

    file.write_text(f"STATE_DIR={state}\n")
    monkeypatch.delenv("EDGE_OTA_CONFIG")
    assert main(["status", f"--config={file}"]) == 0
    assert capsys.readouterr().out == f"{never}settings: {file}; {hint}"
