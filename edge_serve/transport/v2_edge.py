"""What this server has beside the v2 protocol: its status as a document, the page that shows it, and the order to leave
safe mode.

docs/status.md and docs/supervision.md tell users about them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Protocol

import orjson

from edge_serve.access.roles import Role
from edge_serve.aio.tasks import start_task
from edge_serve.aio.turns import in_pieces
from edge_serve.protocol.routes import PathNotFound, Route
from edge_serve.transport.access import Gate
from edge_serve.transport.exchange import Exchange
from edge_serve.transport.page import Headers, PageFile, page_files
from edge_serve.transport.strangers import for_strangers

#: documents with more models are written in pieces
MANY_MODELS = 32
_NO_STORE: Headers = (("Cache-Control", "no-store"),)


class StatusService(Protocol):
    """What these routes need of service.Service."""

    def status(self, done: Callable[[dict[str, Any]], None]) -> None: ...
    def leave_safe_mode(self) -> list[str]: ...


def _json(document: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(document)
    except TypeError:  # lone surrogates: the name of a directory that is no UTF-8
        return json.dumps(document).encode()


async def _reply_in_pieces(exchange: Exchange, document: dict[str, Any]) -> None:
    """Write a document with many models. Other callbacks have their turn meanwhile."""
    pieces = [b",".join(made) async for made in in_pieces(map(_json, document["models"])) if made]
    rows = [part for piece in pieces for part in (b",", piece)][1:]
    try:
        rest = orjson.dumps({**document, "models": orjson.Fragment(b"[\0]")})  # JSON has no such byte
    except TypeError:  # as in `_json`
        await asyncio.sleep(0)
        exchange.reply(200, (json.dumps(document).encode(),), headers=_NO_STORE)
        return
    head, _, tail = rest.partition(b"\0")
    await asyncio.sleep(0)
    exchange.reply(200, (head, *rows, tail), headers=_NO_STORE)


class Edge:
    """Answers these routes.

    Args:
        ui: whether there is a page (`--allow-ui`).
    """

    def __init__(self, service: StatusService, ui: bool) -> None:
        self._service = service
        self._files = page_files() if ui else {}

    def status(self, exchange: Exchange, gate: Gate | None) -> None:
        """GET /edge-serve/status, whole or as other hosts see it, and with the role of the client."""
        field = exchange.head.get
        role, refusal = (Role.ADMIN, "") if gate is None else gate.role_of_page(field)
        client = {"role": role.word, "admin_refusal": refusal}
        whole = gate is None or gate.may_read_log(field)

        def reply(document: dict[str, Any]) -> None:
            shown = {**(document if whole else for_strangers(document)), "client": client}
            if len(shown["models"]) <= MANY_MODELS:
                exchange.reply(200, (_json(shown),), headers=_NO_STORE)
            else:
                start_task(_reply_in_pieces(exchange, shown), "status document")

        self._service.status(reply)

    def leave_safe_mode(self, exchange: Exchange, route: Route) -> None:
        """POST /edge-serve/safe-mode/leave"""
        exchange.reply(200, (_json({"left_out": self._service.leave_safe_mode()}),))

    def page(self, exchange: Exchange, route: Route) -> None:
        """GET /ui and the files that it loads"""
        self._file(route.file).reply(exchange)

    def root(self, exchange: Exchange, route: Route) -> None:
        """GET /: a browser is led to the page, any other client is told what Triton tells it."""
        self._file("")
        if "text/html" not in (exchange.head.get("accept") or "").lower():
            raise PathNotFound
        # relative: behind a proxy this door may have another path
        exchange.reply(302, content_type=None, headers=(("Location", "ui"), ("Vary", "Accept"), *_NO_STORE))

    def _file(self, name: str) -> PageFile:
        """Return a file of the page.

        Raises:
            PathNotFound: there is none of this name, or the page is switched off.
        """
        try:
            return self._files[name]
        except KeyError:
            raise PathNotFound from None
