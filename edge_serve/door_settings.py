"""Converts the settings of the doors into certificates, access checks, and limits. `doors` opens the doors."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import ssl
from collections.abc import Callable
from functools import partial

from edge_serve.access.policy import AdminAccess
from edge_serve.access.roles import Role
from edge_serve.config.settings.server import ServerConfig
from edge_serve.devices.host_memory import total_memory
from edge_serve.errors import InvalidArgument
from edge_serve.messages.peer import Peer
from edge_serve.transport.door.access import Access, AccessSettings
from edge_serve.transport.door.body_memory import BodyMemory
from edge_serve.transport.door.door import within_files
from edge_serve.transport.door.exchange import Application
from edge_serve.transport.door.reloaded import Reloaded
from edge_serve.transport.door.shared_limits import Addresses, InFlight, SharedLimits
from edge_serve.transport.http.cors import Cors
from edge_serve.transport.http.door_state import HttpLimits
from edge_serve.transport.sockets.tls import TlsFiles, make_context, tls_files
from edge_serve.transport.v2.application import V2Application

log = logging.getLogger(__name__)


class DoorGuards:
    """Certificates, access checks, and limits of the doors. The server calls `reload_changed` once a second.

    Args:
        shortages: returns how many requests were refused so far because there was no tensor memory.

    Raises:
        InvalidArgument: a file is missing or invalid.
    """

    def __init__(self, config: ServerConfig, shortages: Callable[[], int] = lambda: 0) -> None:
        self.access = Access(
            AccessSettings(
                token_file=config.token_file,
                certificate_file=config.certificate_role_file,
                anonymous=Role[config.anonymous_role.upper()],
                admin_access=AdminAccess(config.admin_access),
                origins=config.http_cors_origin,
            )
        )
        self.sharing = SharedLimits(
            InFlight(config.max_requests_in_flight),
            Addresses(config.max_connections_per_address),
            BodyMemory(config.request_memory_bytes or quarter_of_memory(), shortages),
        )
        self._origins = config.http_cors_origin
        _warn(config)
        self.http_tls: Callable[[], ssl.SSLContext] | None = None
        self._http_context: Reloaded[ssl.SSLContext] | None = None
        if (files := http_files(config)) is not None:
            load = partial(make_context, files, ("http/1.1",))
            context = self._http_context = Reloaded("certificate of HTTP", files.paths, load)
            self.http_tls = lambda: context.value
        self.metrics_tls = self.http_tls if config.metrics_use_ssl else None

    async def reload_changed(self) -> None:
        """Load the files that have changed."""
        await self.access.reload_changed()
        if self._http_context is not None:
            await self._http_context.reload_changed()

    def chooser(self, application: V2Application) -> Callable[[Peer], Application]:
        """Return a function that chooses the application of a client: with its access checks, and with CORS if web
        pages of other origins may read answers."""
        origins = self._origins
        if not origins:
            return application.for_peer
        return lambda peer: Cors(application.for_peer(peer), origins)

    def refused(self) -> dict[str, int]:
        """Return the number of refused requests by reason; the doors count their own connections and handshakes."""
        sharing = self.sharing
        return {
            "access": self.access.denied,
            "requests_in_flight": sharing.in_flight.refused,
            "connections_of_address": sharing.addresses.refused,
            **{f"body_{reason}": count for reason, count in sharing.memory.refused.items()},
        }


def _warn(config: ServerConfig) -> None:
    """Warn of settings that give more access than the operator may intend."""
    if config.admin_access == "anywhere" and not (config.token_file or config.certificate_role_file):
        log.warning("--admin-access=anywhere without tokens or certificates: every client may load and unload models")
    copies = os.environ.get("CREDENTIALS_DIRECTORY", "")
    if copies and config.token_file.startswith(copies + "/"):
        log.warning(
            "the token file %s is a copy that systemd made at the start: a token that is revoked works until a "
            "restart; name the file itself (--token-file=/etc/edge-serve/tokens)",
            config.token_file,
        )
    if config.token_file:
        for door, on, address, tls in (
            ("HTTP", config.allow_http, config.http_address, config.http_use_ssl or config.http_use_ssl_mutual),
            ("gRPC", config.allow_grpc, config.grpc_address, config.grpc_use_ssl or config.grpc_use_ssl_mutual),
        ):
            if on and not tls and not (address.startswith("127.") or address in ("::1", "localhost")):
                log.warning("%s listens on %s without TLS: tokens can be read on their way", door, address)


def raise_file_limit() -> None:
    """Raise the limit of open files to its maximum: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def quarter_of_memory() -> int:
    """Return a quarter of the machine's memory, in bytes."""
    return total_memory() // 4


def http_limits(config: ServerConfig) -> HttpLimits:
    """Return the limits of the HTTP door, with at most as many connections as this process may open files."""
    return HttpLimits(
        connections=within_files(config.http_max_connections, "HTTP", 1 + config.allow_grpc),
        pipelined=config.http_max_pipelined,
        idle_timeout=config.http_idle_timeout_secs or float("inf"),
        head_timeout=config.http_head_timeout_secs,
        body_timeout=config.http_body_timeout_secs,
        body_rate=config.min_body_bytes_per_sec,
        memory_wait=config.request_memory_wait_secs,
        write_timeout=config.http_write_timeout_secs,
        handshake_timeout=config.tls_handshake_timeout_secs,
    )


def http_files(config: ServerConfig) -> TlsFiles | None:
    """Return the TLS files of the `--http-*` settings; None = no TLS.

    Raises:
        InvalidArgument: a needed file is not configured.
    """
    mutual = config.http_use_ssl_mutual
    if not (config.http_use_ssl or mutual):
        if config.metrics_use_ssl:
            raise InvalidArgument("--metrics-use-ssl needs --http-use-ssl, whose certificate it uses")
        return None
    return tls_files("--http", config.http_server_cert, config.http_server_key, config.http_root_cert, mutual=mutual)
