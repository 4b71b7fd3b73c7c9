"""A repository on a web server that misbehaves."""

from __future__ import annotations

import base64
import contextlib
import errno
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from http.client import RemoteDisconnected
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from urllib3.exceptions import ProtocolError

from ota.errors import FetchError, NotInRepository, UsageError
from ota.fetch.failures import RequestFailed
from ota.fetch.http import HttpOptions, describe_error, login_header
from ota.fetch.put import put
from ota.source import StartOver
from tests.certificates import Authority, Pair
from tests.ota.faulty_server import FaultyServer

from .steps import SHORT, noise, web

DATA = noise(300_000)
#: setting -> a use of its address
USES: list[tuple[str, Callable[[str], object]]] = [
    ("URL", web),
    ("PROXY", lambda url: web("https://h/", proxy=url)),
    ("REPORT_URL", lambda url: put(url, b"{}", HttpOptions(), SHORT)),
]


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with FaultyServer({"metadata/timestamp.json": b'{"signed":1}', "blob": DATA, "empty": b""}) as server:
        yield server


def stream(server: FaultyServer, offset: int = 0, length: int = len(DATA)) -> bytes:
    return b"".join(web(server.url).stream("blob", offset, length))


def refusal(server: FaultyServer, path: str = "metadata/timestamp.json", most: int = 1000) -> RequestFailed:
    with pytest.raises(RequestFailed) as caught:
        web(server.url).get(path, most)
    assert server.url + path in caught.value.message
    return caught.value


def test_a_small_file_is_fetched_without_data_about_the_device(server: FaultyServer) -> None:
    source = web(server.url.rstrip("/"))

    assert source.get("metadata/timestamp.json", 1000) == b'{"signed":1}'
    assert source.get("empty", 0) == b""
    headers = {name.lower(): value for name, value in server.requests[0].headers.items()}
    assert headers == {"host": f"127.0.0.1:{server.port}", "user-agent": "edge-ota", "accept-encoding": "identity"}


def test_cookies_are_not_sent_back(server: FaultyServer) -> None:
    server.fault(headers={"Set-Cookie": "id=7; Path=/"})
    source = web(server.url)
    source.get("empty", 0)
    source.get("empty", 0)

    assert "cookie" not in {name.lower() for name in server.requests[1].headers}


def test_a_stream_resumes_where_it_is_asked_to(server: FaultyServer) -> None:
    assert stream(server) == DATA
    assert stream(server, 299_999) == DATA[299_999:]
    assert server.requests[1].headers["Range"] == "bytes=299999-"


