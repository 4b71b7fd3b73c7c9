"""Fetching the document, from servers that are there, are others, or are not."""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_serve.observe.status import client
from edge_serve.observe.status.client import ABSENT, UNKNOWN, StatusTarget, Unreachable, fetch, find_target
from tests.certificates import Authority


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers what its server was told to."""

    def do_GET(self) -> None:
        made = self.server
        assert isinstance(made, Server)
        made.seen.append((self.path, self.headers.get("Authorization")))
        self.send_response(made.status)
        self.send_header("Content-Length", str(len(made.body)))
        self.end_headers()
        self.wfile.write(made.body)

    def do_POST(self) -> None:
        self.do_GET()

    def address_string(self) -> str:
        return "peer"

    def log_message(self, format: str, *args: object) -> None:
        return


class Server(http.server.ThreadingHTTPServer):
    """On a TCP port, or on a UNIX socket."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int] | str, status: int, body: bytes) -> None:
        self.status, self.body = status, body
        self.seen: list[tuple[str, str | None]] = []
        if isinstance(address, str):
            self.address_family = socket.AF_UNIX
        super().__init__(address, Handler)  # type: ignore[arg-type]  # a path, for AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)  # and no look-up of its name
        self.server_address = self.socket.getsockname()


@contextlib.contextmanager
def serving(
    body: bytes = b'{"server": {"state": "ready"}}', status: int = 200, path: str = ""
) -> Iterator[tuple[Server, StatusTarget]]:
    with Server(path or ("127.0.0.1", 0), status, body) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        target = StatusTarget(socket=path) if path else StatusTarget(url=f"http://127.0.0.1:{server.server_address[1]}")
        try:
            yield server, target
        finally:
            server.shutdown()
            thread.join()


def test_the_document_over_http() -> None:
    with serving() as (server, target):
        assert fetch(target)["server"]["state"] == "ready"
    assert server.seen == [("/edge-serve/status", None)]


def test_the_document_over_a_unix_socket(tmp_path: Path) -> None:
    with serving(path=str(tmp_path / "admin.sock")) as (_, target):
        assert fetch(target)["server"]["state"] == "ready"


def test_the_document_over_tls_of_a_server_that_is_trusted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    with serving() as (server, target):
        server.socket = context.wrap_socket(server.socket, server_side=True)
        url = target.url.replace("http:", "https:")
        assert fetch(StatusTarget(url=url, ca=str(authority.root)))["server"]["state"] == "ready"
        with pytest.raises(Unreachable, match=r"no trust in the server at https://.*--ca-cert names what to trust"):
            fetch(StatusTarget(url=url))


def test_a_token_is_shown_and_a_path_of_a_proxy_kept() -> None:
    with serving() as (server, target):
        fetch(StatusTarget(url=f"{target.url}/cart-7/", token="secret"))
    assert server.seen == [("/cart-7/edge-serve/status", "Bearer secret")]


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (401, b'{"error": "show a token"}', "refuses: show a token; --token-file"),
        (403, b'{"error": "role read"}', "refuses: role read"),
        (404, b'{"error":"Not Found"}', r"returned no edge-serve status document \(HTTP 404\)"),
        (403, b"<html>", r"HTTP 403"),
        (200, b"<html>hello", "no edge-serve status document"),
        (200, b"[]", "no edge-serve status document"),
        (500, b"", "HTTP 500"),
        (500, b'{"error": "see the log"}', "has no status document: see the log$"),
        (200, b"[" * 100_000, "no edge-serve status document"),
    ],
)
def test_other_answers_are_reported_in_a_sentence(status: int, body: bytes, text: str) -> None:
    with serving(body, status) as (_, target), pytest.raises(Unreachable, match=text) as refused:
        fetch(target)
    assert refused.value.status == UNKNOWN


