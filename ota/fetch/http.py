"""A repository on a web server, through urllib3. Sends one request for each call; `mirrors` and `limiter` decide on
retries.

Requests carry no cookies, and the certificate of the device only to the configured host. The proxies of the environment
are not used. TLS is always verified, although integrity never depends on it.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import errno
import functools
import os
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NameResolutionError,
    NewConnectionError,
    ProxyError,
    ReadTimeoutError,
)

from ota.errors import FetchError, NotInRepository, UsageError
from ota.fetch.failures import TLS_ENDED, RequestFailed, tls_failure
from ota.fetch.limits import SpeedWindow
from ota.fetch.time_limit import run_within
from ota.source import StartOver

MOST_REDIRECTS = 3
MOST_TIMEOUT = 3600
#: small, so that waits for the rate limit are short
BLOCK_BYTES = 64 * 1024
#: a server that sends less, averaged over `timeout`, fails the request
LEAST_BYTES_PER_SECOND = 256
_REDIRECTS = (301, 302, 303, 307, 308)
#: statuses after which another try may succeed
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_CHECK_NETWORK = "; check this device's network"
#: the system's error in words -> the next step; after other errors there is none on the device
_NEXT_STEPS = {
    os.strerror(code): step
    for code, step in {
        errno.ECONNREFUSED: "; no server listens there, check host and port",
        errno.ENETUNREACH: _CHECK_NETWORK,
        errno.EHOSTUNREACH: _CHECK_NETWORK,
        errno.ENETDOWN: _CHECK_NETWORK,
    }.items()
}


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Options for requests to web servers.

    Attributes:
        timeout: seconds of silence after which a request is given up.
        proxy: `http://[user:password@]host:port`, or "".
        ca_cert, client_cert, client_key: PEM files, or "".
    """

    timeout: float = 30.0
    proxy: str = ""
    ca_cert: str = ""
    client_cert: str = ""
    client_key: str = ""


