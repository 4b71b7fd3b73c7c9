"""The gRPC server: a door whose connections are `GrpcConnection`s (ADR 12), and the table of its methods."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from edge_serve.access.roles import Role
from edge_serve.aio.memo import Memo
from edge_serve.aio.tasks import start_task
from edge_serve.clock import Clock
from edge_serve.config.settings.server import ServerConfig
from edge_serve.messages.peer import Peer
from edge_serve.observe.tracing.tracing import Tracing
from edge_serve.protocol.http2.frames import Code, build_goaway
from edge_serve.transport.door.access import Access
from edge_serve.transport.door.door import Door, DoorCounters
from edge_serve.transport.door.listeners import Listener, listen_tcp
from edge_serve.transport.door.reloaded import Reloaded
from edge_serve.transport.door.shared_limits import SharedLimits
from edge_serve.transport.grpc.call_head import GrpcSettings, HeadInterpreter, Method
from edge_serve.transport.grpc.connection import GrpcConnection
from edge_serve.transport.grpc.door_state import GrpcDoorState, GrpcLimits
from edge_serve.transport.grpc.keepalive import KeepaliveSettings
from edge_serve.transport.grpc.options import read_keepalive, read_limits, read_settings, tls_of
from edge_serve.transport.grpc_service.calls import INFERENCE, UnaryCalls
from edge_serve.transport.grpc_service.infer import GrpcInference
from edge_serve.transport.grpc_service.standard import REFLECTION, WATCH, Watchers, open_reflection
from edge_serve.transport.sockets.tls import TlsSocket
from edge_serve.transport.v2.infer import InferService
from edge_serve.transport.v2.operations import CallService
from edge_serve.transport.v2.routes import RouteGroup

log = logging.getLogger(__name__)

MODEL_INFER = INFERENCE + "ModelInfer"
MODEL_STREAM_INFER = INFERENCE + "ModelStreamInfer"

#: entries of the table of interpreters: local clients, others, and each client certificate
_PEERS = 64


class GrpcService(CallService, InferService, Protocol):
    """The part of `service.Service` that the gRPC door uses."""


class GrpcServer(Door[GrpcConnection]):
    """The gRPC door: accepts connections, and gives them methods, limits, and certificates.

    Args:
        tls: TLS context of new connections, checked for new files in every sweep; None = no TLS.
        access: access control; None = every client may call every method.
        sharing: limits of all doors together; None = no limits.
    """

    def __init__(
        self,
        service: GrpcService,
        clock: Clock,
        settings: GrpcSettings | None = None,
        *,
        keepalive: KeepaliveSettings | None = None,
        limits: GrpcLimits | None = None,
        tls: Reloaded[ssl.SSLContext] | None = None,
        access: Access | None = None,
        sharing: SharedLimits | None = None,
    ) -> None:
        self._settings = settings = settings or GrpcSettings()
        keepalive = keepalive or KeepaliveSettings()
        limits = limits or GrpcLimits()
        self._context = tls
        self._reloading: asyncio.Task[bool] | None = None
        self._watchers = Watchers(service)
        self._inference = GrpcInference(service, clock)
        self._methods = _make_methods(service, self._inference, self._watchers)
        self._interpreters: Memo[Peer, HeadInterpreter] = Memo(_PEERS)
        self._access = access
        if access is not None:
            access.subscribe(self)
        newest = None if tls is None else lambda: tls.value
        super().__init__(clock, limits, keepalive.sweep_interval(), sharing, DoorCounters(), newest)
        most = min(settings.max_message, self._sharing.memory.limit)
        self._shared = GrpcDoorState(self._loop, clock, limits, keepalive, most, self._sharing, self.gone)

    @property
    def addresses(self) -> list[str]:
        """The addresses of its listeners, for people."""
        return [listener.name for listener in self._acceptor.listeners]

    def sweep(self) -> None:
        """Check the timeouts of every connection, notify watchers of health, and look for new certificates."""
        super().sweep()
        self._watchers.notify()
        if self._context is not None and (self._reloading is None or self._reloading.done()):
            self._reloading = start_task(self._context.reload_changed(), "reload certificates of gRPC")

    def _connect(self, sock: socket.socket | TlsSocket, peer: Peer) -> GrpcConnection:
        return GrpcConnection(sock, self._shared, self._find_interpreter(peer))

    def _refusal(self, reason: str) -> bytes:
        return build_goaway(0, Code.ENHANCE_YOUR_CALM, reason)

    def _find_interpreter(self, peer: Peer) -> HeadInterpreter:
        """Return the interpreter of this client's heads, which clients with equal rights share."""
        known = self._interpreters.get(peer)
        if known is None:
            gate = None if self._access is None else self._access.gate(peer)
            known = self._interpreters.add(peer, HeadInterpreter(self._methods, self._settings, gate))
        return known

    def trace(self, tracing: Tracing | None) -> None:
        """Record this door's trace timestamps from now on; None = record none."""
        self._inference.trace(tracing)

    def clear(self) -> None:
        """Interpret heads again on all connections, because access control has changed."""
        for connection in self.connections:
            connection.clear_heads()


def _make_methods(service: GrpcService, inference: GrpcInference, watchers: Watchers) -> dict[str, Method]:
    """Return the table of methods by path."""
    methods = UnaryCalls(service).table
    infer = Method(
        RouteGroup.INFERENCE, Role.INFER, inference.infer, compresses=True, place=inference.place,
        prepare=inference.prepare, large=True,
    )  # fmt: skip
    methods[MODEL_INFER] = infer
    methods[MODEL_STREAM_INFER] = replace(infer, answer=None, open=inference.stream)
    methods[WATCH] = Method(RouteGroup.HEALTH, Role.HEALTH, open=watchers.open)
    for path in REFLECTION:
        methods[path] = Method(RouteGroup.METADATA, Role.READ, open=open_reflection)
    return methods


async def open_grpc(
    service: GrpcService,
    config: ServerConfig,
    clock: Clock,
    held: Sequence[Listener] = (),
    access: Access | None = None,
    sharing: SharedLimits | None = None,
) -> GrpcServer:
    """Open the gRPC door.

    Args:
        access: access control; sharing: limits of all doors together.
        held: systemd's sockets, on which `start` listens later; none = listen on the door's own socket now.

    Raises:
        InvalidArgument: a TLS file is missing or invalid. OSError: the port is in use.
    """
    tls = tls_of(config)
    listeners = [] if held else listen_tcp(config.grpc_address, config.grpc_port, reuse_port=config.reuse_grpc_port)
    door = GrpcServer(
        service,
        clock,
        read_settings(config),
        keepalive=read_keepalive(config),
        limits=read_limits(config),
        tls=tls,
        access=access,
        sharing=sharing,
    )
    await door.start(listeners)
    log.info("gRPC on %s", ", ".join([listener.name for listener in held] or door.addresses))
    return door