def test_no_server() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    for target, reason in (
        (StatusTarget(url=url), "Connection refused"),
        (StatusTarget(socket="/nowhere/x"), "No such file"),
    ):
        with pytest.raises(Unreachable, match=reason) as absent:
            fetch(target)
        assert absent.value.status == ABSENT
        assert target.name in str(absent.value)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"\0\0\x18\4\0\0\0\0\0\0\3\0\0\4\0\0\4\0\x10", "speaks gRPC: give the HTTP port, such as 8000"),
        (b"\0\0\0\4\0\0\0\0\0\n", "speaks gRPC: give the HTTP port, such as 8000"),
        (b"SSH-2.0-\x1b[2J\r\n", "does not speak HTTP: check --url or --admin-socket"),
    ],
)
def test_another_protocol_is_named_and_its_bytes_are_not_shown(sent: bytes, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"

        def answer() -> None:
            connection, _ = sock.accept()
            with connection:
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(Unreachable) as refused:
            fetch(StatusTarget(url=url))
        thread.join()
    assert (str(refused.value), refused.value.status) == (f"{url} {said}", UNKNOWN)


def test_a_port_without_tls_is_named() -> None:
    with serving() as (_, target):
        url = target.url.replace("http:", "https:")
        with pytest.raises(Unreachable, match=f"^{url} answers without TLS: write --url {target.url}$"):
            fetch(StatusTarget(url=url))


def test_a_server_that_hangs_or_hangs_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        target = StatusTarget(url=f"http://127.0.0.1:{sock.getsockname()[1]}")
        with pytest.raises(Unreachable, match=r"does not answer within 0\.1 s"):
            fetch(target, timeout=0.1)

        def hang_up() -> None:
            sock.accept()[0].close()  # the one that gave up
            sock.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(Unreachable, match="no server answers"):
            fetch(target)
        thread.join()


def test_a_server_that_sends_drop_by_drop_or_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MOST_BYTES", 1000)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        target = StatusTarget(url=f"http://127.0.0.1:{sock.getsockname()[1]}")

        def serve() -> None:
            for text in (b" " * 8000, b" "):
                with sock.accept()[0] as peer, contextlib.suppress(OSError):
                    peer.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + text)
                    while text == b" " or not peer.recv(65536):
                        peer.sendall(text)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(Unreachable, match="no edge-serve status document"):
            fetch(target)
        monkeypatch.setattr(client, "_MOST_BYTES", 1 << 40)
        with pytest.raises(Unreachable, match=r"does not answer within 0\.1 s"):
            fetch(target, timeout=0.1)
        thread.join()


def test_a_server_whose_head_comes_drop_by_drop() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        target = StatusTarget(url=f"http://127.0.0.1:{sock.getsockname()[1]}")
        given_up = threading.Event()

        def serve() -> None:
            with sock.accept()[0] as peer, contextlib.suppress(OSError):
                for drop in b"HTTP/1.0 200 OK\r\nX: " + b"y" * 200:  # has an end, for who would wait for it
                    peer.sendall(bytes([drop]))
                    if given_up.wait(0.02):
                        break

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(Unreachable, match=r"does not answer within 0\.1 s"):
            fetch(target, timeout=0.1)
        given_up.set()
        thread.join()


def test_the_addresses_of_a_name_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, tried = 0.0, []

    def hang(address: tuple[str, int], timeout: float) -> socket.socket:
        nonlocal now
        tried.append((address[0], timeout))
        now += min(timeout, 3.0)
        raise TimeoutError

    addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"192.0.2.{last}", 80)) for last in range(4)]
    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: addresses)
    monkeypatch.setattr("socket.create_connection", hang)

    with pytest.raises(Unreachable, match="does not answer within 5 s"):
        fetch(StatusTarget(url="http://cart-7"), timeout=5.0)

    assert tried == [("192.0.2.0", 5.0), ("192.0.2.1", 2.0)]


@pytest.mark.parametrize("token", ["two\nlines", "a b", "\ufffd"])
def test_a_token_that_is_none(token: str) -> None:
    with pytest.raises(Unreachable, match="one token and no more"):
        fetch(StatusTarget(url="http://127.0.0.1:1", token=token))


@pytest.mark.parametrize(
    "url", ["http://x..y", "http://" + "a" * 80, "http://127.0.0.1:1/\xfc", "http://127.0.0.1:1/ x"]
)
def test_an_unreachable_url_is_reported(url: str) -> None:
    with pytest.raises(Unreachable, match="no server answers"):
        fetch(StatusTarget(url=url))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open everything")
