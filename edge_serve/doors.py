"""The doors of one server: opens them from the settings, admits clients when the models are loaded, drains them."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from edge_serve.clock import Clock
from edge_serve.config.model.json_form import model_config_to_json
from edge_serve.config.settings.server import ServerConfig
from edge_serve.devices.device import Gpu
from edge_serve.door_settings import DoorGuards, http_limits
from edge_serve.messages.peer import ADMINISTRATOR
from edge_serve.observe.metrics.gpu import FIND_SECONDS, find_gpus_within, no_gpus, seen_by_cuda
from edge_serve.observe.metrics.options import parse_options
from edge_serve.observe.metrics.page import Page
from edge_serve.observe.metrics.source import HttpSeries, StatisticsSource
from edge_serve.service import Service
from edge_serve.systemd.activation import Inherited
from edge_serve.transport.door.listeners import Listener, listen_tcp, listen_unix
from edge_serve.transport.http.metrics import LIMITS, MetricsApplication
from edge_serve.transport.http.server import AdminServer, HttpServer
from edge_serve.transport.v2.application import V2Application
from edge_serve.transport.v2.head import V2Settings
from edge_serve.transport.v2.routes import RouteGroup
from edge_serve.workers.codec.codec import Codec

if TYPE_CHECKING:
    from edge_serve.transport.grpc_service.server import GrpcServer

log = logging.getLogger(__name__)

#: seconds after which clients that wait in the sockets of the service manager are admitted before all models are loaded
WAIT_BEFORE_DOORS = 30.0


class Doors:
    """The doors of one server.

    Args:
        found_gpus: returns the GPUs that CUDA found.

    Attributes:
        inherited: sockets of the service manager; set before `open`.
        addresses: addresses of the open doors by name (`HTTP`, `gRPC`, `metrics`, `admin`).
    """

    def __init__(
        self,
        config: ServerConfig,
        service: Service,
        guards: DoorGuards,
        codec: Codec,
        clock: Clock,
        found_gpus: Callable[[], Sequence[Gpu]],
    ) -> None:
        self.inherited: Inherited = {}
        self.addresses: dict[str, list[str]] = {}
        self._config = config
        self._service = service
        self._guards = guards
        self._codec = codec
        self._clock = clock
        self._found_gpus = found_gpus
        self._http: list[HttpServer] = []
        self._grpc: GrpcServer | None = None
        self._closed: list[tuple[HttpServer | GrpcServer, list[Listener]]] = []

    @property
    def is_closed(self) -> bool:
        """Whether clients wait in sockets for `admit_clients`."""
        return bool(self._closed)

    async def open(self, source: StatisticsSource) -> None:
        """Open all doors. Clients in sockets of the service manager wait for `admit_clients`; others do not.

        Args:
            source: the source of the metrics page.

        Raises:
            InvalidArgument: a TLS file is missing or invalid. OSError: the server cannot listen on an address.
        """
        config, inherited = self._config, self.inherited
        application = V2Application(
            self._service,
            _v2_settings(config),
            config_to_json=model_config_to_json,
            clock=self._clock,
            codec=self._codec,
            access=self._guards.access,
        )
        tracing = self._service.tracing
        tracing.subscribe(lambda on: application.trace(tracing if on else None))
        if config.admin_socket or inherited.get("admin"):
            await self._open_admin(application)
        if config.allow_http:
            await self._open_http(application)
        if config.allow_grpc:
            await self._open_grpc()
        if config.allow_metrics:
            await self._open_metrics(source)
        self._warn(inherited)

    async def _open_admin(self, application: V2Application) -> None:
        config = self._config
        listeners = self.inherited.get("admin") or [listen_unix(config.admin_socket, group=config.admin_socket_group)]
        administrated = application.for_peer(ADMINISTRATOR)
        await self._open("admin", AdminServer(administrated, http_limits(config), self._clock), listeners)

    async def _open_http(self, application: V2Application) -> None:
        config, guards = self._config, self._guards
        held = self.inherited.get("http", [])
        listeners = held or listen_tcp(config.http_address, config.http_port, reuse_port=config.reuse_http_port)
        if config.http_unix_socket and not any(one.sock.family == socket.AF_UNIX for one in listeners):
            listeners = [*listeners, listen_unix(config.http_unix_socket)]
        door = HttpServer(
            application,
            http_limits(config),
            self._clock,
            choose=guards.chooser(application),
            tls=guards.http_tls,
            sharing=guards.sharing,
        )
        await self._open("HTTP", door, listeners, wait=bool(held))

    async def _open_grpc(self) -> None:
        # its message classes cost memory and time
        from edge_serve.transport.grpc_service.server import open_grpc

        held, guards = self.inherited.get("grpc", []), self._guards
        self._grpc = await open_grpc(self._service, self._config, self._clock, held, guards.access, guards.sharing)
        grpc, tracing = self._grpc, self._service.tracing
        tracing.subscribe(lambda on: grpc.trace(tracing if on else None))
        self.addresses["gRPC"] = [listener.name for listener in held] or self._grpc.addresses
        if held:
            self._closed.append((self._grpc, held))

    async def _open_metrics(self, source: StatisticsSource) -> None:
        config, guards = self._config, self._guards
        options = parse_options(
            config.metrics_config, gpu=config.allow_gpu_metrics, cpu=config.allow_cpu_metrics,
            interval_ms=config.metrics_interval_ms,
        )  # fmt: skip
        read_gpus = seen_by_cuda(await find_gpus_within(FIND_SECONDS), self._found_gpus) if options.gpu else no_gpus
        page = Page(source, options, read_gpus, self._clock, config.ota_status_file)
        metrics = MetricsApplication(page.render, guards.access)
        door = HttpServer(
            metrics,
            LIMITS,
            self._clock,
            choose=metrics.for_peer,
            tls=guards.metrics_tls,
            sharing=guards.sharing,
        )
        host = config.metrics_address or config.http_address
        await self._open("metrics", door, self.inherited.get("metrics") or listen_tcp(host, config.metrics_port))

    async def _open(self, name: str, door: HttpServer, listeners: list[Listener], *, wait: bool = False) -> None:
        await door.start([] if wait else listeners)
        if wait:
            self._closed.append((door, listeners))
        self._service.tracing.subscribe(door.trace)
        self._http.append(door)
        self.addresses[name] = [listener.name for listener in listeners]
        for listener in listeners:
            log.info("%s on %s", name, listener.name)

    def _warn(self, inherited: Inherited) -> None:
        config = self._config
        allowed = {"http": config.allow_http, "grpc": config.allow_grpc, "metrics": config.allow_metrics}
        for door, is_allowed in allowed.items():
            if inherited.get(door) and not is_allowed:
                log.warning("systemd holds a socket for %s, but --allow-%s=false: clients that connect will hang; "
                            "disable the socket unit", door, door)  # fmt: skip

    async def admit_clients(self) -> None:
        """Accept the connections of clients that waited for the models in sockets of the service manager."""
        for door, listeners in self._closed:
            await door.start(listeners)
        self._closed.clear()

    def series(self) -> HttpSeries:
        """Return the counts of all doors, for the metrics page."""
        requests: Counter[int] = Counter()
        for door in self._http:
            requests.update(door.counters.requests)
        counters = [door.counters for door in self._all()]
        refused = {
            "connections": sum(door.connections_refused for door in counters),
            "idle_connections": sum(door.connections_evicted for door in counters),
            "tls_handshake": sum(door.handshakes_failed for door in counters),
            **self._guards.refused(),
        }
        return HttpSeries(sum(len(door.connections) for door in self._http), requests, refused)

    def announce_close(self) -> None:
        """Put `Connection: close` into each HTTP answer from now on, because this process ends."""
        for door in self._http:
            door.announce_close()

    def stop_accepting(self) -> None:
        """Stop accepting, because another process takes over the sockets, and announce the end in the next answers."""
        for door in self._all():
            door.stop_accepting()

    async def retire(self, seconds: float) -> None:
        """Stop accepting, because another process takes over the sockets, and close without failing a request."""
        await asyncio.gather(*(door.retire(seconds) for door in self._all()))

    async def drain(self, seconds: float) -> int:
        """Drain all doors. Return how many connections were closed before their last answer was sent."""
        return sum(await asyncio.gather(*(door.drain(seconds) for door in self._all())))

    def _all(self) -> list[HttpServer | GrpcServer]:
        return [*self._http] if self._grpc is None else [*self._http, self._grpc]


def _v2_settings(config: ServerConfig) -> V2Settings:
    return V2Settings(
        max_input_size=config.http_max_input_size,
        header_forward_pattern=config.http_header_forward_pattern,
        ui=config.allow_ui,
        health_json=config.http_health_json,
        restricted={
            RouteGroup(api): (restriction.header, restriction.value)
            for restriction in config.http_restricted_api
            for api in restriction.apis
        },
    )
