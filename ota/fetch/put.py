"""Uploads JSON with one PUT through urllib3, with a limit on the whole request. Redirects are not followed."""

from __future__ import annotations

from urllib3.exceptions import HTTPError

from ota.fetch.failures import RequestFailed
from ota.fetch.http import HttpOptions, check_url, describe_error, login_header, make_context, make_pool, strip_login
from ota.fetch.time_limit import run_within


def put(url: str, data: bytes, options: HttpOptions, limit: float) -> None:
    """Upload JSON to a URL.

    Args:
        limit: seconds for all of it: the name look-up, the connection, the upload, and the head of the reply.

    Raises:
        UsageError: the URL, the proxy, or a PEM file is unusable.
        RequestFailed: there was no answer within the limit, or none that says that the data was taken.
    """
    parts = check_url(url, "REPORT_URL", "https://reports.example/fleet", query=True)
    headers = {"Content-Type": "application/json", "User-Agent": "edge-ota", **login_header(parts, "authorization")}
    target = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    told = strip_login(parts._replace(query=""))  # a query may be a secret

    def act() -> int:
        context = make_context(options.ca_cert, options.client_cert, options.client_key)
        pool = make_pool(options, context)
        try:
            response = pool.request(
                "PUT", target, body=data, headers=headers, redirect=False, retries=False, preload_content=False
            )
            response.close()
            return response.status
        finally:
            pool.clear()

    try:
        status = run_within(limit, act)
    except TimeoutError:
        raise RequestFailed(f"{told}: no reply within {limit:g} s") from None
    except (HTTPError, OSError, ValueError) as error:
        words, again = describe_error(error, options.timeout)
        raise RequestFailed(f"{told}: {words}", again=again) from error
    if not 200 <= status < 300:
        raise RequestFailed(f"{told}: HTTP {status}, expected 200, 201, or 204")
