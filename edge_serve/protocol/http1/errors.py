"""Errors of malformed or refused messages; each class has the HTTP status of its reply.

After any of them the framing of the connection is lost, or is not followed further: the reply is the last one.
"""

from __future__ import annotations

from edge_serve.errors import InvalidArgument, Unsupported


class BadRequest(InvalidArgument):
    """A request that is not HTTP/1.1, or that two implementations may read differently."""


class RequestTimeout(InvalidArgument):
    """The client took too long to send its request (RFC 9110 15.5.9)."""

    http_status, grpc_code = 408, "DEADLINE_EXCEEDED"


class ContentTooLarge(InvalidArgument):
    """The body is larger than the server accepts (RFC 9110 15.5.14)."""

    http_status, grpc_code = 413, "RESOURCE_EXHAUSTED"


class TargetTooLong(InvalidArgument):
    """The request line is longer than the server reads (RFC 9110 15.5.15)."""

    http_status = 414


class ExpectationFailed(InvalidArgument):
    """An `Expect` other than `100-continue` (RFC 9110 15.5.18)."""

    http_status = 417


class FieldsTooLarge(InvalidArgument):
    """Too many header fields, or too many bytes of them (RFC 6585 5)."""

    http_status = 431


class FramingUnsupported(Unsupported):
    """A transfer coding other than `chunked`, or a tunnel (RFC 9112 6.1, RFC 9110 15.6.2)."""


class VersionUnsupported(Unsupported):
    """Neither HTTP/1.1 nor HTTP/1.0 (RFC 9110 15.6.6)."""

    http_status = 505
