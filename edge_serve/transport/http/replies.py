"""Error replies, made here and nowhere else."""

from __future__ import annotations

import json

import orjson

from edge_serve.errors import EdgeServeError, Overloaded, Unauthenticated
from edge_serve.protocol.inference.compression import UnsupportedEncoding
from edge_serve.protocol.v2.routes import MethodNotAllowed
from edge_serve.transport.door.exchange import Exchange

#: RFC 6750 3
_CHALLENGE, _INVALID = 'Bearer realm="edge-serve"', ', error="invalid_token"'


def error_body(text: str) -> bytes:
    """`{"error":"<text>"}`, the body of every reply that is not a success (protocol extension of Triton)."""
    try:
        return orjson.dumps({"error": text})
    except TypeError:  # lone surrogates: a text that quotes a client's bytes
        return json.dumps({"error": text}, separators=(",", ":")).encode()


def refuse(exchange: Exchange, error: EdgeServeError, content_type: str) -> None:
    """The one place where an error becomes a reply."""
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
    """Refuse a request without asking the application whose memory its body is in."""
    if exchange.lease is not None:
        exchange.lease.release()
    refuse(exchange, error, "application/json")
