"""Web pages of other origins as clients: the CORS protocol (https://fetch.spec.whatwg.org/#http-cors-protocol)."""

from __future__ import annotations

from collections.abc import Sequence

from edge_serve.messages.infer import Room
from edge_serve.protocol.http1.head import RequestHead
from edge_serve.transport.door.exchange import Application, Exchange

#: header fields of answers that pages may read beside the CORS-safelisted ones
_EXPOSED = "Inference-Header-Content-Length, Retry-After, WWW-Authenticate"
_METHODS = "GET, POST"

#: seconds for which a browser may cache the answer to a preflight request
_MAX_AGE = "600"


class Cors:
    """An application that adds CORS to another one. Requests without an `Origin` pass unchanged.

    Args:
        origins: allowed origins, as browsers write them; "*" = any.
    """

    def __init__(self, application: Application, origins: Sequence[str]) -> None:
        self._application = application
        self._origins = frozenset(origins)

    def build_extra(self, head: RequestHead) -> Sequence[tuple[str, str]]:
        """Return the fields that allow a page to read the answer, if its origin is allowed."""
        origin = head.get("origin")
        allowed = "*" if "*" in self._origins else origin
        if origin is None or allowed not in self._origins:
            return ()
        vary = () if allowed == "*" else (("Vary", "Origin"),)
        return (("Access-Control-Allow-Origin", allowed), ("Access-Control-Expose-Headers", _EXPOSED), *vary)

    def check(self, head: RequestHead, length: int) -> None:
        """Let the application check the request."""
        self._application.check(head, length)

    def place(self, head: RequestHead, length: int) -> Room | None:
        """Let the application place the body."""
        return self._application.place(head, length)

    def handle(self, exchange: Exchange) -> None:
        """Answer a preflight request; let the application answer all others."""
        head = exchange.head
        if head.get("origin") is None:
            self._application.handle(exchange)
            return
        exchange.extra = self.build_extra(head)
        if head.method == "OPTIONS" and head.get("access-control-request-method") is not None:
            exchange.reply(204, content_type=None, headers=_preflight(head) if exchange.extra else ())
        else:
            self._application.handle(exchange)


def _preflight(head: RequestHead) -> list[tuple[str, str]]:
    headers = [("Access-Control-Allow-Methods", _METHODS), ("Access-Control-Max-Age", _MAX_AGE)]
    asked = head.get("access-control-request-headers")
    if asked is not None:
        headers.append(("Access-Control-Allow-Headers", asked))
    if head.get("access-control-request-private-network") is not None:
        headers.append(("Access-Control-Allow-Private-Network", "true"))
    return headers
