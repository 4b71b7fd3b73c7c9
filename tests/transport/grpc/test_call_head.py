"""Metadata that clients of grpcio do not send, but other clients and proxies do."""

from __future__ import annotations

import re

import pytest

from edge_serve.access.roles import Role
from edge_serve.protocol.http2.heads import StreamHead
from edge_serve.transport.grpc.call_head import GrpcSettings, HeadInterpreter, Method
from edge_serve.transport.v2.routes import RouteGroup

INTERPRETER = HeadInterpreter(
    {"/infer": Method(RouteGroup.INFERENCE, Role.INFER)}, GrpcSettings(header_forward_pattern=re.compile("x-"))
)


@pytest.mark.parametrize(
    ("key", "values", "forwarded"),
    [
        ("x-a", ["first", "second"], "second"),
        ("x-a", ["a,b"], "a,b"),
        ("x-a-bin", ["YWI", "YWM="], "ac"),
        ("x-a-bin", ["YWI,YWM"], "ac"),
        ("x-a-bin", ["!!!"], "!!!"),
        ("x-a-bin", ["YWI=!"], "YWI=!"),
        ("x-a-bin", ["A"], "A"),
        ("x-a-bin", [""], ""),
    ],
)
def test_forwarded_metadata(key: str, values: list[str], forwarded: str) -> None:
    fields = [(b"content-type", b"application/grpc"), *((key.encode(), value.encode()) for value in values)]
    asked = INTERPRETER.interpret(StreamHead(b"POST", b"/infer", fields))
    assert (asked.refusal, asked.forwarded) == (None, {key: forwarded})
