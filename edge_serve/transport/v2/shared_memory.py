"""The operations on shared memory regions over HTTP (server src/http_server.cc)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edge_serve.errors import InvalidArgument
from edge_serve.messages.shared_memory import RegionStatus
from edge_serve.protocol.v2 import bodies
from edge_serve.transport.door.exchange import Exchange
from edge_serve.transport.v2.routes import Route


class SharedMemoryService(Protocol):
    """The service, as these operations use it."""

    def check_shm(self) -> None: ...
    def system_shm_status(self, name: str) -> Sequence[RegionStatus]: ...
    def register_system_shm(self, name: str, key: str, offset: int, byte_size: int) -> None: ...
    def unregister_system_shm(self, name: str) -> None: ...
    def cuda_shm_status(self, name: str) -> Sequence[RegionStatus]: ...
    def register_cuda_shm(self, name: str) -> None: ...
    def unregister_cuda_shm(self, name: str) -> None: ...


class SharedMemory:
    """Answers the six operations."""

    def __init__(self, service: SharedMemoryService) -> None:
        self._service = service

    def system_status(self, exchange: Exchange, route: Route) -> None:
        """Answer GET /v2/systemsharedmemory[/region/{r}]/status."""
        exchange.reply(200, (bodies.shared_memory(self._service.system_shm_status(route.region)),))

    def register_system(self, exchange: Exchange, route: Route) -> None:
        """Answer POST /v2/systemsharedmemory/region/{r}/register."""
        self._service.check_shm()  # before the body is read
        _check_name(route, "system")
        self._service.register_system_shm(route.region, *bodies.read_shared_memory(exchange.body))
        exchange.reply(200)

    def unregister_system(self, exchange: Exchange, route: Route) -> None:
        """Answer POST /v2/systemsharedmemory[/region/{r}]/unregister."""
        self._service.unregister_system_shm(route.region)
        exchange.reply(200)

    def cuda_status(self, exchange: Exchange, route: Route) -> None:
        """Answer GET /v2/cudasharedmemory[/region/{r}]/status."""
        exchange.reply(200, (bodies.shared_memory(self._service.cuda_shm_status(route.region)),))

    def register_cuda(self, exchange: Exchange, route: Route) -> None:
        """Answer POST /v2/cudasharedmemory/region/{r}/register."""
        self._service.check_shm()
        _check_name(route, "cuda")
        self._service.register_cuda_shm(route.region)

    def unregister_cuda(self, exchange: Exchange, route: Route) -> None:
        """Answer POST /v2/cudasharedmemory[/region/{r}]/unregister."""
        self._service.unregister_cuda_shm(route.region)
        exchange.reply(200)


def _check_name(route: Route, kind: str) -> None:
    if not route.region:
        raise InvalidArgument(f"'region name' is necessary to register {kind} shared memory region")
