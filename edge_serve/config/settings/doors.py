"""Settings that make the doors safe: TLS, who may do what, and limits. A part of the table in `server`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from edge_serve.config.settings.kinds import (
    BOOLEAN,
    COUNT,
    FILLED,
    NAME,
    PATH,
    POSITIVE,
    SettingKind,
    choice,
    number,
    shown,
)
from edge_serve.config.settings.table import Setting

_http = partial(Setting, "HTTP")
_grpc = partial(Setting, "GRPC")
_metrics = partial(Setting, "Metrics")
_access = partial(Setting, "Access")
_limits = partial(Setting, "Limits")


def _parse_origin(text: str) -> str:
    scheme, colon, host = text.partition("://")
    if text != "*" and (scheme not in ("http", "https") or not colon or not host or "/" in host or " " in host):
        raise ValueError(f"found '{shown(text)}', expected an origin as https://dashboard.example:8443, or *")
    return text


_ORIGIN = SettingKind("origin", _parse_origin)


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """See docs/security.md."""

    http_use_ssl: Annotated[bool, _http(BOOLEAN, "Use TLS.")] = False
    http_use_ssl_mutual: Annotated[
        bool, _http(BOOLEAN, "Use TLS, and refuse clients without a certificate that --http-root-cert signs.")
    ] = False
    http_server_cert: Annotated[
        str, _http(PATH, "File with the server's certificate and what leads to its root (PEM). Read anew when changed.")
    ] = ""
    http_server_key: Annotated[str, _http(PATH, "File with the server's key, without a password (PEM).")] = ""
    http_root_cert: Annotated[
        str,
        _http(PATH, "File with the certificates that sign clients' (PEM). Without --http-use-ssl-mutual a client may "
                    "have one, and need not."),
    ] = ""  # fmt: skip
    http_health_json: Annotated[
        bool,
        _http(BOOLEAN, "Say in health replies as JSON what their status says, which KServe's client wants to read; "
                       "Triton's have no body."),
    ] = False  # fmt: skip
    http_cors_origin: Annotated[
        tuple[str, ...],
        _http(_ORIGIN, "Origin of web pages that may read answers of this server (CORS); * = of any.", tuple),
    ] = ()
    grpc_max_connections: Annotated[int, _grpc(POSITIVE, "Connections open at once; further ones are told so.")] = 4096
    metrics_use_ssl: Annotated[bool, _metrics(BOOLEAN, "Use TLS, with the files of HTTP.")] = False

    token_file: Annotated[
        str, _access(PATH, "File of bearer tokens and their roles, as `edge-serve token` writes it.")
    ] = ""
    certificate_role_file: Annotated[
        str, _access(PATH, "File of the roles of clients' certificates, by subject or fingerprint.")
    ] = ""
    anonymous_role: Annotated[
        str,
        _access(
            choice("none", "health", "read", "infer"),
            "What a client may do without a token or certificate that is known, where there is a file of either.",
        ),
    ] = "none"
    admin_access: Annotated[
        str,
        _access(
            choice("loopback", "anywhere", "socket"),
            "Where loading and unloading, settings and registering shared memory may be asked for: this device; "
            "anywhere; --admin-socket only, which is the one to choose behind a reverse proxy on this device.",
        ),
    ] = "loopback"
    admin_socket: Annotated[
        str, _access(FILLED, "UNIX socket for administration: the whole HTTP protocol, without tokens (mode 0660).")
    ] = ""
    admin_socket_group: Annotated[str, _access(NAME, "Group that may use --admin-socket.")] = ""

    max_connections_per_address: Annotated[
        int, _limits(COUNT, "Connections that one address may have open, over all ports; 0 = no limit.")
    ] = 0
    max_requests_in_flight: Annotated[
        int, _limits(COUNT, "Requests that wait for their answers, beyond which new ones get 503; 0 = no limit.")
    ] = 16_384
    request_memory_bytes: Annotated[
        int, _limits(COUNT, "Bytes that large request bodies may hold together; 0 = a quarter of the memory.")
    ] = 0
    request_memory_wait_secs: Annotated[
        float, _limits(number(0.1), "Seconds that a request may wait for memory before it gets 503.")
    ] = 30.0
    min_body_bytes_per_sec: Annotated[
        int,
        _limits(COUNT, "Speed below which a sender gives its memory back while others wait for it; 0 = none."),
    ] = 65_536
    tls_handshake_timeout_secs: Annotated[float, _limits(number(0.1), "Seconds that a TLS handshake may take.")] = 10.0
    http_head_timeout_secs: Annotated[
        float, _limits(number(0.1), "Seconds from the first byte of a request's head to its last.")
    ] = 20.0
    http_body_timeout_secs: Annotated[
        float, _limits(number(0.1), "Seconds in which at least 1 KiB more of a body must arrive.")
    ] = 30.0
    http_write_timeout_secs: Annotated[
        float, _limits(number(0.1), "Seconds in which a client must read something of its answer.")
    ] = 60.0
    http_max_pipelined: Annotated[
        int, _limits(POSITIVE, "Requests of one connection that wait for their answers before the next is read.")
    ] = 16
