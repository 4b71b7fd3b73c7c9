"""The `--grpc-*` settings as what the gRPC door needs: channel arguments, credentials, restrictions."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import grpc

from edge_serve.config.server import ServerConfig
from edge_serve.errors import InvalidArgument
from edge_serve.protocol.routes import Group
from edge_serve.transport.grpc_server import GrpcSettings


def settings_of(config: ServerConfig) -> GrpcSettings:
    """What `config` says of gRPC.

    Raises:
        InvalidArgument: TLS is asked for, and a file of it is missing.
    """
    pattern = config.grpc_header_forward_pattern
    return GrpcSettings(
        header_forward_pattern=pattern.pattern if pattern is not None else "",
        restricted={
            Group(api): (restriction.header, restriction.value)
            for restriction in config.grpc_restricted_protocol
            for api in restriction.apis
        },
        compression_level=config.grpc_infer_response_compression_level,
        reuse_port=config.reuse_grpc_port,
        options=tuple(_options(config)),
        credentials=_credentials(config) if config.grpc_use_ssl or config.grpc_use_ssl_mutual else None,
    )


def _options(config: ServerConfig) -> list[tuple[str, int]]:
    """Keepalive and the age of connections, as channel arguments."""
    options = [
        ("grpc.keepalive_time_ms", config.grpc_keepalive_time),
        ("grpc.keepalive_timeout_ms", config.grpc_keepalive_timeout),
        ("grpc.keepalive_permit_without_calls", int(config.grpc_keepalive_permit_without_calls)),
        ("grpc.http2.max_pings_without_data", config.grpc_http2_max_pings_without_data),
        (
            "grpc.http2.min_ping_interval_without_data_ms",
            config.grpc_http2_min_recv_ping_interval_without_data,
        ),
        ("grpc.http2.max_ping_strikes", config.grpc_http2_max_ping_strikes),
    ]
    if config.grpc_max_connection_age:
        options.append(("grpc.max_connection_age_ms", config.grpc_max_connection_age))
    if config.grpc_max_connection_age_grace:
        options.append(("grpc.max_connection_age_grace_ms", config.grpc_max_connection_age_grace))
    return options


class Certificates:
    """The files of TLS, read again when one of them has changed.

    Args:
        root: signs the certificates of clients; "" = clients need none.
    """

    def __init__(self, certificate: str, key: str, root: str) -> None:
        self._paths = [path for path in (key, certificate, root) if path]
        self._seen: list[tuple[int, int]] = []

    def changed(self) -> list[bytes] | None:
        """Key, certificate and root; None when they are as they were.

        Raises:
            OSError: a file cannot be read.
        """
        seen = [(status.st_mtime_ns, status.st_ino) for status in map(os.stat, self._paths)]
        if seen == self._seen:
            return None
        contents = []
        for path in self._paths:
            with open(path, "rb") as file:
                contents.append(file.read())
        self._seen = seen
        return contents


def _credentials(config: ServerConfig) -> Any:
    flags = {"--grpc-server-cert": config.grpc_server_cert, "--grpc-server-key": config.grpc_server_key}
    if config.grpc_use_ssl_mutual:
        flags["--grpc-root-cert"] = config.grpc_root_cert
    for flag, path in flags.items():
        if not path:
            raise InvalidArgument(f"TLS for gRPC needs {flag}: the file was not named")
    root = config.grpc_root_cert if config.grpc_use_ssl_mutual else ""
    certificates = Certificates(config.grpc_server_cert, config.grpc_server_key, root)
    try:
        first = _configuration(certificates.changed() or [])
    except OSError as error:
        raise InvalidArgument(f"TLS for gRPC: cannot read '{error.filename}': {error.strerror}") from error
    return grpc.dynamic_ssl_server_credentials(
        first, _fetcher(certificates), require_client_authentication=config.grpc_use_ssl_mutual
    )


def _configuration(contents: list[bytes]) -> Any:
    key, certificate, *root = contents
    return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=root[0] if root else None)


def _fetcher(certificates: Certificates) -> Callable[[], Any]:
    """What gRPC calls for each new connection, in threads of its own; None = as before."""

    def fetch() -> Any:
        try:
            contents = certificates.changed()
        except OSError:
            return None  # between two files of an exchange: the next connection looks again
        return None if contents is None else _configuration(contents)

    return fetch