@pytest.mark.fault("N1")
@pytest.mark.parametrize("share", [0, 1, 50, 99])
def test_the_error_of_a_cut_names_the_bytes_received(server: FaultyServer, share: int) -> None:
    server.fault(cut_at=len(DATA) * share // 100)
    came: list[bytes] = []
    with pytest.raises(RequestFailed, match=rf"ended after {len(DATA) * share // 100} of 300000 bytes") as caught:
        came.extend(web(server.url).stream("blob", 0, len(DATA)))
    assert caught.value.again
    assert b"".join(came) == DATA[: len(DATA) * share // 100]


@pytest.mark.fault("N1")
def test_a_cut_after_the_last_byte_is_none(server: FaultyServer) -> None:
    server.fault(cut_at=len(DATA))

    assert stream(server) == DATA


@pytest.mark.fault("N1")
def test_a_small_file_that_is_cut_is_not_taken_for_whole(server: FaultyServer) -> None:
    server.fault(cut_at=5)

    assert "ended after 5 of 12 bytes" in refusal(server).message


@pytest.mark.fault("N2")
@pytest.mark.parametrize(
    ("fault", "length", "words"),
    [
        ({"no_range": True}, 300_000, "does not resume at byte 1000 (HTTP 200)"),
        ({"content_range": "bytes 1001-299999/300000"}, 300_000, "Content-Range is 'bytes 1001-299999/300000'"),
        ({"content_range": "bytes 1000-299999/*"}, 300_000, "expected bytes 1000-299999/300000"),
        ({"content_range": "nonsense"}, 300_000, "Content-Range is 'nonsense'"),
        ({}, 300_001, "expected bytes 1000-300000/300001"),
        ({"status": 416}, 300_000, "HTTP 416"),
    ],
)
def test_a_reply_that_is_not_the_rest_means_start_over(
    server: FaultyServer, fault: dict[str, object], length: int, words: str
) -> None:
    server.fault(**fault)
    with pytest.raises(StartOver) as caught:
        stream(server, 1000, length)
    assert words in caught.value.message


@pytest.mark.fault("N2")
@pytest.mark.parametrize("no_if_range", [False, True])
def test_a_changed_etag_means_start_over(server: FaultyServer, no_if_range: bool) -> None:
    source = web(server.url)
    server.fault(cut_at=1000, times=1)
    with pytest.raises(FetchError):
        list(source.stream("blob", 0, len(DATA)))
    server.fault(headers={"ETag": '"new"'}, no_if_range=no_if_range)
    with pytest.raises(StartOver):
        list(source.stream("blob", 1000, len(DATA)))
    assert server.requests[-1].headers["If-Range"] == '"300000"'


@pytest.mark.fault("N3")
@pytest.mark.parametrize(
    ("status", "again"), [(401, False), (429, True), (500, True), (502, True), (503, True), (206, False)]
)
def test_other_statuses_are_failures(server: FaultyServer, status: int, again: bool) -> None:
    server.fault(status=status, headers={"Retry-After": "7"})
    found = refusal(server)

    assert f"HTTP {status}, expected 200" in found.message
    assert found.again is again
    assert found.retry_after == 7.0


@pytest.mark.fault("N3")
@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_missing_file_is_not_found(server: FaultyServer, status: int) -> None:
    """403 is what a bucket says that may not be listed."""
    server.fault(status=status)
    with pytest.raises(NotInRepository, match=f"does not exist.* .HTTP {status}."):
        web(server.url).get("blob", 10**6)


@pytest.mark.fault("N3")
@pytest.mark.parametrize(("text", "seconds"), [("nonsense", None), ("-5", None), ("9" * 40, 999_999_999.0)])
def test_a_retry_after_that_makes_no_sense(server: FaultyServer, text: str, seconds: float | None) -> None:
    server.fault(status=503, headers={"Retry-After": text})

    assert refusal(server).retry_after == seconds


@pytest.mark.fault("N3")
def test_a_retry_after_may_be_a_date(server: FaultyServer) -> None:
    server.fault(status=503, headers={"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"})

    assert refusal(server).retry_after == 0.0


@pytest.mark.fault("N4")
def test_three_redirects_are_followed_and_keep_the_range(server: FaultyServer) -> None:
    for number in range(3):
        server.fault(path=f"hop{number}", status=302, headers={"Location": f"/hop{number + 1}"})
    server.files["hop3"] = DATA

    assert b"".join(web(server.url).stream("hop0", 5, len(DATA))) == DATA[5:]
    assert [one.headers["Range"] for one in server.requests] == ["bytes=5-"] * 4


@pytest.mark.fault("N4")
@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("/metadata/timestamp.json", "more than 3 redirects"),
        ("ftp://127.0.0.1/x", "redirects to ftp://127.0.0.1/x, which is not an http(s) URL"),
        ("file:///etc/passwd", "which is not an http(s) URL"),
    ],
)
def test_a_broken_redirect_is_a_fetch_error(server: FaultyServer, location: str, words: str) -> None:
    server.fault(status=301, headers={"Location": location})
    found = refusal_without_url(server)

    assert words in found.message
    assert not found.again
    assert len(server.requests) <= 4


