"""Error replies over HTTP: the only place where an error becomes one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson

from edge_serve.errors import EdgeServeError, Overloaded, Unauthenticated
from edge_serve.protocol.inference.compression import UnsupportedEncoding
from edge_serve.transport.door.exchange import Exchange

#: RFC 6750 3
_CHALLENGE, _INVALID = 'Bearer realm="edge-serve"', ', error="invalid_token"'


class MethodNotAllowed(EdgeServeError):
    """The path exists, for the methods `allowed`."""

    http_status, grpc_code, triton_name = 405, "UNIMPLEMENTED", "Unsupported"

    def __init__(self, allowed: tuple[str, ...]) -> None:
        super().__init__("Method Not Allowed")
        self.allowed = allowed


def encode_json(document: Mapping[str, Any]) -> bytes:
    """Encode a document whose texts may quote bytes that are not UTF-8, such as names of files."""
    try:
        return orjson.dumps(document)
    except TypeError:  # lone surrogates
        return json.dumps(document, separators=(",", ":")).encode()


def error_body(text: str) -> bytes:
    """Return `{"error":"<text>"}`, the body of every error reply (protocol extension of Triton)."""
    return encode_json({"error": text})


def refuse(exchange: Exchange, error: EdgeServeError, content_type: str) -> None:
    """Answer a request with an error."""
    headers: tuple[tuple[str, str], ...] = ()
    if isinstance(error, UnsupportedEncoding):
        headers = (("Accept-Encoding", "gzip, deflate"),)
    elif isinstance(error, MethodNotAllowed):
        headers = (("Allow", ", ".join(error.allowed)),)
    elif isinstance(error, Unauthenticated):
        headers = (("WWW-Authenticate", _CHALLENGE + (_INVALID if error.invalid else "")),)
    elif isinstance(error, Overloaded):
        headers = (("Retry-After", str(error.retry_after)),)
    exchange.reply(error.http_status, (error_body(error.message),), content_type=content_type, headers=headers)


def turn_away(exchange: Exchange, error: EdgeServeError) -> None:
    """Refuse a request that the application has not seen, and release the memory of its body."""
    if exchange.lease is not None:
        exchange.lease.release()
    refuse(exchange, error, "application/json")
