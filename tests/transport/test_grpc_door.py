"""Without grpcio the server goes on, unless gRPC was asked for; nothing of it is imported before its door is opened."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys

import pytest

from edge_serve.config.server import parse_argv
from edge_serve.errors import Unsupported
from edge_serve.transport.grpc_door import open_grpc
from tests.transport.grpc_scene import GrpcFakeService
from tests.transport.v2_scene import FixedClock


@pytest.fixture
def no_grpcio(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name == "grpc" or name.startswith(
            ("grpc.", "edge_serve.transport.grpc_server", "edge_serve.transport.grpc_opt")
        ):
            monkeypatch.delitem(sys.modules, name)

    class Finder:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "grpc":
                raise ModuleNotFoundError("No module named 'grpc'", name="grpc")

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])


@pytest.mark.usefixtures("no_grpcio")
def test_without_grpcio_a_line_in_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    config = parse_argv(["--model-repository=/models"], {})
    with caplog.at_level(logging.WARNING):
        assert asyncio.run(open_grpc(GrpcFakeService(), config, FixedClock())) is None

    assert "no gRPC, because grpcio is not installed: pip install 'edge-serve[grpc]'" in caplog.text


@pytest.mark.usefixtures("no_grpcio")
def test_without_grpcio_asking_for_it_is_an_error() -> None:
    config = parse_argv(["--model-repository=/models", "--allow-grpc=true"], {})
    with pytest.raises(Unsupported, match="--allow-grpc: grpcio is not installed"):
        asyncio.run(open_grpc(GrpcFakeService(), config, FixedClock()))


def test_the_door_listens_where_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> str:
        config = parse_argv(["--model-repository=/models", "--grpc-address=::1", "--grpc-port=0"], {})
        with caplog.at_level(logging.INFO):
            opened = await open_grpc(GrpcFakeService(), config, FixedClock())
        assert opened is not None
        await opened.drain(0.1)
        return opened.address

    assert f"gRPC on {asyncio.run(main())}" in caplog.text
    assert "gRPC on [::1]:" in caplog.text


def test_the_server_does_not_import_grpc_before() -> None:
    code = "import sys, edge_serve.server; print([name for name in sys.modules if name.split('.')[0] == 'grpc'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50)

    assert done.stdout == "[]\n"
