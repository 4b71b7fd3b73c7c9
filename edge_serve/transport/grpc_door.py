"""Opens the gRPC door. Its message classes are imported here and not before: they cost memory and time."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from edge_serve.clock import Clock
from edge_serve.config.server import ServerConfig
from edge_serve.transport.listeners import listen_tcp

if TYPE_CHECKING:
    from edge_serve.transport.grpc_server import GrpcServer, GrpcService

log = logging.getLogger(__name__)


async def open_grpc(service: GrpcService, config: ServerConfig, clock: Clock) -> GrpcServer:
    """The open door.

    Raises:
        InvalidArgument: a file of TLS is missing or no good. OSError: the port is taken.
    """
    from edge_serve.transport.grpc_options import keepalive_of, settings_of, tls_of
    from edge_serve.transport.grpc_server import GrpcServer

    tls = tls_of(config)
    listeners = listen_tcp(config.grpc_address, config.grpc_port, reuse_port=config.reuse_grpc_port)
    door = GrpcServer(service, clock, settings_of(config), keepalive=keepalive_of(config), tls=tls)
    await door.start(listeners)
    log.info("gRPC on %s", door.address)
    return door
