"""Converts the `--grpc-*` settings into the values of a gRPC door."""

from __future__ import annotations

import math
import ssl

from edge_serve.config.settings.server import ServerConfig
from edge_serve.transport.door.door import within_files
from edge_serve.transport.door.reloaded import Reloaded
from edge_serve.transport.grpc.call_head import GrpcSettings
from edge_serve.transport.grpc.door_state import GrpcLimits
from edge_serve.transport.grpc.keepalive import KeepaliveSettings
from edge_serve.transport.sockets.tls import make_context, tls_files
from edge_serve.transport.v2.routes import RouteGroup

#: the longest message that gRPC's clients can send
_MOST = 2**31 - 1


def read_settings(config: ServerConfig) -> GrpcSettings:
    """Return the settings that concern calls."""
    return GrpcSettings(
        header_forward_pattern=config.grpc_header_forward_pattern,
        restricted={
            RouteGroup(api): (restriction.header, restriction.value)
            for restriction in config.grpc_restricted_protocol
            for api in restriction.apis
        },
        compression_level=config.grpc_infer_response_compression_level,
        max_message=min(_MOST, config.tensor_memory_bytes or _MOST),
    )


def read_keepalive(config: ServerConfig) -> KeepaliveSettings:
    """Return the settings that concern the life of connections."""
    return KeepaliveSettings(
        time=config.grpc_keepalive_time / 1e3,
        timeout=config.grpc_keepalive_timeout / 1e3,
        without_calls=config.grpc_keepalive_permit_without_calls,
        max_pings_without_data=config.grpc_http2_max_pings_without_data,
        min_interval=config.grpc_http2_min_recv_ping_interval_without_data / 1e3,
        max_strikes=config.grpc_http2_max_ping_strikes,
        max_age=config.grpc_max_connection_age / 1e3 or math.inf,
        age_grace=config.grpc_max_connection_age_grace / 1e3 or math.inf,
    )


def read_limits(config: ServerConfig) -> GrpcLimits:
    """Return the limits of the door."""
    return GrpcLimits(
        connections=within_files(config.grpc_max_connections, "gRPC", 1 + config.allow_http),
        body_rate=config.min_body_bytes_per_sec,
        memory_wait=config.request_memory_wait_secs,
        handshake_timeout=config.tls_handshake_timeout_secs,
    )


def tls_of(config: ServerConfig) -> Reloaded[ssl.SSLContext] | None:
    """Return the TLS context of new connections, which is made again when a file changes; None = no TLS.

    Raises:
        InvalidArgument: TLS is enabled, and one of its files is missing or invalid.
    """
    mutual = config.grpc_use_ssl_mutual
    if not (config.grpc_use_ssl or mutual):
        return None
    root = config.grpc_root_cert if mutual else ""
    files = tls_files("--grpc", config.grpc_server_cert, config.grpc_server_key, root, mutual=mutual)
    return Reloaded("certificate of gRPC", files.paths, lambda: make_context(files, ("h2",)))
