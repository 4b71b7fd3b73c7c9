"""Doors that are opened with care: a real server with TLS, tokens, certificates and its socket for administration."""

from __future__ import annotations

import grp
import os
import signal
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edge_serve.access.credentials import new_token, read_tokens
from edge_serve.access.roles import Role
from tests.forked import program
from tests.server.bad_requests import good_inputs
from tests.server.running import FREE_PORTS, PATIENCE, Running, python_model, running, start
from tests.server.secured import Keys, UnixConnection, ask, tls
from tests.server.test_commands import command

pytestmark = pytest.mark.slow  # a server for each door and certificate

LOAD = "/v2/repository/models/m/load"
INFER = "/v2/models/m/infer"
BODY = {"inputs": good_inputs()}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys.made(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("models")
    python_model(root, "m")
    (keys.folder / "certificates").write_text("infer CN=camera-3,O=Acme\n")
    flags = [
        *keys.flags,
        f"--certificate-role-file={keys.folder / 'certificates'}",
        "--metrics-use-ssl=true",
        f"--admin-socket={keys.folder / 'admin.sock'}",
        f"--admin-socket-group={grp.getgrgid(os.getgid()).gr_name}",
        "--http-cors-origin=https://dashboard.example",
        "--model-control-mode=explicit",
        "--load-model=m",
    ]
    with running(f"--model-repository={root}", *flags) as started:
        yield started


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def test_tokens_and_roles(server: Running, keys: Keys) -> None:
    with closing(tls(server.http, keys.authority.client())) as client:
        assert ask(client, "POST", INFER, BODY, keys.tokens["infer"]).status == 200
        nobody = ask(client, "POST", INFER, BODY)
        assert (nobody.status, nobody.headers["www-authenticate"]) == (401, 'Bearer realm="edge-serve"')
        assert ask(client, "GET", "/v2/health/ready").status == 401
        assert ask(client, "GET", "/v2/health/ready", token=keys.tokens["read"]).status == 200
        low = ask(client, "POST", INFER, BODY, keys.tokens["read"])
        assert low.status == 403
        assert "this needs the role infer" in low.error
        assert ask(client, "POST", LOAD, {}, keys.tokens["infer"]).status == 403
        assert ask(client, "POST", LOAD, {}, keys.tokens["admin"]).status == 200


def test_a_large_body_is_refused_at_its_head(server: Running, keys: Keys) -> None:
    with closing(tls(server.http, keys.authority.client())) as client:
        client.putrequest("POST", INFER)
        client.putheader("Content-Length", str(50 << 20))
        client.putheader("Expect", "100-continue")
        client.endheaders()
        assert client.getresponse().status == 401


def test_a_body_is_refused_where_none_is_expected(server: Running, keys: Keys) -> None:
    """The memory for bodies is not asked at this door: there must be hardly any."""
    with closing(tls(server.metrics, keys.authority.client())) as client:
        client.putrequest("POST", "/metrics")
        client.putheader("Content-Length", str(1 << 20))
        client.putheader("Expect", "100-continue")
        client.endheaders()
        assert client.getresponse().status == 413


def test_a_certificate_has_a_role(server: Running, keys: Keys) -> None:
    with closing(tls(server.http, keys.authority.client(keys.authority.issue("camera-3", "Acme")))) as known:
        assert ask(known, "POST", INFER, BODY).status == 200
        assert ask(known, "POST", LOAD, {}).status == 403
    with closing(tls(server.http, keys.authority.client(keys.authority.issue("camera-4", "Acme")))) as unknown:
        assert ask(unknown, "GET", "/v2").status == 403


def test_metrics_are_behind_the_same_door(server: Running, keys: Keys) -> None:
    with closing(tls(server.metrics, keys.authority.client())) as client:
        assert ask(client, "GET", "/metrics").status == 401
        page = ask(client, "GET", "/metrics", token=keys.tokens["read"])
        assert page.status == 200
        assert b'edge_serve_refused_total{reason="access"} ' in page.body


def test_the_socket_for_administration(server: Running, keys: Keys) -> None:
    path = keys.folder / "admin.sock"
    assert path.stat().st_mode & 0o777 == 0o660
    with closing(UnixConnection(path)) as client:
        assert ask(client, "POST", LOAD, {}).status == 200
        assert ask(client, "POST", INFER, BODY).status == 200


def test_web_pages_of_the_named_origin_may_read(server: Running, keys: Keys) -> None:
    with closing(tls(server.http, keys.authority.client())) as client:
        asked = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "authorization"}
        preflight = ask(client, "OPTIONS", INFER, Origin="https://dashboard.example", **asked)
        assert (preflight.status, preflight.headers["access-control-allow-origin"]) == (
            204,
            "https://dashboard.example",
        )
        reply = ask(client, "POST", INFER, BODY, keys.tokens["infer"], Origin="https://dashboard.example")
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, "https://dashboard.example")
        other = ask(client, "OPTIONS", INFER, Origin="https://evil.example", **asked)
        assert "access-control-allow-origin" not in other.headers


