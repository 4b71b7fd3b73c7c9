"""Settings that make the doors safe: TLS, who may do what, and limits. A part of the table in `server`."""

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
from edge_serve.records import frozen

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


@frozen
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
        str, _http(PATH, "CA certificates (PEM) for client certificates; --http-use-ssl-mutual makes these required.")
    ] = ""
    http_health_json: Annotated[
        bool, _http(BOOLEAN, "Add a JSON body to health replies, for KServe's client. Triton's replies have no body.")
    ] = False
    http_cors_origin: Annotated[
        tuple[str, ...], _http(_ORIGIN, "Origin of web pages that may read answers (CORS); * = any origin.", tuple)
    ] = ()
    grpc_max_connections: Annotated[int, _grpc(POSITIVE, "Connections open at once; further ones are refused.")] = 4096
    metrics_use_ssl: Annotated[bool, _metrics(BOOLEAN, "Use TLS, with the files of HTTP.")] = False

    token_file: Annotated[
        str, _access(PATH, "File of bearer tokens and their roles, written by `edge-serve token`.")
    ] = ""
    certificate_role_file: Annotated[str, _access(PATH, "File of certificates' roles, by subject or fingerprint.")] = ""
    anonymous_role: Annotated[
        str,
        _access(
            choice("none", "health", "read", "infer"),
            "Role of clients without a known token or certificate, if there is a file of either.",
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

    max_connections_per_address: Annotated[int, _limits(COUNT, "Connections per address, all ports; 0 = no limit.")] = 0
    max_requests_in_flight: Annotated[int, _limits(COUNT, "Requests in flight; more get 503. 0 = no limit.")] = 16_384
    request_memory_bytes: Annotated[int, _limits(COUNT, "Bytes of all large bodies; 0 = a quarter of the memory.")] = 0
    request_memory_wait_secs: Annotated[float, _limits(number(0.1), "Seconds to wait for memory before a 503.")] = 30.0
    min_body_bytes_per_sec: Annotated[
        int, _limits(COUNT, "Speed below which an upload or a response is aborted while others lack memory; 0 = none.")
    ] = 65_536
    tls_handshake_timeout_secs: Annotated[float, _limits(number(0.1), "Seconds that a TLS handshake may take.")] = 10.0
    http_head_timeout_secs: Annotated[float, _limits(number(0.1), "Seconds to receive a whole request head.")] = 20.0
    http_body_timeout_secs: Annotated[float, _limits(number(0.1), "Seconds for each further 1 KiB of a body.")] = 30.0
    http_write_timeout_secs: Annotated[float, _limits(number(0.1), "Seconds that a client may read nothing.")] = 60.0
    http_max_pipelined: Annotated[int, _limits(POSITIVE, "Unanswered requests per connection; more are not read.")] = 16
