"""The `--grpc-*` settings become what the door needs; TLS with and without clients' certificates, and renewed ones."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from edge_serve.config.settings.server import ServerConfig, parse_argv
from edge_serve.errors import InvalidArgument
from edge_serve.transport.door.listeners import listen_tcp
from edge_serve.transport.grpc.call_head import GrpcSettings
from edge_serve.transport.grpc.keepalive import KeepaliveSettings
from edge_serve.transport.grpc.options import read_keepalive, read_settings, tls_of
from edge_serve.transport.grpc_service.server import GrpcServer
from edge_serve.transport.v2.routes import RouteGroup
from tests.transport.grpc_scene import INFERENCE, GrpcFakeService
from tests.transport.v2_scene import FixedClock


def config(*arguments: str) -> ServerConfig:
    return parse_argv(["--model-repository=/models", *arguments], {})


def test_defaults_are_tritons() -> None:
    assert read_settings(config()) == GrpcSettings()
    assert read_keepalive(config()) == KeepaliveSettings()
    assert tls_of(config()) is None


def test_settings_arrive() -> None:
    given = config(
        "--grpc-keepalive-time=5",
        "--grpc-keepalive-permit-without-calls=true",
        "--grpc-max-connection-age=7",
        "--grpc-max-connection-age-grace=8",
        "--grpc-restricted-protocol=health,metadata:key=value",
        "--grpc-infer-response-compression-level=low",
        "--tensor-memory-bytes=1000",
    )
    keepalive, settings = read_keepalive(given), read_settings(given)

    assert (keepalive.time, keepalive.without_calls) == (0.005, True)
    assert (keepalive.max_age, keepalive.age_grace) == (0.007, 0.008)
    pair = ("triton-grpc-protocol-key", "value")
    assert settings.restricted == {RouteGroup.HEALTH: pair, RouteGroup.METADATA: pair}
    assert (settings.compression_level, settings.max_message) == ("low", 1000)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--grpc-use-ssl=true"], "TLS needs --grpc-server-cert"),
        (["--grpc-use-ssl-mutual=true", "--grpc-server-cert=c", "--grpc-server-key=k"], "needs --grpc-root-cert"),
        (["--grpc-use-ssl=true", "--grpc-server-cert=/none", "--grpc-server-key=/none"], "cannot read '/none'"),
    ],
)
def test_tls_without_its_files_is_refused(arguments: list[str], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        tls_of(config(*arguments))


def _certificate(folder: Path, name: str) -> None:
    """A key and a self-signed certificate for 127.0.0.1, put in place as one who renews them does."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", folder / "new.key", "-out", folder / "new.pem", "-days", "1", "-subj", f"/CN={name}",
         "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True,
    )  # fmt: skip
    os.replace(folder / "new.key", folder / "key")
    os.replace(folder / "new.pem", folder / "pem")


def _over_tls(folder: Path, arguments: list[str], then: Callable[[GrpcServer], None]) -> None:
    async def main() -> None:
        files = (f"--grpc-server-cert={folder}/pem", f"--grpc-server-key={folder}/key")
        tls = tls_of(config("--grpc-use-ssl=true", *files, *arguments))
        assert tls is not None
        server = GrpcServer(GrpcFakeService(), FixedClock(), tls=tls)
        await server.start(listen_tcp("127.0.0.1", 0))
        await asyncio.to_thread(then, server)
        await server.drain(1.0)

    asyncio.run(main())


def _live(address: str, root: bytes, key: bytes | None = None, chain: bytes | None = None) -> bytes:
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(root, key, chain)) as channel:
        reply: bytes = channel.unary_unary(INFERENCE + "ServerLive")(b"", timeout=5)
        return reply


def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    _certificate(tmp_path, "first")

    def then(server: GrpcServer) -> None:
        first = (tmp_path / "pem").read_bytes()
        assert _live(server.addresses[0], first) == b"\x08\x01"
        _certificate(tmp_path, "second")
        assert server._context is not None
        assert server._shared is not None
        for _ in range(2):  # a file counts when it is as it was at the last look
            asyncio.run_coroutine_threadsafe(server._context.reload_changed(), server._shared.loop).result(10)
        assert _live(server.addresses[0], (tmp_path / "pem").read_bytes()) == b"\x08\x01"
        with pytest.raises(grpc.RpcError):
            _live(server.addresses[0], first)

    _over_tls(tmp_path, [], then)


def test_mutual_tls_wants_the_clients_certificate(tmp_path: Path) -> None:
    _certificate(tmp_path, "both")
    key, pem = (tmp_path / "key").read_bytes(), (tmp_path / "pem").read_bytes()

    def then(server: GrpcServer) -> None:
        assert _live(server.addresses[0], pem, key, pem) == b"\x08\x01"
        with pytest.raises(grpc.RpcError):
            _live(server.addresses[0], pem)

    _over_tls(tmp_path, ["--grpc-use-ssl-mutual=true", f"--grpc-root-cert={tmp_path}/pem"], then)
