"""Routes beside the v2 protocol: the status document, the status page, leaving safe mode, and a reload.

They are documented in docs/status.md, docs/supervision.md, and docs/model_control.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import orjson

from edge_serve.access.roles import Role
from edge_serve.aio.tasks import in_pieces, start_task
from edge_serve.errors import EdgeServeError, InvalidArgument
from edge_serve.models.control.poller import ModelReload
from edge_serve.transport.door.access import AccessGate
from edge_serve.transport.door.exchange import Exchange
from edge_serve.transport.http.page import Headers, PageFile, page_files
from edge_serve.transport.http.replies import encode_json, refuse
from edge_serve.transport.v2.head import JSON
from edge_serve.transport.v2.operations import MANY_MODELS, Handler
from edge_serve.transport.v2.redaction import redact
from edge_serve.transport.v2.routes import Operation, PathNotFound, Route

_NO_STORE: Headers = (("Cache-Control", "no-store"),)


def read_reload(body: bytes) -> tuple[list[str], bool]:
    """Return the models and `unload_first` of a reload request; an empty body = all models that have changed.

    Raises:
        InvalidArgument: the body is not a reload request.
    """
    if not body:
        return [], False
    expected = 'expected {"models": ["name", ...], "unload_first": false}'
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidArgument(f"the reload request is not JSON ({error}): {expected}") from None
    names = found.get("models", []) if isinstance(found, dict) and found.keys() <= {"models", "unload_first"} else None
    unload_first = found.get("unload_first", False) if isinstance(found, dict) else None
    if not isinstance(names, list) or not all(map(_is_name, names)) or not isinstance(unload_first, bool):
        raise InvalidArgument(f"the reload request is {body[:80].decode(errors='replace')!r}: {expected}")
    return list(dict.fromkeys(names)), unload_first


def _is_name(found: object) -> bool:
    return isinstance(found, str) and 0 < len(found) <= 1024


class StatusService(Protocol):
    """The service, as these routes use it."""

    def status(self, done: Callable[[dict[str, Any] | EdgeServeError], None]) -> None: ...
    def leave_safe_mode(self) -> list[str]: ...
    def reload(
        self, names: Sequence[str], unload_first: bool, done: Callable[[list[ModelReload] | EdgeServeError], None]
    ) -> None: ...


async def _reply_in_pieces(exchange: Exchange, document: dict[str, Any]) -> None:
    """Reply with a document of many models; other callbacks run between its pieces."""
    pieces = [b",".join(made) async for made in in_pieces(map(encode_json, document["models"])) if made]
    rows = [part for piece in pieces for part in (b",", piece)][1:]
    try:
        rest = orjson.dumps({**document, "models": orjson.Fragment(b"[\0]")})  # a byte that JSON never contains
    except TypeError:  # as in `encode_json`
        await asyncio.sleep(0)
        exchange.reply(200, (encode_json(document),), headers=_NO_STORE)
        return
    head, _, tail = rest.partition(b"\0")
    await asyncio.sleep(0)
    exchange.reply(200, (head, *rows, tail), headers=_NO_STORE)


class Edge:
    """Answers these routes.

    Args:
        ui: whether to serve the status page (`--allow-ui`).

    Attributes:
        handlers: the method that answers each operation but `status`.
    """

    def __init__(self, service: StatusService, ui: bool) -> None:
        self._service = service
        self._files = page_files() if ui else {}
        self.handlers: dict[Operation, Handler] = {
            Operation.LEAVE_SAFE_MODE: self._leave_safe_mode,
            Operation.RELOAD: self._reload,
            Operation.PAGE: self._page,
            Operation.ROOT: self._root,
        }

    def status(self, exchange: Exchange, gate: AccessGate | None) -> None:
        """Answer GET /edge-serve/status with the whole or the redacted document, and the role of the client."""
        role, refusal, whole = (Role.ADMIN, "", True) if gate is None else gate.rights_of_page(exchange.head.get)
        client = {"role": role.word, "admin_refusal": refusal}

        def done(document: dict[str, Any] | EdgeServeError) -> None:
            if isinstance(document, EdgeServeError):
                refuse(exchange, document, JSON)
                return
            shown = {**(document if whole else redact(document)), "client": client}
            if len(shown["models"]) <= MANY_MODELS:
                exchange.reply(200, (encode_json(shown),), headers=_NO_STORE)
            else:
                start_task(_reply_in_pieces(exchange, shown), "status document")

        self._service.status(done)

    def _leave_safe_mode(self, exchange: Exchange, route: Route) -> None:
        """Answer POST /edge-serve/safe-mode/leave."""
        exchange.reply(200, (encode_json({"left_out": self._service.leave_safe_mode()}),))

    def _reload(self, exchange: Exchange, route: Route) -> None:
        """Answer POST /edge-serve/reload."""
        names, unload_first = read_reload(bytes(exchange.body))

        def done(found: list[ModelReload] | EdgeServeError) -> None:
            if isinstance(found, EdgeServeError):
                refuse(exchange, found, JSON)
            else:
                exchange.reply(200, (encode_json({"models": [asdict(one) for one in found]}),), headers=_NO_STORE)

        self._service.reload(names, unload_first, done)

    def _page(self, exchange: Exchange, route: Route) -> None:
        """Answer GET /ui, and the files that it loads."""
        self._find_file(route.file).reply(exchange)

    def _root(self, exchange: Exchange, route: Route) -> None:
        """Answer GET /: redirect browsers to the status page, and answer other clients like Triton."""
        self._find_file("")
        if "text/html" not in (exchange.head.get("accept") or "").lower():
            raise PathNotFound
        # relative: behind a proxy the path may have a prefix
        exchange.reply(302, content_type=None, headers=(("Location", "ui"), ("Vary", "Accept"), *_NO_STORE))

    def _find_file(self, name: str) -> PageFile:
        """Return a file of the page.

        Raises:
            PathNotFound: there is none of this name, or the page is switched off.
        """
        try:
            return self._files[name]
        except KeyError:
            raise PathNotFound from None
