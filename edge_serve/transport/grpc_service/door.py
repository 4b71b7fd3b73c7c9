"""Opens the gRPC door. Imports its message classes only then, because they cost memory and time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edge_serve.clock import Clock
from edge_serve.config.settings.server import ServerConfig
from edge_serve.transport.door.access import Access
from edge_serve.transport.door.listeners import Listener, listen_tcp
from edge_serve.transport.door.shared_limits import SharedLimits

if TYPE_CHECKING:
    from edge_serve.transport.grpc_service.server import GrpcServer, GrpcService

log = logging.getLogger(__name__)


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
    from edge_serve.transport.grpc.options import read_keepalive, read_limits, read_settings, tls_of
    from edge_serve.transport.grpc_service.server import GrpcServer

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
    log.info("gRPC on %s", ", ".join(listener.name for listener in held) or door.address)
    return door
