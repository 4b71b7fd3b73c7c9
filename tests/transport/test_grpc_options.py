"""The `--grpc-*` settings become what gRPC understands; certificates are read again when they change."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from edge_serve.config.server import ServerConfig, parse_argv
from edge_serve.errors import InvalidArgument
from edge_serve.protocol.routes import Group
from edge_serve.transport.grpc_options import Certificates, settings_of
from edge_serve.transport.grpc_server import GrpcServer
from tests.transport.grpc_scene import INFERENCE, GrpcFakeService
from tests.transport.v2_scene import FixedClock


def config(*arguments: str) -> ServerConfig:
    return parse_argv(["--model-repository=/models", *arguments], {})


def test_defaults_are_tritons() -> None:
    settings = settings_of(config())

    assert dict(settings.options) == {
        "grpc.keepalive_time_ms": 7_200_000,
        "grpc.keepalive_timeout_ms": 20_000,
        "grpc.keepalive_permit_without_calls": 0,
        "grpc.http2.max_pings_without_data": 2,
        "grpc.http2.min_ping_interval_without_data_ms": 300_000,
        "grpc.http2.max_ping_strikes": 2,
    }
    assert settings.credentials is None
    assert not settings.reuse_port


def test_what_is_given_gets_there() -> None:
    settings = settings_of(
        config(
            "--grpc-keepalive-time=5",
            "--grpc-keepalive-permit-without-calls=true",
            "--grpc-max-connection-age=7",
            "--grpc-max-connection-age-grace=8",
            "--grpc-restricted-protocol=health,metadata:key=value",
            "--grpc-infer-response-compression-level=low",
            "--reuse-grpc-port=true",
        )
    )
    options = dict(settings.options)

    assert (options["grpc.keepalive_time_ms"], options["grpc.keepalive_permit_without_calls"]) == (5, 1)
    assert (options["grpc.max_connection_age_ms"], options["grpc.max_connection_age_grace_ms"]) == (7, 8)
    pair = ("triton-grpc-protocol-key", "value")
    assert settings.restricted == {Group.HEALTH: pair, Group.METADATA: pair}
    assert (settings.compression_level, settings.reuse_port) == ("low", True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--grpc-use-ssl=true"], "TLS for gRPC needs --grpc-server-cert"),
        (["--grpc-use-ssl-mutual=true", "--grpc-server-cert=c", "--grpc-server-key=k"], "needs --grpc-root-cert"),
        (["--grpc-use-ssl=true", "--grpc-server-cert=/none", "--grpc-server-key=/none"], "cannot read '/none'"),
    ],
)
def test_tls_without_its_files_is_refused(arguments: list[str], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        settings_of(config(*arguments))


def _certificate(folder: Path, name: str) -> None:
    """A key and a self-signed certificate for 127.0.0.1, put in place as one who renews them does."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", folder / "new.key", "-out", folder / "new.pem", "-days", "1", "-subj", f"/CN={name}",
         "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True,
    )  # fmt: skip
    os.replace(folder / "new.key", folder / "key")
    os.replace(folder / "new.pem", folder / "pem")


def test_certificates_are_read_again_when_they_change(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"one")
    (tmp_path / "k").write_bytes(b"key")
    certificates = Certificates(str(tmp_path / "c"), str(tmp_path / "k"), "")

    assert certificates.changed() == [b"key", b"one"]
    assert certificates.changed() is None
    (tmp_path / "new").write_bytes(b"two")
    os.replace(tmp_path / "new", tmp_path / "c")
    assert certificates.changed() == [b"key", b"two"]


def _over_tls(folder: Path, arguments: list[str], then: Callable[[str], None]) -> None:
    async def main() -> None:
        settings = settings_of(
            config("--grpc-use-ssl=true", f"--grpc-server-cert={folder}/pem", f"--grpc-server-key={folder}/key",
                   *arguments)
        )  # fmt: skip
        server = GrpcServer(GrpcFakeService(), settings, FixedClock())
        await server.start("127.0.0.1", 0)
        await asyncio.to_thread(then, server.address)
        await server.drain(1.0)

    asyncio.run(main())


def _live(address: str, root: bytes, key: bytes | None = None, chain: bytes | None = None) -> bytes:
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(root, key, chain)) as channel:
        reply: bytes = channel.unary_unary(INFERENCE + "ServerLive")(b"", timeout=5)
        return reply


def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    _certificate(tmp_path, "first")

    def then(address: str) -> None:
        first = (tmp_path / "pem").read_bytes()
        assert _live(address, first) == b"\x08\x01"
        _certificate(tmp_path, "second")
        assert _live(address, (tmp_path / "pem").read_bytes()) == b"\x08\x01"
        with pytest.raises(grpc.RpcError):
            _live(address, first)

    _over_tls(tmp_path, [], then)


def test_mutual_tls_wants_the_clients_certificate(tmp_path: Path) -> None:
    _certificate(tmp_path, "both")
    key, pem = (tmp_path / "key").read_bytes(), (tmp_path / "pem").read_bytes()

    def then(address: str) -> None:
        assert _live(address, pem, key, pem) == b"\x08\x01"
        with pytest.raises(grpc.RpcError):
            _live(address, pem)

    _over_tls(tmp_path, ["--grpc-use-ssl-mutual=true", f"--grpc-root-cert={tmp_path}/pem"], then)