def test_a_socket_without_permission_is_reported_with_advice(tmp_path: Path) -> None:
    path = str(tmp_path / "admin.sock")
    with serving(path=path) as (_, target):
        os.chmod(path, 0)
        with pytest.raises(Unreachable, match=r"run it as root \(sudo\) or as a member of its group") as refused:
            fetch(target)
    assert refused.value.status == UNKNOWN


def test_no_permission_is_reported_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(client, "_reach_unix", refuse)
    with pytest.raises(Unreachable, match=r"you may not use /run/x: run it as root \(sudo\)"):
        fetch(StatusTarget(socket="/run/x"))


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://h:port", "http://[::1"])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(Unreachable, match="expected http://") as wrong:
        fetch(StatusTarget(url=url))
    assert wrong.value.status == 2


def test_a_file_of_certificates_that_is_none(tmp_path: Path) -> None:
    for name, reason in (("none", "No such file"), ("text", "NO_CERTIFICATE")):
        (tmp_path / "text").write_text("no PEM")
        with pytest.raises(
            Unreachable, match=rf"--ca-cert: found no certificates \(PEM\) in '.*/{name}': {reason}"
        ) as bad:
            fetch(StatusTarget(url="https://127.0.0.1:1", ca=str(tmp_path / name)))
        assert bad.value.status == UNKNOWN


def test_where_to_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "DEFAULT_SOCKET", str(tmp_path / "admin.sock"))
    monkeypatch.setattr(client, "UNIT_FILE", str(tmp_path / "edge-serve.service"))
    (tmp_path / "token").write_text("secret\n")

    assert find_target({}).name == "http://127.0.0.1:8000"
    assert find_target({}, url="cart-7:8000").url == "http://cart-7:8000"
    assert find_target({}, url="https://cart-7", ca="ca.pem") == StatusTarget("", "https://cart-7", "", "ca.pem")
    assert find_target({"EDGE_SERVE_ADMIN_SOCKET": "/x"}).name == "/x"
    assert find_target({"EDGE_SERVE_ADMIN_SOCKET": "/x"}, path="/y").name == "/y"
    assert find_target({}, url="http://h", token_file=str(tmp_path / "token")).token == "secret"
    (tmp_path / "admin.sock").touch()
    assert find_target({}).name == str(tmp_path / "admin.sock")
    with pytest.raises(Unreachable, match="No such file"):
        find_target({}, token_file=str(tmp_path / "none"))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(Unreachable, match=r"cannot read .*/fifo': it is no regular file"):
        find_target({}, token_file=str(tmp_path / "fifo"))


def test_a_stopped_service_is_not_started_by_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket unit still listens on the port, and the first connection starts it."""
    socket_path, unit = tmp_path / "run" / "admin.sock", tmp_path / "edge-serve.service"
    monkeypatch.setattr(client, "DEFAULT_SOCKET", str(socket_path))
    monkeypatch.setattr(client, "UNIT_FILE", str(unit))
    monkeypatch.setenv("PATH", str(tmp_path))
    systemctl = tmp_path / "systemctl"
    systemctl.write_text('#!/bin/sh\n[ "$*" = "is-active edge-serve.socket" ] && echo active\n')
    systemctl.chmod(0o755)
    unit.touch()

    with pytest.raises(Unreachable, match=r"no server answers at .*/run/admin.sock \(No such file") as absent:
        fetch(find_target({}))
    assert absent.value.status == ABSENT
    assert find_target({}, url="127.0.0.1:8000").url == "http://127.0.0.1:8000"
    socket_path.parent.mkdir()  # it runs, and its settings name no socket, or another
    assert find_target({}).name == "http://127.0.0.1:8000"


@pytest.mark.parametrize("systemctl", ["", "#!/bin/sh\necho inactive\nexit 3\n"])
def test_a_server_beside_the_stopped_service_is_asked(
    systemctl: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in a container without systemd, or by hand after the socket units were stopped."""
    monkeypatch.setattr(client, "DEFAULT_SOCKET", str(tmp_path / "run" / "admin.sock"))
    monkeypatch.setattr(client, "UNIT_FILE", str(tmp_path / "edge-serve.service"))
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "edge-serve.service").touch()
    if systemctl:
        (tmp_path / "systemctl").write_text(systemctl)
        (tmp_path / "systemctl").chmod(0o755)

    assert find_target({}).name == "http://127.0.0.1:8000"