def refusal_without_url(server: FaultyServer, **options: float) -> RequestFailed:
    with pytest.raises(RequestFailed) as caught:
        web(server.url, **options).get("metadata/timestamp.json", 1000)
    return caught.value


@pytest.mark.fault("N4")
def test_a_redirect_to_another_host_gets_no_password(server: FaultyServer) -> None:
    with FaultyServer({"there": b"yes"}) as other:
        server.fault(status=307, headers={"Location": other.url + "there"})
        source = web(server.url.replace("://", "://me:s3cret@"))

        assert source.get("empty", 100) == b"yes"
        assert server.requests[0].headers["authorization"] == "Basic bWU6czNjcmV0"
        assert "authorization" not in {name.lower() for name in other.requests[0].headers}
        assert "s3cret" not in str(source)


@pytest.mark.fault("N5")
def test_the_page_of_a_captive_portal_is_refused(server: FaultyServer) -> None:
    page = b"<html>Accept our terms</html>"
    server.fault(status=200, body=page, headers={"Content-Type": "text/html; charset=utf-8"})

    assert "a web page, perhaps of a captive portal" in refusal(server).message
    with pytest.raises(RequestFailed, match="captive portal"):
        stream(server)


@pytest.mark.fault("N5")
def test_a_file_of_another_length_is_refused_before_it_is_read(server: FaultyServer) -> None:
    with pytest.raises(RequestFailed, match=r"blob has 300000 bytes, expected 300001"):
        stream(server, 0, len(DATA) + 1)
    assert "blob has 300000 bytes, expected at most 1000" in refusal(server, "blob").message


@pytest.mark.fault("N6")
def test_a_proxy_is_used_with_its_password(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    source = web("http://ota.invalid/", proxy=f"http://user:p%40ss@127.0.0.1:{server.port}")

    assert source.get("metadata/timestamp.json", 1000) == b'{"signed":1}'
    assert server.requests[0].path == "http://ota.invalid/metadata/timestamp.json"
    assert server.requests[0].headers["proxy-authorization"] == "Basic dXNlcjpwQHNz"


@pytest.mark.fault("N6")
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_wants_a_password(server: FaultyServer, scheme: str) -> None:
    server.fault(status=407)
    with pytest.raises(RequestFailed, match="the proxy requires a user and a password") as caught:
        web(f"{scheme}://ota.invalid/", proxy=f"http://127.0.0.1:{server.port}").get("x", 10)
    assert not caught.value.again


@pytest.mark.fault("N6")
def test_a_proxy_that_is_down(closed_port: int) -> None:
    with pytest.raises(RequestFailed, match=r"the proxy failed .*check PROXY"):
        web("http://ota.invalid/", proxy=f"http://127.0.0.1:{closed_port}").get("x", 10)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that refuses connections, and that no other process of the tests gets meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_proxies_of_the_environment_are_not_used(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    assert web(server.url).get("empty", 0) == b""


@pytest.mark.fault("N8")
def test_an_unknown_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", gone)
    with pytest.raises(RequestFailed, match=r"https://ota.invalid/x: the host name is not known.*DNS"):
        web("https://ota.invalid/").get("x", 10)


@pytest.mark.fault("N8")
def test_a_name_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(6))
    started = time.monotonic()
    with pytest.raises(RequestFailed, match=r"no reply within 0.9 s"):
        web("https://ota.invalid/", timeout=SHORT).get("x", 10)
    assert time.monotonic() - started < 4


def test_a_port_without_a_listener(closed_port: int) -> None:
    with pytest.raises(RequestFailed, match=r"the connection failed: Connection refused; no server.*port") as caught:
        web(f"http://127.0.0.1:{closed_port}/").get("x", 10)
    assert caught.value.again


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ProtocolError("Connection aborted.", RemoteDisconnected("Remote end closed")), "Remote end closed"),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "Connection reset by peer"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "Network is unreachable; check this device's network"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "No route to host; check this device's network"),
    ],
)
def test_only_an_unreachable_network_is_a_reason_to_check_it(error: Exception, said: str) -> None:
    words, again = describe_error(error, 1)
    assert words == f"the connection failed: {said}"
    assert again


