"""Opens the gRPC door where grpcio is installed: the extra `[grpc]`, which the rest of the server does without."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from edge_serve.clock import Clock
from edge_serve.config.server import ServerConfig
from edge_serve.errors import Unsupported

if TYPE_CHECKING:
    from edge_serve.transport.grpc_server import GrpcServer, GrpcService

log = logging.getLogger(__name__)

_HINT = "grpcio is not installed: pip install 'edge-serve[grpc]', or start with --allow-grpc=false"


async def open_grpc(service: GrpcService, config: ServerConfig, clock: Clock) -> GrpcServer | None:
    """The open door, or None without grpcio.

    Raises:
        Unsupported: there is no grpcio, and the door was asked for. InvalidArgument: a file of TLS is missing.
        OSError: the port is taken.
    """
    try:
        from edge_serve.transport.grpc_options import settings_of
        from edge_serve.transport.grpc_server import GrpcServer
    except ModuleNotFoundError as error:
        if error.name != "grpc":
            raise
        if "allow_grpc" in config.given:
            raise Unsupported(f"--allow-grpc: {_HINT}") from error
        log.warning("no gRPC, because %s", _HINT)
        return None
    door = GrpcServer(service, settings_of(config), clock)
    await door.start(config.grpc_address, config.grpc_port)
    log.info("gRPC on %s", door.address)
    return door
