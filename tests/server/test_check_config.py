"""`edge-serve check-config`: a line for each thing that would trouble the next start, before the server is stopped."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from edge_serve.check import config as check_config
from edge_serve.check.config import check_sandbox
from edge_serve.check.files import problems
from edge_serve.config.settings.server import parse_argv
from edge_serve.systemd.unit import Unit
from tests.certificates import Authority
from tests.forked import program

USER = os.environ.get("USER", "root")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def check(*arguments: str, environ: Mapping[str, str] | None = None) -> tuple[int | None, list[str]]:
    """Exit status and lines."""
    ended = program("check-config", *arguments, environ=environ)
    assert "Traceback" not in ended.output
    return ended.status, ended.output.splitlines()


def test_sound_settings_are_good(models: Path) -> None:
    assert check(f"--model-repository={models}") == (0, ["good: this command line and environment"])


def test_backends_that_are_not_there_are_warnings_and_a_backend_directory_is_not(models: Path, tmp_path: Path) -> None:
    none = tmp_path / "none"
    settings = ("tensorflow,version=2", "dali,a=1", "python,b=2", "default-max-batch-size=4")
    status, lines = check(
        f"--model-repository={models}", f"--backend-directory={none}", *(f"--backend-config={one}" for one in settings)
    )
    absent = f"is installed or in '{none}' (only a backend.py of a model could read it)"
    assert (status, lines) == (0, [
        "warning: --backend-config=python,b is accepted and ignored: backend 'python' reads no settings",
        f"warning: --backend-config=tensorflow,... has no effect: no backend 'tensorflow' {absent}",
        f"warning: --backend-config=dali,... has no effect: no backend 'dali' {absent}",
        "good: this command line and environment",
    ])  # fmt: skip


def test_every_problem_is_a_separate_line(models: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue()
    (tmp_path / "tokens").write_text("admin hunter2\n")
    os.mkfifo(tmp_path / "fifo")
    (models / "m" / "1").mkdir(parents=True)
    (models / "m" / "1" / "model.py").touch(0)
    (tmp_path / "releases" / "17").mkdir(parents=True)
    (tmp_path / "releases" / "17" / "config.pbtxt").touch(0)
    (models / "linked").symlink_to("../releases/17")
    long = f"{tmp_path}/{'s' * 200}"
    status, lines = check(
        f"--model-repository={models}", f"--model-repository={tmp_path}/none", f"--token-file={tmp_path}/tokens",
        "--http-use-ssl=true", f"--http-server-cert={pair.certificate}", f"--http-server-key={tmp_path}/none.key",
        f"--log-file={tmp_path}/none/log", f"--trace-config=triton,file={tmp_path}/fifo",
        f"--state-directory={tmp_path}/fifo/no",
        f"--admin-socket={long}", "--admin-socket-group=no-such-group", "--metrics-config=summary_quantiles=x",
        "--http-address=no such host", "--metrics-address=127.0.0.1", environ={"EDGE_SERVE_HTPP_PORT": "1"},
    )  # fmt: skip

    assert status == 1
    assert all(line.startswith("problem: ") for line in lines)
    said = [
        "EDGE_SERVE_HTPP_PORT is unknown and has no effect: did you mean EDGE_SERVE_HTTP_PORT?",
        f"--model-repository '{models}': '{models}/m/1/model.py' and 1 others may not be read",
        f"--model-repository '{tmp_path}/none': No such file or directory; expected a directory",
        "tokens': line 1 is not '<role> sha256:<64 hexadecimal digits> <name>'",
        f"TLS: cannot read '{tmp_path}/none.key': No such file or directory",
        "summary_quantiles expects <quantile>:<error>",
        f"--log-file '{tmp_path}/none/log': there is no directory '{tmp_path}/none': make it",
        f"--trace-config triton,file '{tmp_path}/fifo': found a special file, expected a regular file",
        f"--state-directory '{tmp_path}/fifo/no': cannot be made, because '{tmp_path}/fifo' is no directory",
        "expected at most 107",
        "there is no group 'no-such-group'",
        "--http-address 'no such host'",
    ]
    assert len(lines) == len(said), "\n".join(lines)
    for line, text in zip(lines, said, strict=True):
        assert text in line


def test_entries_that_are_no_models_need_not_be_readable(models: Path) -> None:
    for name in ("lost+found", ".git", "__pycache__"):
        (models / name).mkdir(mode=0)
    (models / "notes.txt").touch(0)
    assert check(f"--model-repository={models}") == (0, ["good: this command line and environment"])

    (models / "m").mkdir(mode=0)
    status, lines = check(f"--model-repository={models}")
    assert (status, len(lines)) == (1, 1)
    assert f"'{models}/m' may not be read" in lines[0]
    (models / "m").chmod(0o755)
    models.chmod(0o600)
    assert check(f"--model-repository={models}") == (1, lines)
    models.chmod(0o700)


def test_a_bad_value_is_an_error_and_ignored_flags_are_warnings(models: Path) -> None:
    status, lines = check(f"--model-repository={models}", "--http-port=x")
    assert (status, lines) == (1, ["problem: Bad option \"--http-port\": found 'x', expected an integer"])

    status, lines = check(f"--model-repository={models}", "--http-thread-count=4")
    assert status == 0
    assert lines[0].startswith("warning: --http-thread-count is accepted and ignored")


@pytest.fixture
def unit(tmp_path: Path, models: Path) -> Unit:
    """An installed service of this user."""
    (tmp_path / "a.conf").write_text(f"EDGE_SERVE_MODEL_REPOSITORY={models}\n")
    files = ((f"{tmp_path}/*.conf", True),)
    return Unit(user="root", files=files, made=(str(tmp_path / "state"),), writable=(str(tmp_path),), hidden=())


def service(unit: Unit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """The check of the installed service."""
    monkeypatch.setattr(check_config, "find_unit", lambda: unit)
    status = check_config.run([], os.environ)
    return status, capsys.readouterr().out.splitlines()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes the service's user")


@needs_root
def test_the_service_s_files_are_read_as_systemd_reads_them(
    unit: Unit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert service(unit, monkeypatch, capsys) == (0, [f"good: edge-serve.service with {tmp_path}/a.conf"])

    (tmp_path / "a.conf").write_text('EDGE_SERVE_ID="x\nEDGE_SERVE_MODEL_REPOSITORY=/models\n')
    status, lines = service(unit, monkeypatch, capsys)
    assert status == 1
    assert lines[0].startswith(f'problem: {tmp_path}/a.conf line 1: the quote " is not closed')
    assert "/etc/edge-serve/edge-serve.conf and /etc/edge-serve/conf.d/*.conf: are they readable and quoted" in lines[1]


@needs_root
def test_credentials_are_handed_over_and_not_looked_for(
    unit: Unit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = Authority(tmp_path).issue()
    pair.key.chmod(0o400)
    given = "/run/credentials/edge-serve.service/edge-serve_server"
    (tmp_path / "b.conf").write_text(
        f"EDGE_SERVE_HTTP_USE_SSL=true\nEDGE_SERVE_HTTP_SERVER_CERT={given}.crt\nEDGE_SERVE_HTTP_SERVER_KEY={given}.key\n"
    )
    with_key = replace(unit, credentials={f"{given}.crt": str(pair.certificate), f"{given}.key": str(pair.key)})
    assert service(with_key, monkeypatch, capsys)[0] == 0

    status, lines = service(replace(unit, credentials={f"{given}.crt": str(pair.key)}), monkeypatch, capsys)
    assert status == 1
    assert len(lines) == 1
    assert f"cannot read '{given}.key': No such file or directory; systemd copies it from" in lines[0]


@needs_root
def test_places_that_the_service_cannot_use_are_reported(
    unit: Unit, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b.conf").write_text("EDGE_SERVE_LOG_FILE=/usr/edge-serve.log\n")
    status, lines = service(replace(unit, hidden=(str(models.parent),)), monkeypatch, capsys)

    assert status == 1
    assert f"the service cannot see {models.parent} (ProtectHome=)" in lines[0]
    assert "--log-file '/usr/edge-serve.log': the service may not write there (ProtectSystem=strict)" in lines[1]


def test_directories_that_are_links_are_followed_on_both_sides(models: Path, tmp_path: Path) -> None:
    (tmp_path / "data/edge-serve").mkdir(parents=True)
    linked = tmp_path / "lib"
    linked.symlink_to("data/edge-serve")
    config = parse_argv([f"--model-repository={models}", f"--log-file={linked}/log"], {})
    unit = Unit(made=(str(linked),), writable=(str(linked),), hidden=())
    assert check_sandbox(config, unit) == []
    (text,) = check_sandbox(config, replace(unit, writable=None, hidden=(str(tmp_path / "data"),)))
    assert text.startswith(f"--log-file '{linked}/log': the service cannot see {tmp_path}/data")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--http-address=192.0.2.7"], "--http-address '192.0.2.7': Cannot assign requested address; expected an addr"),
        (["--http-unix-socket={0}/s", "--admin-socket={0}/./s"], "--admin-socket and --http-unix-socket name the same"),
        (["--log-file={0}/l", "--trace-config=triton,file={0}/l"], "--log-file and --trace-config triton,file name"),
    ],
)
def test_what_only_the_start_would_refuse_is_found(
    models: Path, tmp_path: Path, arguments: list[str], said: str
) -> None:
    given = [one.format(tmp_path) for one in arguments]
    (text,) = problems(parse_argv([f"--model-repository={models}", "--metrics-address=127.0.0.1", *given], {}), {})
    assert text.startswith(said)
    one_alone = ["--http-address=localhost"] if len(given) == 1 else given[1:]
    assert problems(parse_argv([f"--model-repository={models}", *one_alone], {}), {}) == []


def test_the_packaged_addresses_are_good_on_a_machine_without_ipv6(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket units listen on IPv4 there."""

    class OnlyIPv4(socket.socket):
        def __init__(self, family: int = -1) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family)

    monkeypatch.setattr(socket, "socket", OnlyIPv4)
    assert problems(parse_argv([f"--model-repository={models}", "--http-address=::"], {}), {}) == []


def test_a_name_of_an_address_that_another_door_has_is_found(models: Path) -> None:
    argv = [f"--model-repository={models}", "--http-address=localhost", "--metrics-address=127.0.0.1"]
    (text,) = problems(parse_argv([*argv, "--metrics-port=8000"], {}), {})
    assert "HTTP requests at localhost:8000 and metrics requests at 127.0.0.1:8000, because one address inc" in text
    assert problems(parse_argv(argv, {}), {}) == []


@needs_root
def test_an_unknown_user_is_an_error(
    unit: Unit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, lines = service(replace(unit, user="no-such-user"), monkeypatch, capsys)

    assert (status, lines[0].startswith("problem: there is no user 'no-such-user'")) == (1, True)