@pytest.mark.fault("T2")
def test_endless_data_is_cut_at_what_was_expected(server: FaultyServer) -> None:
    server.fault(endless=True)

    assert "sends more than 1000 bytes" in refusal(server).message
    with pytest.raises(RequestFailed, match="sends more than 300000 bytes"):
        stream(server)
    assert server.sent < 64 * 1024 * 1024  # what the buffers of two sockets hold


@pytest.mark.fault("T2")
@pytest.mark.parametrize("fault", [{"drip": 0.05}, {"drip_head": 0.05}, {"drip": 0.05, "chunked": True}, {"drip": 9.0}])
def test_a_slow_drip_ends(server: FaultyServer, fault: dict[str, object]) -> None:
    server.fault(**fault)
    started = time.monotonic()
    found = refusal_without_url(server, timeout=SHORT)

    assert any(words in found.message for words in ("too slow", "no reply within", "the server was silent"))
    assert found.again
    assert time.monotonic() - started < 5


OK = b"HTTP/1.1 200 OK\r\n"
MOVED = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: "


@pytest.mark.fault("T2")
@pytest.mark.parametrize(
    "raw",
    [
        b"garbage\r\n\r\n",
        b"\0" * 100_000,
        b"HTTP/1.1 999999999999 OK\r\n\r\n",
        b"HTTP/1.1 200\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nx",
        OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n123456",
        OK + b"Content-Length: 99\r\n\r\nx",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nabc",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,
        MOVED + b"http://[::1\r\n\r\n",
        MOVED + b"http://h:999999/\r\n\r\n",
        MOVED + b"ftp://\x1b[31m\r\n\r\n",
        MOVED + b"http://a b/\r\n\r\n",
        MOVED + b"//\r\n\r\n",
    ],
    ids=range(17),
)
def test_a_hostile_reply_is_one_clear_failure(server: FaultyServer, raw: bytes) -> None:
    server.fault(raw=raw)

    message = refusal_without_url(server).message
    assert len(message) < 600
    assert message.isprintable()


def test_a_body_in_chunks_comes(server: FaultyServer) -> None:
    server.fault(chunked=True)

    assert stream(server) == DATA
    assert web(server.url).get("blob", len(DATA)) == DATA


def test_a_content_encoding_is_refused(server: FaultyServer) -> None:
    server.fault(headers={"Content-Encoding": "gzip"})

    assert "with Content-Encoding 'gzip', expected none" in refusal(server).message


