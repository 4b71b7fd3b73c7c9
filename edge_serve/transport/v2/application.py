"""The v2 protocol over HTTP: decodes requests, calls the service, encodes responses (server src/http_server.cc,
`HTTPAPIServer`).

`infer` and `generate_routes` have inference. Clients repeat their request heads, so `head` reads each distinct head
once. `replies.refuse` turns errors into replies.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import orjson

from edge_serve.aio.memo import Memo
from edge_serve.aio.offload import offload
from edge_serve.aio.tasks import start_task
from edge_serve.aio.turns import in_pieces
from edge_serve.clock import Clock, MonotonicClock
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, NotFound, Unavailable, Unsupported
from edge_serve.messages.infer import Parameter, Room
from edge_serve.messages.metadata import IndexEntry
from edge_serve.messages.peer import Peer
from edge_serve.messages.statistics import ModelStatistics
from edge_serve.observe.tracing.tracing import Tracing
from edge_serve.protocol.http1.head import RequestHead
from edge_serve.protocol.inference.cost import SMALL_BYTES
from edge_serve.protocol.v2 import bodies
from edge_serve.transport.door.access import Access, AccessGate
from edge_serve.transport.door.exchange import Exchange
from edge_serve.transport.http.replies import refuse
from edge_serve.transport.v2.call_service import CallService
from edge_serve.transport.v2.edge import Edge, StatusService
from edge_serve.transport.v2.generate import EventStream, Single
from edge_serve.transport.v2.generate_routes import Generation
from edge_serve.transport.v2.head import JSON, PLAIN, V2HeadReader, V2Settings
from edge_serve.transport.v2.infer import Inference, InferService
from edge_serve.transport.v2.routes import Operation, Route
from edge_serve.transport.v2.settings import SettingsRoutes
from edge_serve.transport.v2.shared_memory import SharedMemory
from edge_serve.workers.codec.codec import Codec

log = logging.getLogger(__name__)

#: applications kept for peers: one for local clients, one for others, and one for each client certificate
_PEERS = 64
#: statistics of more models are encoded in pieces
MANY_MODELS = 32
_FEW_HEADS = 16
#: operations whose client errors are counted for their model
_INFERENCE = frozenset((Operation.INFER, Operation.GENERATE, Operation.GENERATE_STREAM))


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
        self._config_to_json = config_to_json
        self._access = access
        self._for_peers: Memo[Peer, V2Application] = Memo(_PEERS)
        self._heads = V2HeadReader(settings)
        self._clock = clock or MonotonicClock()
        self._codec = codec
        self._inference = Inference(service, settings.max_input_size, self._clock, codec)
        self._generation = Generation(service, settings.max_input_size, codec)
        runtime = SettingsRoutes(service)
        memory = SharedMemory(service)
        #: access checks; None = none
        self._gate: AccessGate | None = None
        self._edge = edge = Edge(service, settings.ui)
        self._handlers: dict[Operation, Callable[[Exchange, Route], None]] = {
            Operation.SERVER_LIVE: self._live,
            Operation.SERVER_READY: self._ready,
            Operation.SERVER_METADATA: self._server_metadata,
            Operation.MODEL_READY: self._model_ready,
            Operation.MODEL_METADATA: self._model_metadata,
            Operation.MODEL_CONFIG: self._model_config,
            Operation.MODEL_STATISTICS: self._model_statistics,
            Operation.LOGGING: runtime.logging,
            Operation.TRACE_SETTING: runtime.trace,
            Operation.REPOSITORY_INDEX: self._repository_index,
            Operation.MODEL_LOAD: self._load,
            Operation.MODEL_UNLOAD: self._unload,
            Operation.SYSTEM_SHM_STATUS: memory.system_status,
            Operation.SYSTEM_SHM_REGISTER: memory.register_system,
            Operation.SYSTEM_SHM_UNREGISTER: memory.unregister_system,
            Operation.CUDA_SHM_STATUS: memory.cuda_status,
            Operation.CUDA_SHM_REGISTER: memory.register_cuda,
            Operation.CUDA_SHM_UNREGISTER: memory.unregister_cuda,
            Operation.LEAVE_SAFE_MODE: edge.leave_safe_mode,
            Operation.RELOAD: edge.reload,
            Operation.PAGE: edge.page,
            Operation.ROOT: edge.root,
        }

    def for_peer(self, peer: Peer) -> V2Application:
        """Return the application for one client, or for all equal clients, with its access checks and memo of heads."""
        known = self._for_peers.get(peer)
        if known is None:
            known = copy.copy(self)
            known._gate = None if self._access is None else self._access.gate(peer)
            known._heads = self._heads_of(peer, known._gate)
            self._for_peers.add(peer, known)
        return known

    def trace(self, tracing: Tracing | None) -> None:
        """Trace the requests of all clients; None = trace none."""
        self._inference.tracing = self._generation.tracing = tracing

    def _heads_of(self, peer: Peer, gate: AccessGate | None) -> V2HeadReader:
        settings = replace(self._settings, restricted={}) if peer.administrator else self._settings
        if self._access is None:
            return V2HeadReader(settings)
        # many clients may have certificates, each with a reader of its own
        heads = V2HeadReader(settings, gate, *(() if peer.certificate is None else (_FEW_HEADS,)))
        self._access.subscribe(heads)
        return heads

    # ---- implementation of `Application` -----------------------------------------------------------------------------

    def check(self, head: RequestHead, length: int) -> None:
        """Refuse a request that the client may not make, or whose body is too large, before the body is read."""
        request = self._heads.read(head)
        if request.denied and request.refusal is not None:
            self._count_denied()
            raise request.refusal
        try:
            self._inference.check(request, length)
        except EdgeServeError as error:
            self._count_client_error(request.route, error)
            raise

    def place(self, head: RequestHead, length: int) -> Room | None:
        """Return tensor memory for the body of an inference request."""
        return self._inference.place(self._heads.read(head), length)

    def _count_denied(self) -> None:
        if self._access is not None:
            self._access.denied += 1

    def _count_client_error(self, route: Route, error: EdgeServeError) -> None:
        if route.operation in _INFERENCE:
            self._service.count_client_error(route.model, route.version, error)

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""
        request = self._heads.read(exchange.head)
        try:
            if request.refusal is not None:
                if request.denied:
                    self._count_denied()
                else:
                    self._count_client_error(request.route, request.refusal)
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
                self._find_handler(request.route)(exchange, request.route)
        except EdgeServeError as error:
            _release(exchange)
            self._count_client_error(request.route, error)
            refuse(exchange, error, request.error_type)
        except Exception:
            log.exception("%s %s failed", exchange.head.method, exchange.head.path)
            _release(exchange)
            refuse(exchange, Internal("the server failed to handle this request, its log says why"), JSON)

    def _find_handler(self, route: Route) -> Callable[[Exchange, Route], None]:
        handler = self._handlers.get(route.operation)
        if handler is None:
            raise Unsupported(f"'{route.operation.title}' is not supported by this version of the server")
        return handler

    # ---- health and metadata ------------------------------------------------------------------------------------

    def _live(self, exchange: Exchange, route: Route) -> None:
        self._reply_health(exchange, "live", self._service.live())

    def _ready(self, exchange: Exchange, route: Route) -> None:
        self._reply_health(exchange, "ready", self._service.ready())

    def _reply_health(self, exchange: Exchange, name: str, good: bool) -> None:
        if self._service.exiting():
            raise Unavailable("Server exiting")
        status = 200 if good else 400
        if self._settings.health_json:
            exchange.reply(status, (orjson.dumps({name: good}),))
        else:
            exchange.reply(status, content_type=PLAIN)

    def _server_metadata(self, exchange: Exchange, route: Route) -> None:
        exchange.reply(200, (bodies.server_metadata(self._service.server_metadata()),))

    def _model_ready(self, exchange: Exchange, route: Route) -> None:
        try:
            ready = self._service.model_ready(route.model, route.version)
        except (NotFound, InvalidArgument, Unavailable):
            if self._service.exiting():
                raise
            ready = False  # Triton 2.51 does not distinguish these
        if not ready:
            raise InvalidArgument("Model version not ready")
        if self._settings.health_json:
            exchange.reply(200, (orjson.dumps({"name": route.model, "ready": True}),))
        else:
            exchange.reply(200, content_type=PLAIN)

    def _model_metadata(self, exchange: Exchange, route: Route) -> None:
        exchange.reply(200, (bodies.model_metadata(self._service.model_metadata(route.model, route.version)),))

    def _model_config(self, exchange: Exchange, route: Route) -> None:
        config = self._service.model_config(route.model, route.version)
        exchange.reply(200, (orjson.dumps(self._config_to_json(config)),))

    def _model_statistics(self, exchange: Exchange, route: Route) -> None:
        models = self._service.model_statistics(route.model, route.version)
        if len(models) <= MANY_MODELS:
            exchange.reply(200, (bodies.statistics(models),))
        else:
            start_task(self._reply_statistics_in_pieces(exchange, models), "statistics")

    async def _reply_statistics_in_pieces(
        self, exchange: Exchange, models: Sequence[tuple[str, str, ModelStatistics]]
    ) -> None:
        pieces = [b",".join(made) async for made in in_pieces(bodies.statistics_of_each(models))]
        exchange.reply(200, (bodies.STATISTICS_HEAD, b",".join(filter(None, pieces)), bodies.STATISTICS_TAIL))

    # ---- the repository -----------------------------------------------------------------------------------------

    def _repository_index(self, exchange: Exchange, route: Route) -> None:
        def done(found: list[IndexEntry] | EdgeServeError) -> None:
            if isinstance(found, EdgeServeError):
                refuse(exchange, found, JSON)
            else:
                exchange.reply(200, (bodies.repository_index(found),))

        self._service.repository_index(bodies.read_index_request(exchange.body), done)

    def _load(self, exchange: Exchange, route: Route) -> None:
        _check_repository(route)
        if len(exchange.body) <= SMALL_BYTES:
            self._start_load(exchange, route, bodies.read_load_request(exchange.body))
        else:
            start_task(self._load_large(exchange, route), "read a large load request")

    async def _load_large(self, exchange: Exchange, route: Route) -> None:
        """Load a model with a large request, whose files take long to decode."""
        try:
            self._start_load(exchange, route, await offload(bodies.read_load_request, exchange.body))
        except EdgeServeError as error:
            refuse(exchange, error, JSON)

    def _start_load(self, exchange: Exchange, route: Route, parameters: Mapping[str, Parameter | bytes]) -> None:
        self._service.load_model(route.model, parameters, lambda error: _finish(exchange, error))

    def _unload(self, exchange: Exchange, route: Route) -> None:
        _check_repository(route)
        dependents = bodies.read_unload_request(exchange.body)
        self._service.unload_model(route.model, dependents, lambda error: _finish(exchange, error))


def _check_repository(route: Route) -> None:
    if route.repository:
        raise Unsupported("'repository_name' specification is not supported")


def _finish(exchange: Exchange, error: EdgeServeError | None) -> None:
    if error is None:
        exchange.reply(200)
    else:
        refuse(exchange, error, JSON)


def _release(exchange: Exchange) -> None:
    if exchange.lease is not None:
        exchange.lease.release()
