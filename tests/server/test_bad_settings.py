"""Each setting with a bad value, and each file that a setting names in each bad state: one clear line, and no hang."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_serve import cli
from edge_serve.config.settings.server import SETTINGS, parse_argv
from edge_serve.config.settings.table import BadSetting, flag_of, variable_of
from tests.certificates import Authority
from tests.forked import Ended, program

REPOSITORY = "--model-repository=/models"
LONG = 10 << 20

#: values by what is wrong with them
VALUES = {
    "of another type": "\N{SNOWMAN}=x",
    "empty": "",
    "a line of its own": "1\nE0101 forged",
    "10 MB of a letter": "x" * LONG,
    "10 MB of a digit": "1" * LONG,
    "10 MB of brackets": "(" * LONG,
}
#: settings for which some text of these is a value
TAKES_TEXT = {"string", "path", "name", "regex", "[backend,]setting=value"}


def refused(argv: list[str], environ: dict[str, str]) -> str:
    """Why the settings are refused; "" = they are not."""
    try:
        parse_argv(argv, environ)
    except BadSetting as error:
        return error.message
    return ""


@pytest.mark.parametrize("what", VALUES)
@pytest.mark.parametrize("name", SETTINGS)
def test_a_bad_value_is_one_short_line_that_names_the_setting(
    name: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    value, flag, variable = VALUES[what], flag_of(name), variable_of(name)
    messages = {
        flag: refused([REPOSITORY, f"{flag}={value}"], {}),
        variable: refused([], {variable_of("model_repository"): "/models", variable: value}),
    }
    for named, message in messages.items():
        assert not message or named in message or flag in message
        assert "\n" not in message
        assert len(message) < 600
    kind, many = SETTINGS[name].kind, SETTINGS[name].many is not None
    if len(value) < LONG and (kind.metavar in TAKES_TEXT or (many and not value)):
        return  # some text is a value, and an empty variable gives none to a setting that takes several
    assert all(messages.values())
    if len(value) < LONG:
        assert cli.main([REPOSITORY, f"{flag}={value}"]) == 2
        said = capsys.readouterr().err.splitlines()
        assert [line[:12] for line in said] == ["edge-serve: ", "Try 'edge-se"]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    authority = Authority(tmp_path_factory.mktemp("keys"))
    pair = authority.issue()
    return {"cert": str(pair.certificate), "key": str(pair.key), "root": str(authority.root)}


def _missing(path: Path) -> None:
    return


def _unreadable(path: Path) -> None:
    path.write_text("")
    path.chmod(0)


STATES: dict[str, Callable[[Path], object]] = {
    "missing": _missing,
    "unreadable": _unreadable,
    "empty": lambda path: path.write_text(""),
    "a directory": Path.mkdir,
    "a FIFO": os.mkfifo,
}
TLS = "--{0}-use-ssl-mutual=true --{0}-server-cert={cert} --{0}-server-key={key} --{0}-root-cert={root}"
#: files that are read: an option, and others that it needs; later options win
READ = {
    "--token-file": "",
    "--certificate-role-file": "",
    "--http-server-cert": TLS.replace("{0}", "http"),
    "--http-server-key": TLS.replace("{0}", "http"),
    "--http-root-cert": TLS.replace("{0}", "http"),
    "--grpc-server-cert": "--allow-grpc=true --grpc-port=0 " + TLS.replace("{0}", "grpc"),
    "--grpc-server-key": "--allow-grpc=true --grpc-port=0 " + TLS.replace("{0}", "grpc"),
    "--grpc-root-cert": "--allow-grpc=true --grpc-port=0 " + TLS.replace("{0}", "grpc"),
}
EMPTY_IS_GOOD = {"--token-file", "--certificate-role-file"}
#: what the server writes or makes, and serves all the same whatever their state
OPTIONAL = ("--trace-config=triton,file", "--state-directory", "--execution-env-directory")
#: what the server writes or makes, and the states in which it serves all the same
WRITTEN = {
    "--log-file": {"missing", "empty"},
    "--admin-socket": {"missing"},
    "--http-unix-socket": {"missing"},
}


def start(folder: Path, *options: str) -> Ended:
    """The program with an empty repository and these options, until it is ready or ends."""
    models = folder / "models"
    models.mkdir()
    doors = ("--http-port=0", "--metrics-port=0", "--allow-grpc=false")
    return program(f"--model-repository={models}", *doors, *options)


def refusal(ended: Ended, path: Path) -> str:
    """The one line that says why the server did not start."""
    assert (ended.status, ended.served) == (1, False), ended.output
    assert "Traceback" not in ended.output
    lines = [line for line in ended.output.splitlines() if line.startswith(("E", "edge-serve: "))]
    assert len(lines) == 1, ended.output
    assert str(path) in lines[0]
    assert len(lines[0]) < 600
    return lines[0]


@pytest.mark.parametrize("state", ["missing", "unreadable", "empty", "a directory", "a FIFO"])
@pytest.mark.parametrize("option", READ)
def test_a_bad_file_is_one_line_that_names_it(option: str, state: str, keys: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "file"
    STATES[state](path)
    ended = start(tmp_path, *READ[option].format(**keys).split(), f"{option}={path}")

    if state == "empty" and option in EMPTY_IS_GOOD:
        assert (ended.status, ended.served) == (0, True), ended.output
        return
    said = refusal(ended, path)
    reasons = {"missing": ("o such file", "there is no"), "unreadable": ("Permission denied",),
               "a directory": ("Is a directory",), "a FIFO": ("no regular file",), "empty": ("PEM",)}  # fmt: skip
    assert any(reason in said for reason in reasons[state])


@pytest.mark.parametrize("state", ["missing", "unreadable", "empty", "a FIFO"])
def test_the_error_of_a_missing_repository_says_what_to_do(state: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    STATES[state](path)
    ended = start(tmp_path, f"--model-repository={path}")

    assert (ended.status, ended.served) == (1, False), ended.output
    assert "Traceback" not in ended.output
    said = [line for line in ended.output.splitlines() if line.startswith("E")]
    assert len([line for line in said if "failed to read model repository" in line]) == 1
    assert f"'{path}'" in said[-1]
    assert "expected a directory of models that this user can read" in said[-1]


@pytest.mark.parametrize("state", ["missing", "unreadable", "empty", "a directory", "a FIFO"])
@pytest.mark.parametrize("option", WRITTEN)
def test_a_place_to_write_that_is_none_hangs_nothing(option: str, state: str, tmp_path: Path) -> None:
    path = tmp_path / "place"
    STATES[state](path)
    if option == "--log-file" and state in WRITTEN[option]:
        pytest.skip("tests/server/test_log_file.py starts with a good one")
    ended = start(tmp_path, f"{option}={path}")

    assert "Traceback" not in ended.output
    if state in WRITTEN[option]:
        assert (ended.status, ended.served) == (0, True), ended.output
    else:
        refusal(ended, path)


@pytest.mark.parametrize("state", ["missing", "unreadable", "empty", "a directory", "a FIFO"])
def test_places_that_are_optional_cost_no_start(state: str, tmp_path: Path) -> None:
    options = []
    for number, option in enumerate(OPTIONAL):
        STATES[state](tmp_path / f"place{number}")
        options.append(f"{option}={tmp_path / f'place{number}'}")
    ended = start(tmp_path, *options)

    assert "Traceback" not in ended.output
    assert (ended.status, ended.served) == (0, True), ended.output


@pytest.mark.parametrize("state", ["unreadable", "empty", "a directory", "a FIFO"])
def test_a_record_of_crashes_that_is_none_hangs_nothing(state: str, tmp_path: Path) -> None:
    """Models may write into the state directory."""
    (tmp_path / "state").mkdir()
    STATES[state](tmp_path / "state" / "crashes.json")
    ended = start(tmp_path, f"--state-directory={tmp_path / 'state'}")

    assert (ended.status, ended.served) == (0, True), ended.output
