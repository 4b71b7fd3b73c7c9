"""`door_settings.DoorGuards`: the settings as what the doors need."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from edge_serve.config.settings.server import ServerConfig, parse_argv
from edge_serve.door_settings import DoorGuards, http_files, http_limits
from edge_serve.errors import InvalidArgument
from edge_serve.messages.peer import LOCAL, Peer
from edge_serve.transport.http.metrics import MetricsApplication
from tests.transport.metrics_scene import page_of


def config(*argv: str) -> ServerConfig:
    return parse_argv(["--model-repository=/models", *argv], {})


def test_defaults_limit_nothing(caplog: pytest.LogCaptureFixture) -> None:
    guards = DoorGuards(config())
    assert guards.http_tls is None
    assert guards.metrics_tls is None
    assert guards.sharing.addresses.limit == 0
    assert guards.sharing.memory.limit > 64 << 20
    assert set(guards.refused().values()) == {0}
    assert caplog.records == []


def test_bodies_are_short_of_memory_while_tensors_are() -> None:
    lacks = [0]
    memory = DoorGuards(config(), lambda: lacks[0]).sharing.memory
    assert not memory.is_short(0)
    lacks[0] = 1
    assert memory.is_short(0)


@pytest.mark.parametrize(
    ("flags", "warning"),
    [
        (["--admin-access=anywhere"], "every client may load and unload models"),
        (["--http-address=0.0.0.0", "--token-file={tokens}"], "HTTP listens on 0.0.0.0 without TLS"),
        (["--grpc-address=::", "--token-file={tokens}"], "gRPC listens on :: without TLS"),
        (["--http-address=0.0.0.0"], ""),
        (["--token-file={tokens}"], ""),
        (["--admin-access=anywhere", "--token-file={tokens}"], ""),
    ],
)
def test_doors_open_wider_than_meant_are_logged(
    flags: list[str], warning: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tokens").write_text("")
    with caplog.at_level(logging.WARNING):
        DoorGuards(config(*(flag.format(tokens=tmp_path / "tokens") for flag in flags)))
    assert (warning in caplog.text) if warning else caplog.text == ""
    assert len(caplog.records) == bool(warning)


def test_files_of_tls() -> None:
    cert = ["--http-server-cert=/c", "--http-server-key=/k"]
    assert http_files(config(*cert)) is None
    optional = http_files(config("--http-use-ssl=1", *cert, "--http-root-cert=/r"))
    assert optional is not None
    assert (optional.paths, optional.demanded) == (("/c", "/k", "/r"), False)
    mutual = http_files(config("--http-use-ssl-mutual=1", *cert, "--http-root-cert=/r"))
    assert mutual is not None
    assert mutual.demanded
    with pytest.raises(InvalidArgument, match="--http-server-key"):
        http_files(config("--http-use-ssl=1", "--http-server-cert=/c"))


def test_limits_are_settings() -> None:
    limits = http_limits(
        config(
            "--http-head-timeout-secs=1", "--http-body-timeout-secs=2", "--http-write-timeout-secs=3",
            "--request-memory-wait-secs=4", "--min-body-bytes-per-sec=5", "--tls-handshake-timeout-secs=6",
            "--http-max-pipelined=7", "--http-idle-timeout-secs=0",
        )
    )  # fmt: skip
    assert (limits.head_timeout, limits.body_timeout, limits.write_timeout, limits.memory_wait) == (1, 2, 3, 4)
    assert (limits.body_rate, limits.handshake_timeout, limits.pipelined) == (5, 6, 7)
    assert limits.idle_timeout == float("inf")


def test_clients_are_distinguished_at_the_metrics_door(tmp_path: Path) -> None:
    guards = DoorGuards(config())
    metrics = MetricsApplication(page_of(b""), guards.access)
    assert metrics.for_peer(LOCAL) is not metrics.for_peer(Peer(local=False))
