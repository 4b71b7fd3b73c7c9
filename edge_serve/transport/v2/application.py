"""The v2 protocol over HTTP: checks access, and passes each request to the file that has its operation (server
src/http_server.cc, `HTTPAPIServer`).

`infer` and `generate_routes` have inference, `operations` and `edge` the rest. Clients repeat their request heads, so
`head` reads each distinct head once. `replies.refuse` turns errors into replies.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from edge_serve.aio.memo import Memo
from edge_serve.clock import Clock, MonotonicClock
from edge_serve.errors import EdgeServeError, Internal
from edge_serve.messages.infer import Room
from edge_serve.messages.peer import Peer
from edge_serve.observe.tracing.tracing import Tracing
from edge_serve.protocol.http1.head import RequestHead
from edge_serve.transport.door.access import Access, AccessGate
from edge_serve.transport.door.exchange import Exchange
from edge_serve.transport.http.replies import refuse
from edge_serve.transport.v2.edge import Edge, StatusService
from edge_serve.transport.v2.generate import EventStream, Single
from edge_serve.transport.v2.generate_routes import Generation
from edge_serve.transport.v2.head import JSON, HeadReader, V2Request, V2Settings
from edge_serve.transport.v2.infer import Inference, InferService
from edge_serve.transport.v2.operations import CallService, Operations
from edge_serve.transport.v2.routes import Operation, Route, RouteGroup
from edge_serve.workers.codec.codec import Codec

log = logging.getLogger(__name__)

#: applications kept for peers: one for local clients, one for others, and one for each client certificate
_PEERS = 64
#: heads that an application remembers, unless they are longer
_HEADS, _FEW_HEADS, _MEMO_HEAD_BYTES = 512, 16, 2048


class V2Service(InferService, CallService, StatusService, Protocol):
    """The service, as this application uses it."""


class V2Application:
    """Answers v2 requests.

    Args:
        config_to_json: converts a completed configuration to Triton's JSON (config/model/json_form.py).
        codec: does the work that would block the loop; None = the loop does all work.
        access: the access policy; None = all clients may do everything. See `for_peer`.
    """

    def __init__(
        self,
        service: V2Service,
        settings: V2Settings,
        *,
        config_to_json: Callable[[Any], Any],
        clock: Clock | None = None,
        codec: Codec | None = None,
        access: Access | None = None,
    ) -> None:
        self._service = service
        self._settings = settings
        self._access = access
        self._for_peers: Memo[Peer, V2Application] = Memo(_PEERS)
        self._heads = HeadReader(settings)
        #: heads with equal bytes are one object (protocol/http1), so a repeated head costs a look-up
        self._requests: Memo[RequestHead, V2Request] = Memo(_HEADS)
        self._inference = Inference(service, settings.max_input_size, clock or MonotonicClock(), codec)
        self._generation = Generation(service, settings.max_input_size, codec)
        #: access checks; None = none
        self._gate: AccessGate | None = None
        self._edge = Edge(service, settings.ui)
        operations = Operations(service, config_to_json, settings.health_json)
        self._handlers = {**operations.handlers, **self._edge.handlers}

    def for_peer(self, peer: Peer) -> V2Application:
        """Return the application for one client, or for all equal clients, with its access checks and memo of heads."""
        known = self._for_peers.get(peer)
        if known is None:
            known = self._for_peers.add(peer, copy.copy(self))
            known._gate = None if self._access is None else self._access.gate(peer)
            settings = replace(self._settings, restricted={}) if peer.administrator else self._settings
            known._heads = HeadReader(settings, known._gate)
            # many clients may have certificates
            known._requests = Memo(_HEADS if self._access is None or peer.certificate is None else _FEW_HEADS)
            if self._access is not None:
                self._access.subscribe(known)
        return known

    def clear(self) -> None:
        """Read all heads again, because the access policy has changed."""
        self._requests.clear()

    def trace(self, tracing: Tracing | None) -> None:
        """Trace the requests of all clients; None = trace none."""
        self._inference.tracing = self._generation.tracing = tracing

    # ---- implementation of `Application` -----------------------------------------------------------------------------

    def build_extra(self, head: RequestHead) -> Sequence[tuple[str, str]]:
        """Return no fields: see `Application`."""
        return ()

    def check(self, head: RequestHead, length: int) -> None:
        """Refuse a request that `handle` would refuse, or whose body is too large, before the body is read."""
        request = self._read(head)
        if request.refusal is not None:
            self._count_refused(request, request.refusal)
            raise request.refusal
        try:
            request.route.operation.check_body(length)
            self._inference.check(request, length)
        except EdgeServeError as error:
            self._count_client_error(request.route, error)
            raise

    def place(self, head: RequestHead, length: int) -> Room | None:
        """Return tensor memory for the body of an inference request."""
        return self._inference.place(self._read(head), length)

    def _read(self, head: RequestHead) -> V2Request:
        request = self._requests.get(head)
        if request is None:
            request = self._heads.read(head)
            if sum(len(name) + len(value) for name, value in head.headers) <= _MEMO_HEAD_BYTES:
                self._requests.add(head, request)
        return request

    def _count_refused(self, request: V2Request, refusal: EdgeServeError) -> None:
        if not request.denied:
            self._count_client_error(request.route, refusal)
        elif self._gate is not None:
            self._gate.count_denied()

    def _count_client_error(self, route: Route, error: EdgeServeError) -> None:
        if route.operation.group is RouteGroup.INFERENCE:
            self._service.count_client_error(route.model, route.version, error)

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""
        request = self._read(exchange.head)
        try:
            if request.refusal is not None:
                self._count_refused(request, request.refusal)
                refuse(exchange, request.refusal, request.refusal_type)
            elif request.route.operation is Operation.INFER:
                self._inference.handle(exchange, request)
            elif request.route.operation is Operation.GENERATE:
                self._generation.handle(exchange, request, Single)
            elif request.route.operation is Operation.GENERATE_STREAM:
                self._generation.handle(exchange, request, EventStream)
            elif request.route.operation is Operation.STATUS:
                self._edge.status(exchange, self._gate)
            else:
                # of a chunked body, `check` did not know the size
                request.route.operation.check_body(len(exchange.body))
                self._handlers[request.route.operation](exchange, request.route)
        except EdgeServeError as error:
            _release(exchange)
            self._count_client_error(request.route, error)
            refuse(exchange, error, request.error_type)
        except Exception:
            log.exception("%s %s failed", exchange.head.method, exchange.head.path)
            _release(exchange)
            refuse(exchange, Internal("the server failed to handle this request, its log says why"), JSON)


def _release(exchange: Exchange) -> None:
    if exchange.lease is not None:
        exchange.lease.release()
