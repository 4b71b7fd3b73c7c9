"""The metrics endpoint: GET /metrics, and Triton's answers to other requests (server src/http_server.cc)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from edge_serve.access.roles import Role
from edge_serve.aio.tasks import start_task
from edge_serve.messages.infer import Room
from edge_serve.messages.peer import Peer
from edge_serve.observe.metrics.exposition import CONTENT_TYPE
from edge_serve.protocol.http1.head import RequestHead
from edge_serve.transport.door.access import Access, AccessGate
from edge_serve.transport.door.exchange import Exchange
from edge_serve.transport.http.door_state import HttpLimits
from edge_serve.transport.http.replies import error_body, refuse

log = logging.getLogger(__name__)

#: no request of this endpoint needs a body, and few programs scrape it; a new one replaces an idle one
LIMITS = HttpLimits(body=4096, connections=64)


class MetricsApplication:
    """Answers scrapes.

    Args:
        render: returns the page in pieces, for each scrape; see `observe.metrics.page`.
        access: the access policy; None = all clients may read the page. See `for_peer`.
    """

    def __init__(
        self,
        render: Callable[[], Awaitable[Sequence[bytes]]],
        access: Access | None = None,
        gate: AccessGate | None = None,
    ) -> None:
        self._render = render
        self._access = access
        self._gate = gate

    def for_peer(self, peer: Peer) -> MetricsApplication:
        """Return the application for one client, with its access checks."""
        if self._access is None:
            return self
        return MetricsApplication(self._render, self._access, self._access.gate(peer))

    def build_extra(self, head: RequestHead) -> Sequence[tuple[str, str]]:
        """Return no fields: see `Application`."""
        return ()

    def check(self, head: RequestHead, length: int) -> None:
        """Accept every body: `LIMITS` bounds its length, and it is not read."""

    def place(self, head: RequestHead, length: int) -> Room | None:
        """Return None: ordinary memory, within `LIMITS`."""
        return None

    def handle(self, exchange: Exchange) -> None:
        """Answer 405 to other methods, the page for its path, and an empty 200 for any other path, like Triton."""
        if self._gate is not None and (refusal := self._gate.check(Role.READ, exchange.head.get)) is not None:
            self._gate.count_denied()
            refuse(exchange, refusal, "application/json")
        elif exchange.head.method != "GET":
            exchange.reply(405, (error_body("Method Not Allowed"),), content_type="text/plain")
        elif exchange.head.path in ("/metrics", "/metrics/"):
            start_task(self._scrape(exchange), "scrape")
        else:
            exchange.reply(200, content_type=CONTENT_TYPE)

    async def _scrape(self, exchange: Exchange) -> None:
        try:
            page = await self._render()
        except Exception:
            log.exception("writing the metrics page failed")
            exchange.reply(500, (error_body("the server failed to write the metrics page, its log says why"),))
            return
        exchange.reply(200, page, content_type=CONTENT_TYPE)
