"""The door opens where it is told; nothing that only gRPC needs is imported before, and grpcio never."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys

import pytest

from edge_serve.config.settings.server import parse_argv
from edge_serve.transport.grpc_service.door import open_grpc
from tests.transport.grpc_scene import GrpcFakeService
from tests.transport.v2_scene import FixedClock


def test_the_door_listens_where_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> str:
        config = parse_argv(["--model-repository=/models", "--grpc-address=::1", "--grpc-port=0"], {})
        with caplog.at_level(logging.INFO):
            opened = await open_grpc(GrpcFakeService(), config, FixedClock())
        address = opened.address
        await opened.drain(0.1)
        return address

    assert f"gRPC on {asyncio.run(main())}" in caplog.text
    assert "gRPC on [::1]:" in caplog.text


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = parse_argv(["--model-repository=/models", f"--grpc-port={port}"], {})
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
            asyncio.run(open_grpc(GrpcFakeService(), config, FixedClock()))


def _imported(code: str) -> str:
    code = f"import sys\n{code}\nprint(sorted({{name.split('.')[0] for name in sys.modules}} & {{'grpc', 'hpack'}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50)
    return done.stdout


def test_what_only_grpc_needs_is_imported_with_its_door() -> None:
    assert _imported("import edge_serve.server") == "[]\n"
    assert _imported("import edge_serve.transport.grpc_service.server") == "['hpack']\n"