def test_files_that_change_are_loaded_again(server: Running, keys: Keys) -> None:
    """Tokens hold at once for connections that are open; a new certificate is for new ones."""
    with closing(tls(server.http, keys.authority.client())) as client:
        added = new_token(keys.folder / "tokens", Role.READ, "added")
        until(lambda: ask(client, "GET", "/v2", token=added).status == 200)
        lines = (keys.folder / "tokens").read_text().splitlines(keepends=True)
        (keys.folder / "tokens").write_text("".join(line for line in lines if "added" not in line))
        until(lambda: ask(client, "GET", "/v2", token=added).status == 401)
        before = _certificate(server, keys)
        keys.rotate()
        until(lambda: _certificate(server, keys) != before)
        assert ask(client, "GET", "/v2", token=keys.tokens["read"]).status == 200
        (keys.folder / "tokens").write_text("nonsense\n" + "".join(lines))
        server.wait_for_log(r"line 1 is not .* the value loaded before stays in use")
        assert ask(client, "GET", "/v2", token=keys.tokens["read"]).status == 200
        (keys.folder / "tokens").write_text("".join(lines))


def _certificate(server: Running, keys: Keys) -> bytes:
    with closing(tls(server.http, keys.authority.client())) as client:
        client.connect()
        assert isinstance(client.sock, ssl.SSLSocket)
        certificate = client.sock.getpeercert(binary_form=True)
        client.close()
        assert certificate is not None
        return certificate


def test_a_socket_that_a_killed_server_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    flags = [f"--model-repository={tmp_path}", f"--admin-socket={path}", "--allow-http=false"]
    first = start(*flags)
    first.wait_for_log("ready in")
    taken = start(*flags)
    taken.wait_for_log("another process listens on")
    assert taken.process.wait(PATIENCE) == 1
    first.process.kill()
    first.process.wait()
    assert path.exists()
    second = start(*flags)
    second.wait_for_log("ready in")
    with closing(UnixConnection(path)) as client:
        assert ask(client, "GET", "/v2/health/live").status == 200
    assert second.stop(signal.SIGTERM) == 0
    assert not path.exists()
    for server in (first, taken, second):
        server.log_path.unlink()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--http-use-ssl=true"], "TLS needs --http-server-cert: the file was not named"),
        (["--http-use-ssl-mutual=true", "--http-server-cert=/a", "--http-server-key=/b"], "TLS needs --http-root-cert"),
        (["--http-use-ssl=1", "--http-server-cert=/nowhere", "--http-server-key=/b"], "cannot read '/nowhere'"),
        (["--metrics-use-ssl=true"], "--metrics-use-ssl needs --http-use-ssl"),
        (["--token-file=/nowhere"], "there is no token file '/nowhere': make one with edge-serve token"),
        (["--certificate-role-file=/nowhere"], "cannot read the certificate role file '/nowhere'"),
        (["--admin-socket=/nowhere/a.sock"], "No such file or directory"),
        (["--admin-socket=a.sock", "--admin-socket-group=nobody-of-that-name"], "no group 'nobody-of-that-name'"),
    ],
)
def test_impossible_settings_are_reported_at_the_start(
    tmp_path: Path, flags: list[str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = program(f"--model-repository={tmp_path}", *FREE_PORTS, *flags)
    assert (ended.status, ended.served) == (1, False), ended.output
    assert text in ended.output
    assert "Traceback" not in ended.output


def test_the_command_that_makes_tokens(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    made = command("token", str(path), "infer", "camera-3")
    assert made.returncode == 0
    token = made.stdout.strip()
    assert token not in path.read_text()
    assert read_tokens(str(path)).role_of(token) is Role.INFER
    for arguments, status, text in (
        ([str(path)], 2, "the following arguments are required: ROLE; see 'edge-serve token --help'"),
        ([str(path), "boss"], 2, "found role 'boss'"),
        ([str(path), "read", "two words"], 1, "found name 'two words'"),
        ([str(tmp_path / "none" / "tokens"), "read"], 1, "cannot write"),
    ):
        refused = command("token", *arguments)
        assert refused.returncode == status
        assert text in refused.stderr
