"""The doors' settings as what the doors need: certificates, access, limits. `server` opens the doors with it."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from edge_serve.access.policy import AdminAccess
from edge_serve.access.roles import Role
from edge_serve.config.server import ServerConfig
from edge_serve.errors import InvalidArgument
from edge_serve.transport.access import Access, AccessSettings
from edge_serve.transport.reloaded import Reloaded
from edge_serve.transport.tls import TlsFiles, make_context


class Guards:
    """What stands in the doors. Whoever keeps house calls `look` once a second: files may have changed.

    Raises:
        InvalidArgument: a file is missing, or no good.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.access = Access(
            AccessSettings(
                token_file=config.token_file,
                certificate_file=config.certificate_role_file,
                anonymous=Role[config.anonymous_role.upper()],
                admin_access=AdminAccess(config.admin_access),
                origins=config.http_cors_origin,
            )
        )
        self._contexts: list[Reloaded[ssl.SSLContext]] = []
        self.http_tls = self._tls("HTTP", http_files(config), "http/1.1")
        self.metrics_tls = self.http_tls if config.metrics_use_ssl else None

    def look(self) -> None:
        """Load what has changed."""
        self.access.look()
        for contexts in self._contexts:
            contexts.look()

    def _tls(self, door: str, files: TlsFiles | None, protocol: str) -> Callable[[], ssl.SSLContext] | None:
        if files is None:
            return None
        contexts = Reloaded(f"certificate of {door}", files.paths, lambda: make_context(files, (protocol,)))
        self._contexts.append(contexts)
        return lambda: contexts.value


def http_files(config: ServerConfig) -> TlsFiles | None:
    """What `--http-use-ssl` and its neighbours say; None: no TLS.

    Raises:
        InvalidArgument: one that is needed is not there.
    """
    mutual = config.http_use_ssl_mutual
    if not (config.http_use_ssl or mutual):
        if config.metrics_use_ssl:
            raise InvalidArgument("--metrics-use-ssl needs --http-use-ssl, whose certificate it uses")
        return None
    return tls_files("--http", config.http_server_cert, config.http_server_key, config.http_root_cert, mutual=mutual)


def tls_files(prefix: str, certificate: str, key: str, clients: str, *, mutual: bool) -> TlsFiles:
    """The files of one door; `prefix` is that of its flags.

    Raises:
        InvalidArgument: one that is needed is not there.
    """
    needed = {"server-cert": certificate, "server-key": key} | ({"root-cert": clients} if mutual else {})
    for name, path in needed.items():
        if not path:
            raise InvalidArgument(f"TLS needs {prefix}-{name}: the file was not named")
    return TlsFiles(certificate, key, clients, demanded=mutual)