def test_connections_are_kept(server: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    real = socket.socket.connect

    def connect(self: socket.socket, where: tuple[str, int]) -> None:
        opened.append(where)
        real(self, where)

    monkeypatch.setattr(socket.socket, "connect", connect)
    source = web(server.url)
    for _ in range(3):
        assert b"".join(source.stream("blob", 0, len(DATA))) == DATA
        assert source.get("empty", 0) == b""
        with contextlib.suppress(NotInRepository):
            source.get("not", 10)

    assert len(opened) <= 4  # one, and one after each reply that was not read


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.mark.fault("N7")
class TestTls:
    """Certificates that do not fit."""

    def _server(self, authority: Authority, pair: Pair | None = None, client_ca: Path | None = None) -> FaultyServer:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        own = pair or authority.issue()
        context.load_cert_chain(own.certificate, own.key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return FaultyServer({"metadata/timestamp.json": b"ok"}, context)

    def _refusal(self, server: FaultyServer, **options: object) -> RequestFailed:
        with server, pytest.raises(RequestFailed) as caught:
            web(server.url, **options).get("metadata/timestamp.json", 10)
        assert not caught.value.again
        return caught.value

    def test_a_private_ca(self, authority: Authority) -> None:
        with self._server(authority) as server:
            source = web(server.url, ca_cert=str(authority.root))
            assert source.get("metadata/timestamp.json", 10) == b"ok"

    @pytest.mark.fault("N6")
    def test_a_tunnel_through_a_proxy(self, authority: Authority) -> None:
        with self._server(authority) as server, FaultyServer({}) as proxy:
            source = web(server.url, ca_cert=str(authority.root), proxy=f"http://me:pw@127.0.0.1:{proxy.port}")
            assert source.get("metadata/timestamp.json", 10) == b"ok"
            assert proxy.requests[0].path == f"127.0.0.1:{server.port}"
            assert proxy.requests[0].headers["proxy-authorization"] == "Basic bWU6cHc="
            assert "proxy-authorization" not in {name.lower() for name in server.requests[0].headers}

    def test_an_unknown_ca(self, authority: Authority) -> None:
        assert "unknown CA: name the CA's PEM file in CA_CERT" in self._refusal(self._server(authority)).message

    def test_an_expired_certificate(self, authority: Authority) -> None:
        server = self._server(authority, authority.issue(days=-1))

        assert "certificate has expired" in self._refusal(server, ca_cert=str(authority.root)).message

    def test_a_clock_in_the_past(self, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
        pair = authority.issue(days=3)
        server = self._server(authority, pair)
        error = ssl.SSLCertVerificationError("certificate verify failed: certificate is not yet valid")

        def refuse(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(ssl.SSLSocket, "do_handshake", refuse)
        assert "check this device's clock" in self._refusal(server, ca_cert=str(authority.root)).message

    def test_a_wrong_name(self, authority: Authority) -> None:
        server = self._server(authority, authority.issue(host="elsewhere"))

        assert "is for another name" in self._refusal(server, ca_cert=str(authority.root)).message

    def test_a_server_without_tls(self, authority: Authority) -> None:
        server = FaultyServer({})
        server.url = server.url.replace("http:", "https:")

        assert "does not speak TLS there" in self._refusal(server, ca_cert=str(authority.root)).message

    def test_a_client_certificate(self, authority: Authority) -> None:
        pair = authority.issue("device")
        with self._server(authority, client_ca=authority.root) as server:
            source = web(
                server.url,
                timeout=5.0,
                ca_cert=str(authority.root),
                client_cert=str(pair.certificate),
                client_key=str(pair.key),
            )
            assert source.get("metadata/timestamp.json", 10) == b"ok"

    @pytest.mark.parametrize("kind", ["none", "expired", "other CA"])
    def test_a_client_certificate_that_the_server_refuses(
        self, authority: Authority, tmp_path: Path, kind: str
    ) -> None:
        pair = Authority(tmp_path).issue("device") if kind == "other CA" else authority.issue("device", days=-1)
        files = {"client_cert": str(pair.certificate), "client_key": str(pair.key)} if kind != "none" else {}
        found = self._refusal(self._server(authority, client_ca=authority.root), ca_cert=str(authority.root), **files)
        assert "the server refused this device's certificate" in found.message

    def test_a_client_certificate_is_sent_to_no_other_host(self, authority: Authority) -> None:
        pair = authority.issue("device")
        with self._server(authority, client_ca=authority.root) as other, self._server(authority) as server:
            server.fault(status=302, headers={"Location": other.url + "metadata/timestamp.json"})
            source = web(
                server.url,
                timeout=5.0,
                ca_cert=str(authority.root),
                client_cert=str(pair.certificate),
                client_key=str(pair.key),
            )
            with pytest.raises(RequestFailed, match="refused this device's certificate"):
                source.get("metadata/timestamp.json", 10)

    @pytest.mark.fault("N4")
    def test_a_redirect_out_of_tls_is_refused(self, authority: Authority) -> None:
        with FaultyServer({"x": b"plain"}) as plain:
            server = self._server(authority)
            server.fault(status=302, headers={"Location": plain.url + "x"})

            assert "from https to http" in self._refusal(server, ca_cert=str(authority.root)).message
            assert plain.requests == []


@pytest.mark.parametrize(
    "url", ["", "ota.example", "ftp://x/", "http://", "http://h:99999/", "http://h/?a=b", "http://[::1"]
)
def test_an_unusable_url(url: str) -> None:
    with pytest.raises(UsageError, match=r"URL: found .*expected an address such as https://ota.example/fleet"):
        web(url)


@pytest.mark.fault("N6")
@pytest.mark.parametrize(
    "password",
    ["p#ss-word", "12#ss-word", "p?ss-word", "p/ss-word", "[ss-word", "77/ss-word", "77?ss-word", "/ss-word"],
)
@pytest.mark.parametrize(("setting", "use"), USES)
def test_the_error_of_an_address_has_no_part_of_its_password(
    setting: str, use: Callable[[str], object], password: str
) -> None:
    """The text goes to the journal, and these characters end the host for `urlsplit`."""
    url = f"http://user:{password}@ota.example:8080/fleet"
    with pytest.raises(UsageError, match=f"^{setting}: found 'ota.example:8080/fleet'") as caught:
        use(url)
    assert "ss-word" not in caught.value.message
    assert "in a password, write / ? # @ as %2F %3F %23 %40" in caught.value.message


@pytest.mark.parametrize(("setting", "use"), USES)
def test_a_user_with_a_slash_does_not_move_the_password_out_of_sight(
    setting: str, use: Callable[[str], object]
) -> None:
    with pytest.raises(UsageError, match=f"^{setting}: found 'ota.example/fleet'") as caught:
        use("https://us/er:ss-word@ota.example/fleet")
    assert "ss-word" not in caught.value.message


@pytest.mark.parametrize("url", ["http://[bad", "ftp://x/", "https://r.example/x#part"])
def test_an_unusable_address_for_reports(url: str) -> None:
    with pytest.raises(UsageError, match=r"REPORT_URL: found .*expected an address such as https://reports.example"):
        put(url, b"{}", HttpOptions(), SHORT)


def test_unusable_settings(tmp_path: Path) -> None:
    text = tmp_path / "x.pem"
    text.write_text("no certificate")
    with pytest.raises(UsageError, match=r"CA_CERT: .*x.pem is not a PEM file"):
        web("https://h/", ca_cert=str(text))
    with pytest.raises(UsageError, match=r"CA_CERT: .*none.pem"):
        web("https://h/", ca_cert=str(tmp_path / "none.pem"))
    with pytest.raises(UsageError, match=r"CLIENT_CERT, CLIENT_KEY: .*x.pem"):
        web("https://h/", client_cert=str(text))
    with pytest.raises(UsageError, match="PROXY: found 'socks5://h:1'"):
        web("https://h/", proxy="socks5://h:1")
    with pytest.raises(UsageError, match="TIMEOUT: found 0, expected seconds above 0, at most 3600"):
        web("https://h/", timeout=0.0)
    with pytest.raises(UsageError, match=r"TIMEOUT: found 1e\+14"):
        web("https://h/", timeout=1e14)
    with pytest.raises(UsageError, match="PROXY: found https://h"):
        web("https://h/", proxy="https://u:p@h:1")


@pytest.mark.fault("N6")
def test_a_user_or_password_of_any_letters_is_sent_as_utf_8() -> None:
    """This address gave a traceback; a rollout document may bring one as its report_url."""
    found = login_header(urlsplit("http://\u2603:%E2%82%AC@127.0.0.1/"), "authorization")
    assert found == {"authorization": "Basic " + base64.b64encode("\u2603:\u20ac".encode()).decode()}
    assert login_header(urlsplit("http://a:b@127.0.0.1/"), "proxy-authorization") == {
        "proxy-authorization": "Basic YTpi"
    }