class HttpSource:
    """The repository below a URL. Implements `source.RepositorySource`.

    Raises:
        UsageError: the URL, the proxy, or a PEM file is unusable; the message names the setting.
    """

    def __init__(self, url: str, options: HttpOptions) -> None:
        given = check_url(url, "URL", "https://ota.example/fleet")
        path = given.path if given.path.endswith("/") else given.path + "/"
        self._base = given._replace(netloc=given.netloc.rpartition("@")[2], path=path)
        self._timeout = options.timeout
        if not 0 < self._timeout <= MOST_TIMEOUT:
            raise UsageError(f"TIMEOUT: found {self._timeout:g}, expected seconds above 0, at most {MOST_TIMEOUT}")
        own = make_pool(options, make_context(options.ca_cert, options.client_cert, options.client_key))
        other = make_pool(options, make_context(options.ca_cert)) if options.client_cert else own
        self._pools = {True: own, False: other}
        self._headers = {"User-Agent": "edge-ota", "Accept-Encoding": "identity"}
        self._login = login_header(given, "authorization")
        self._etag: tuple[str, str] = ("", "")

    def __str__(self) -> str:
        return self._base.geturl()

    def get(self, path: str, most_bytes: int) -> bytes:
        """Return a small file. See `RepositorySource`."""
        with self._asked(path, {}) as response:
            _expect_ok(response, f"{self}{path}")
            return b"".join(self._body(response, path, most_bytes, exact=False))

    def stream(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        """Yield the bytes from `offset` of a file that has `length` bytes in all. See `RepositorySource`."""
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        if offset and self._etag[0] == path:
            headers["If-Range"] = self._etag[1]
        with self._asked(path, headers) as response:
            if offset:
                self._check_resumed(response, path, offset, length)
            else:
                _expect_ok(response, f"{self}{path}")
            etag = response.headers.get("ETag", "")
            self._etag = (path, etag) if etag.startswith('"') else ("", "")
            yield from self._body(response, path, length - offset, exact=True)

    def _check_resumed(self, response: urllib3.BaseHTTPResponse, path: str, offset: int, length: int) -> None:
        """Refuse a partial response of another file than the download started with: compare strong ETag or length."""
        if response.status == 200:
            _check_head(
                response, f"{self}{path}", length, exact=True
            )  # the reply of a captive portal must not discard the partial file
        if response.status in (200, 416):
            raise StartOver(f"{self}{path}: the server does not resume at byte {offset} (HTTP {response.status})")
        if response.status != 206:
            _expect_ok(response, f"{self}{path}")
        found = response.headers.get("Content-Range", "")
        if not re.fullmatch(rf"bytes {offset}-{length - 1}/{length}", found.strip(), re.IGNORECASE):
            raise StartOver(
                f"{self}{path}: Content-Range is {found[:80]!r}, expected bytes {offset}-{length - 1}/{length}"
            )
        etag = response.headers.get("ETag", "")
        if self._etag[0] == path and etag.startswith('"') and etag != self._etag[1]:
            raise StartOver(f"{self}{path}: the file has changed on the server during the download")

    @contextlib.contextmanager
    def _asked(self, path: str, headers: Mapping[str, str]) -> Iterator[urllib3.BaseHTTPResponse]:
        """Send a GET, follow redirects, and close the connection unless the whole body was read."""
        url = urljoin(self._base.geturl(), path)
        with self._reported(f"{self}{path}"):
            response = self._follow(url, headers)
        whole = False
        try:
            with self._reported(f"{self}{path}"):
                yield response
            whole = True
        finally:
            if whole:
                with contextlib.suppress(HTTPError, OSError):
                    response.drain_conn()
                response.release_conn()
            response.close()

    def _follow(self, url: str, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        for _ in range(MOST_REDIRECTS + 1):
            response = self._send(url, headers)
            if response.status not in _REDIRECTS:
                return response
            response.close()
            target = urljoin(url, response.headers.get("Location", ""))
            if urlsplit(target).scheme not in ("http", "https") or not urlsplit(target).hostname:
                raise RequestFailed(
                    f"{strip_login(url)} redirects to {strip_login(target)}, which is not an http(s) URL", again=False
                )
            if (urlsplit(url).scheme, urlsplit(target).scheme) == ("https", "http"):
                raise RequestFailed(
                    f"{strip_login(url)} redirects from https to {strip_login(target)}: refused", again=False
                )
            url = target
        raise RequestFailed(
            f"{self}: more than {MOST_REDIRECTS} redirects, the last to {strip_login(url)}", again=False
        )

    def _send(self, url: str, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        there = urlsplit(url)
        own = origin_of(there) == origin_of(self._base)
        fields = {**self._headers, **headers, **(self._login if own else {})}

        def act() -> urllib3.BaseHTTPResponse:
            return self._pools[own].request(
                "GET",
                url,
                headers=fields,
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
                enforce_content_length=False,  # `_body` counts
            )

        # urllib3's timeouts apply to single reads: name look-ups, and heads that arrive byte by byte, need another one
        limit = 3 * self._timeout
        with self._reported(strip_login(url)):
            try:
                return run_within(limit, act, lambda late: late.close())
            except TimeoutError:
                raise RequestFailed(f"{strip_login(url)}: no reply within {limit:g} s") from None

    def _body(self, response: urllib3.BaseHTTPResponse, path: str, most_bytes: int, *, exact: bool) -> Iterator[bytes]:
        what = f"{self}{path}"
        expected = _check_head(response, what, most_bytes, exact)
        received = 0
        speed = SpeedWindow(LEAST_BYTES_PER_SECOND, self._timeout)
        while True:
            started = time.monotonic()
            block = self._read(response)
            if not block:
                break
            received += len(block)
            if received > most_bytes:
                raise RequestFailed(f"{what}: the server sends more than {most_bytes} bytes", again=False)
            if speed.add(len(block), time.monotonic() - started):
                raise RequestFailed(f"{what}: {speed.received} bytes in {speed.seconds:.0f} s; too slow")
            yield block
        if received < expected:
            raise RequestFailed(f"{what}: the connection ended after {received} of {expected} bytes")

    def _read(self, response: urllib3.BaseHTTPResponse) -> bytes:
        if getattr(response, "chunked", False):  # the lines between the chunks may come byte by byte
            try:
                return run_within(2 * self._timeout, lambda: response.read1(BLOCK_BYTES))
            except TimeoutError:
                with contextlib.suppress(RuntimeError, ValueError):  # the read has ended just now
                    response.shutdown()  # closing it would wait for the read
                raise
        return response.read1(BLOCK_BYTES)

    @contextlib.contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        """Turn the errors of urllib3 and of sockets into RequestFailed."""
        try:
            yield
        except FetchError:
            raise
        except (HTTPError, OSError, ValueError) as error:
            words, again = describe_error(error, self._timeout)
            raise RequestFailed(f"{what}: {words}", again=again) from error


def describe_error(error: Exception, timeout: float) -> tuple[str, bool]:
    """Return the cause of an error in words, and whether a retry may help."""
    if words := tls_failure(error):
        return words, words == TLS_ENDED
    inner = error
    if isinstance(error, ProxyError):
        inner = error.original_error
        if "407" in str(inner):
            return "the proxy requires a user and a password: set PROXY=http://user:password@host:port", False
        return f"the proxy failed ({inner}): check PROXY", True
    if isinstance(inner, NameResolutionError):
        return "the host name is not known: check URL and this device's DNS", True
    if not isinstance(inner, NewConnectionError) and isinstance(
        inner, (ConnectTimeoutError, ReadTimeoutError, TimeoutError)
    ):
        return f"the server was silent for {timeout:g} s", True
    text = str(error)
    found = re.search(r"\[Errno \d+\] ([^')]+)|\w+\((?:\d+, )?'([^']+)'\)", text)
    reason = (found[1] or found[2]) if found else text[:200]
    return f"the connection failed: {reason}{_NEXT_STEPS.get(reason, '')}", True


def _expect_ok(response: urllib3.BaseHTTPResponse, what: str) -> None:
    """Raise unless the status is 200."""
    status = response.status
    if status == 200:
        return
    if status in (403, 404, 410):  # buckets that may not be listed return 403 for a missing file
        more = ", or this device may not read it" if status == 403 else ""
        raise NotInRepository(f"{what} does not exist{more} (HTTP {status})")
    if status == 407:
        raise RequestFailed(
            f"{what}: the proxy requires a user and a password: set PROXY=http://user:password@host:port", again=False
        )
    raise RequestFailed(
        f"{what}: HTTP {status}, expected 200",
        again=status in _PASSING,
        retry_after=_retry_after(response.headers.get("Retry-After", ""), time.time()),
    )


def _retry_after(text: str, now: float) -> float | None:
    """Return the seconds of a Retry-After header, which are a number or a date."""
    if text.strip().isdecimal():
        return float(text.strip()[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None


def _check_head(response: urllib3.BaseHTTPResponse, what: str, most_bytes: int, exact: bool) -> int:
    """Refuse a wrong response before its body is read. Return its length; 0 = unknown."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise RequestFailed(
            f"{what}: the server sends it with Content-Encoding {encoding!r}, expected none", again=False
        )
    length = response.headers.get("Content-Length", "")
    page = response.headers.get("Content-Type", "").startswith("text/html")
    if page and (exact or what.endswith(".json")):
        raise RequestFailed(f"{what}: the reply is a web page, perhaps of a captive portal or a login", again=False)
    if not length.isdecimal():
        return most_bytes if exact else 0
    if int(length) > most_bytes or (exact and int(length) != most_bytes):
        least = "" if exact else "at most "
        raise RequestFailed(f"{what} has {length} bytes, expected {least}{most_bytes}", again=False)
    return int(length)


def check_url(url: str, setting: str, example: str, *, query: bool = False) -> SplitResult:
    """Return the parts of an http(s) URL.

    Args:
        query: the URL may have a query.

    Raises:
        UsageError: it is none, or has a fragment or an `@` after its host. The message names the setting, and shows
            nothing before the last `@`: an unescaped `/`, `?`, or `#` in a login moves the rest of it into the path,
            query, or fragment.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or parts.fragment or (parts.query and not query) or "@" in parts.path + parts.query:
        hint = "; in a password, write / ? # @ as %2F %3F %23 %40" if "@" in url else ""
        found = url.rpartition("@")[2][:100]
        raise UsageError(f"{setting}: found {found!r}, expected an address such as {example}{hint}")
    return parts


def strip_login(url: str | SplitResult) -> str:
    """Return a valid URL without user and password."""
    parts = urlsplit(url) if isinstance(url, str) else url
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()[:300]


def origin_of(parts: SplitResult) -> tuple[str, str | None, int | None]:
    """Return scheme, host, and port."""
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def login_header(parts: SplitResult, header: str) -> dict[str, str]:
    """Return the header for the user and password of a URL; {} = it has none."""
    if parts.username is None:
        return {}
    text = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    # urllib3's make_headers knows Latin-1 only; RFC 7617 allows UTF-8
    return {header: f"Basic {base64.b64encode(text.encode(errors='replace')).decode()}"}


def make_pool(options: HttpOptions, context: ssl.SSLContext) -> urllib3.PoolManager:
    """Return a connection pool with the options, through the proxy if there is one."""
    timeout = urllib3.Timeout(connect=options.timeout, read=options.timeout)
    if not options.proxy:
        return urllib3.PoolManager(num_pools=4, maxsize=1, timeout=timeout, ssl_context=context)
    proxy = check_url(options.proxy, "PROXY", "http://proxy.example:3128")
    if proxy.scheme != "http":
        raise UsageError(f"PROXY: found {strip_login(proxy)}, expected an address such as http://proxy.example:3128")
    return urllib3.ProxyManager(
        proxy._replace(netloc=proxy.netloc.rpartition("@")[2], path="").geturl(),
        num_pools=4,
        maxsize=1,
        timeout=timeout,
        ssl_context=context,
        proxy_headers=login_header(proxy, "proxy-authorization"),
    )


@functools.lru_cache(maxsize=4)  # reading the system's certificates takes 50 ms
def make_context(ca_cert: str, client_cert: str = "", client_key: str = "") -> ssl.SSLContext:
    """Return a TLS context that verifies servers, with a client certificate if one is given."""
    try:
        context = ssl.create_default_context(cafile=ca_cert or None)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"CA_CERT: {ca_cert} is not a PEM file with certificates: {error}") from None
    if client_cert:
        files = f"{client_cert} and {client_key or client_cert}"
        try:
            # without this callback, OpenSSL would ask for the password of an encrypted key at the terminal
            context.load_cert_chain(client_cert, client_key or None, password=lambda: b"")
        except (OSError, ssl.SSLError, ValueError) as error:
            raise UsageError(
                f"CLIENT_CERT, CLIENT_KEY: {files} are no PEM certificate with its key, unencrypted: {error}"
            ) from None
    return context
