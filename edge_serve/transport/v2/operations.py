"""The short operations of the v2 protocol: health, metadata, statistics, settings, the repository, shared memory
(server src/http_server.cc). `edge` has our own, whose paths do not begin with /v2. A handler that needs another method
of the service adds its signature to `CallService`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import orjson

from edge_serve.aio.offload import offload
from edge_serve.aio.tasks import in_pieces, start_task
from edge_serve.errors import EdgeServeError, InvalidArgument, NotFound, Unavailable, Unsupported
from edge_serve.messages.infer import Parameter
from edge_serve.messages.metadata import IndexEntry, ModelMetadata, ServerMetadata
from edge_serve.messages.settings import LogSettings, TraceChanges, TraceSettings
from edge_serve.messages.shared_memory import CudaRegionStatus, RegionStatus
from edge_serve.messages.statistics import ModelStatistics
from edge_serve.protocol.inference.cost import SMALL_BYTES
from edge_serve.protocol.v2 import bodies
from edge_serve.transport.door.exchange import Exchange
from edge_serve.transport.http.replies import refuse
from edge_serve.transport.v2.head import JSON, PLAIN
from edge_serve.transport.v2.routes import Operation, Route

#: statistics of more models are encoded in pieces
MANY_MODELS = 32

Done = Callable[["EdgeServeError | None"], None]
OnIndex = Callable[["list[IndexEntry] | EdgeServeError"], None]
Handler = Callable[[Exchange, Route], None]


class CallService(Protocol):
    """The service (service.Service), as all operations except inference use it, over HTTP and gRPC."""

    def live(self) -> bool: ...
    def ready(self) -> bool: ...
    def server_metadata(self) -> ServerMetadata: ...
    def model_ready(self, name: str, version: str) -> bool: ...
    def model_metadata(self, name: str, version: str) -> ModelMetadata: ...
    def model_config(self, name: str, version: str) -> Any: ...
    def model_statistics(self, name: str, version: str) -> Sequence[tuple[str, str, ModelStatistics]]: ...
    def repository_index(self, ready_only: bool, done: OnIndex) -> None: ...
    def load_model(self, name: str, parameters: Mapping[str, Parameter | bytes], done: Done) -> None: ...
    def unload_model(self, name: str, unload_dependents: bool, done: Done) -> None: ...
    def log_settings(self) -> LogSettings: ...
    def update_log_settings(self, settings: LogSettings) -> None: ...
    def trace_settings(self, model: str) -> TraceSettings: ...
    def update_trace_settings(self, model: str, changes: TraceChanges) -> None: ...
    def check_shm(self) -> None: ...
    def system_shm_status(self, name: str) -> Sequence[RegionStatus]: ...
    def register_system_shm(self, name: str, key: str, offset: int, byte_size: int) -> None: ...
    def unregister_system_shm(self, name: str) -> None: ...
    def cuda_shm_status(self, name: str) -> Sequence[CudaRegionStatus]: ...
    def register_cuda_shm(self, name: str, handle: bytes, device: int, byte_size: int, done: Done) -> None: ...
    def unregister_cuda_shm(self, name: str) -> None: ...


class Operations:
    """Answers these operations.

    Args:
        config_to_json: converts a completed configuration to Triton's JSON (config/model/json_form.py).
        health_json: --http-health-json.

    Attributes:
        handlers: the method that answers each operation.
    """

    def __init__(self, service: CallService, config_to_json: Callable[[Any], Any], health_json: bool) -> None:
        self._service = service
        self._config_to_json = config_to_json
        self._health_json = health_json
        self.handlers: dict[Operation, Handler] = {
            Operation.SERVER_LIVE: self._live,
            Operation.SERVER_READY: self._ready,
            Operation.SERVER_METADATA: self._server_metadata,
            Operation.MODEL_READY: self._model_ready,
            Operation.MODEL_METADATA: self._model_metadata,
            Operation.MODEL_CONFIG: self._model_config,
            Operation.MODEL_STATISTICS: self._model_statistics,
            Operation.LOGGING: self._logging,
            Operation.TRACE_SETTING: self._trace_setting,
            Operation.REPOSITORY_INDEX: self._repository_index,
            Operation.MODEL_LOAD: self._load,
            Operation.MODEL_UNLOAD: self._unload,
            Operation.SYSTEM_SHM_STATUS: partial(_reply_shm_status, service.system_shm_status),
            Operation.SYSTEM_SHM_REGISTER: self._register_system_shm,
            Operation.SYSTEM_SHM_UNREGISTER: partial(_unregister_shm, service.unregister_system_shm),
            Operation.CUDA_SHM_STATUS: partial(_reply_shm_status, service.cuda_shm_status),
            Operation.CUDA_SHM_REGISTER: self._register_cuda_shm,
            Operation.CUDA_SHM_UNREGISTER: partial(_unregister_shm, service.unregister_cuda_shm),
        }

    # ---- health and metadata ------------------------------------------------------------------------------------

    def _live(self, exchange: Exchange, route: Route) -> None:
        self._reply_health(exchange, {"live": self._service.live()})

    def _ready(self, exchange: Exchange, route: Route) -> None:
        self._reply_health(exchange, {"ready": self._service.ready()})

    def _reply_health(self, exchange: Exchange, health: dict[str, bool]) -> None:
        if not self._service.live():
            raise Unavailable("Server exiting")
        self._reply(exchange, 200 if all(health.values()) else 400, health)

    def _reply(self, exchange: Exchange, status: int, health: Mapping[str, object]) -> None:
        if self._health_json:
            exchange.reply(status, (orjson.dumps(health),))
        else:
            exchange.reply(status, content_type=PLAIN)

    def _server_metadata(self, exchange: Exchange, route: Route) -> None:
        exchange.reply(200, (bodies.metadata(self._service.server_metadata()),))

    def _model_ready(self, exchange: Exchange, route: Route) -> None:
        try:
            ready = self._service.model_ready(route.model, route.version)
        except (NotFound, InvalidArgument, Unavailable):
            if not self._service.live():
                raise
            ready = False  # Triton 2.51 does not distinguish these
        if not ready:
            raise InvalidArgument("Model version not ready")
        self._reply(exchange, 200, {"name": route.model, "ready": True})

    def _model_metadata(self, exchange: Exchange, route: Route) -> None:
        exchange.reply(200, (bodies.metadata(self._service.model_metadata(route.model, route.version)),))

    def _model_config(self, exchange: Exchange, route: Route) -> None:
        config = self._service.model_config(route.model, route.version)
        exchange.reply(200, (orjson.dumps(self._config_to_json(config)),))

    def _model_statistics(self, exchange: Exchange, route: Route) -> None:
        models = self._service.model_statistics(route.model, route.version)
        if len(models) <= MANY_MODELS:
            exchange.reply(200, (bodies.statistics(models),))
        else:
            start_task(_reply_statistics_in_pieces(exchange, models), "statistics")

    # ---- settings: GET returns them, POST changes them first ----------------------------------------------------

    def _logging(self, exchange: Exchange, route: Route) -> None:
        service = self._service
        if exchange.head.method == "POST":
            service.update_log_settings(bodies.read_log_settings(exchange.body, service.log_settings()))
        exchange.reply(200, (bodies.log_settings(service.log_settings()),))

    def _trace_setting(self, exchange: Exchange, route: Route) -> None:
        current = self._service.trace_settings(route.model)
        if exchange.head.method == "POST":
            self._service.update_trace_settings(route.model, bodies.read_trace_changes(exchange.body))
            current = self._service.trace_settings(route.model)
        exchange.reply(200, (bodies.trace_settings(current),))

    # ---- the repository -----------------------------------------------------------------------------------------

    def _repository_index(self, exchange: Exchange, route: Route) -> None:
        def done(found: list[IndexEntry] | EdgeServeError) -> None:
            if isinstance(found, EdgeServeError):
                refuse(exchange, found, JSON)
            else:
                exchange.reply(200, (bodies.repository_index(found),))

        self._service.repository_index(bodies.read_index_request(exchange.body), done)

    def _load(self, exchange: Exchange, route: Route) -> None:
        check_repository(route.repository)
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
        check_repository(route.repository)
        dependents = bodies.read_unload_request(exchange.body)
        self._service.unload_model(route.model, dependents, lambda error: _finish(exchange, error))

    # ---- shared memory ------------------------------------------------------------------------------------------

    def _register_system_shm(self, exchange: Exchange, route: Route) -> None:
        self._service.check_shm()  # before the body is read
        _check_region(route, "system")
        self._service.register_system_shm(route.region, *bodies.read_shared_memory(exchange.body))
        exchange.reply(200)

    def _register_cuda_shm(self, exchange: Exchange, route: Route) -> None:
        self._service.check_shm()
        _check_region(route, "cuda")
        handle, device, byte_size = bodies.read_cuda_shared_memory(exchange.body)
        self._service.register_cuda_shm(route.region, handle, device, byte_size, lambda error: _finish(exchange, error))


async def _reply_statistics_in_pieces(exchange: Exchange, models: Sequence[tuple[str, str, ModelStatistics]]) -> None:
    pieces = [b",".join(made) async for made in in_pieces(bodies.statistics_of_each(models))]
    exchange.reply(200, (bodies.STATISTICS_HEAD, b",".join(filter(None, pieces)), bodies.STATISTICS_TAIL))


def _reply_shm_status(
    status: Callable[[str], Sequence[RegionStatus | CudaRegionStatus]], exchange: Exchange, route: Route
) -> None:
    exchange.reply(200, (bodies.shared_memory(status(route.region)),))


def _unregister_shm(unregister: Callable[[str], None], exchange: Exchange, route: Route) -> None:
    unregister(route.region)
    exchange.reply(200)


def check_repository(name: str) -> None:
    """Raise Unsupported if a request names a repository, as Triton does."""
    if name:
        raise Unsupported("'repository_name' specification is not supported")


def _check_region(route: Route, kind: str) -> None:
    if not route.region:
        raise InvalidArgument(f"'region name' is necessary to register {kind} shared memory region")


def _finish(exchange: Exchange, error: EdgeServeError | None) -> None:
    if error is None:
        exchange.reply(200)
    else:
        refuse(exchange, error, JSON)
