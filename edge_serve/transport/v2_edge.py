"""What this server has beside the v2 protocol: its status as a document, the page that shows it, and the order to leave
safe mode.

docs/status.md and docs/supervision.md tell users about them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import orjson

from edge_serve.protocol.routes import PathNotFound, Route
from edge_serve.transport.exchange import Exchange
from edge_serve.transport.strangers import for_strangers

Headers = tuple[tuple[str, str], ...]

_NO_STORE: Headers = (("Cache-Control", "no-store"),)
_INLINE = re.compile(rb"<(script|style)>(.*?)</\1>", re.DOTALL)


class StatusService(Protocol):
    """What these routes need of service.Service."""

    def status(self, done: Callable[[dict[str, Any]], None]) -> None: ...
    def leave_safe_mode(self) -> list[str]: ...


class StatusPage:
    """The file `ui.html`, read when it is first asked for: one file, which loads nothing but the status document."""

    @cached_property
    def body(self) -> bytes:
        """The page."""
        return Path(__file__).with_name("ui.html").read_bytes()

    @cached_property
    def compressed(self) -> bytes:
        """The page for browsers that accept gzip: all of them."""
        packer = zlib.compressobj(wbits=31)  # 31: with gzip's head and tail
        return packer.compress(self.body) + packer.flush()

    @cached_property
    def etag(self) -> str:
        """Changes with every change of the page; weak, because it stands for both encodings (RFC 9110 8.8.1)."""
        return f'W/"{hashlib.sha256(self.body).hexdigest()[:20]}"'

    @cached_property
    def headers(self) -> Headers:
        """Only the page's own script and style run, and only this server is spoken to."""
        allowed = {kind: f"'sha256-{_digest(text)}'" for kind, text in _INLINE.findall(self.body)}
        policy = (
            f"default-src 'none'; script-src {allowed[b'script']}; style-src {allowed[b'style']}; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return (
            ("ETag", self.etag),
            ("Cache-Control", "no-cache"),
            ("Vary", "Accept-Encoding"),
            ("Content-Security-Policy", policy),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
        )


def _json(document: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(document)
    except TypeError:  # lone surrogates: the name of a directory that is no UTF-8
        return json.dumps(document).encode()


def _digest(text: bytes) -> str:
    return base64.b64encode(hashlib.sha256(text).digest()).decode()


class Edge:
    """Answers these routes.

    Args:
        ui: whether there is a page (`--allow-ui`).
    """

    def __init__(self, service: StatusService, ui: bool) -> None:
        self._service = service
        self._page = StatusPage() if ui else None

    def status(self, exchange: Exchange, *, log: bool) -> None:
        """GET /edge-serve/status, whole or as other hosts see it."""

        def reply(document: dict[str, Any]) -> None:
            shown = document if log else for_strangers(document)
            exchange.reply(200, (_json(shown),), headers=_NO_STORE)

        self._service.status(reply)

    def leave_safe_mode(self, exchange: Exchange, route: Route) -> None:
        """POST /edge-serve/safe-mode/leave"""
        exchange.reply(200, (_json({"left_out": self._service.leave_safe_mode()}),))

    def page(self, exchange: Exchange, route: Route) -> None:
        """GET /ui"""
        page = self._there()
        if page.etag in (exchange.head.get("if-none-match") or ""):
            exchange.reply(304, content_type=None, headers=page.headers)
        elif "gzip" in (exchange.head.get("accept-encoding") or ""):
            headers = (*page.headers, ("Content-Encoding", "gzip"))
            exchange.reply(200, (page.compressed,), content_type="text/html; charset=utf-8", headers=headers)
        else:
            exchange.reply(200, (page.body,), content_type="text/html; charset=utf-8", headers=page.headers)

    def root(self, exchange: Exchange, route: Route) -> None:
        """GET /: a browser is led to the page, any other client is told what Triton tells it."""
        self._there()
        if "text/html" not in (exchange.head.get("accept") or "").lower():
            raise PathNotFound
        # relative: behind a proxy this door may have another path
        exchange.reply(302, content_type=None, headers=(("Location", "ui"), ("Vary", "Accept"), *_NO_STORE))

    def _there(self) -> StatusPage:
        """The page.

        Raises:
            PathNotFound: it is switched off.
        """
        if self._page is None:
            raise PathNotFound
        return self._page
