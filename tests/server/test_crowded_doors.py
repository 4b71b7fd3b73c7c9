"""One host opens all the connections that a server has: others are still served (FINDINGS S7)."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.server.running import PATIENCE, Running, python_model, running

LIMIT = 64


@contextlib.contextmanager
def crowd(port: int, count: int, say: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connections from 127.0.0.2, which is not where the tests' other clients come from."""
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(count):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE, ("127.0.0.2", 0)))
            sock.sendall(say)
            sockets.append(sock)
        yield sockets


def serving(models: Path, *flags: str) -> contextlib.AbstractContextManager[Running]:
    """A server over these models; the doors need none."""
    return running(f"--model-repository={models}", *flags)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of `LIMIT` connections at each door."""
    flags = (f"--http-max-connections={LIMIT}", f"--grpc-max-connections={LIMIT}", "--allow-grpc=true", "--grpc-port=0")
    with serving(tmp_path_factory.mktemp("models"), *flags) as server:
        yield server


def ask(port: int, keep: int = 1) -> list[int]:
    """The statuses of `keep` requests on one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        statuses = []
        for _ in range(keep):
            connection.request("GET", "/v2/health/live")
            answer = connection.getresponse()
            answer.read()
            statuses.append(answer.status)
        return statuses
    finally:
        connection.close()


@pytest.mark.parametrize("say", [b"", b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /v2/he"])
def test_idle_connections_of_one_address_make_room_for_others(small: Running, say: bytes) -> None:
    with crowd(small.http, LIMIT + 10, say):
        for _ in range(10):
            assert ask(small.http, keep=3) == [200, 200, 200]


def test_a_crowd_in_tls_handshakes_makes_room_for_others(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    pair = Authority(tmp_path).issue()
    flags = ["--http-use-ssl=true", f"--http-server-cert={pair.certificate}", f"--http-server-key={pair.key}"]
    with (
        serving(tmp_path / "models", f"--http-max-connections={LIMIT}", *flags) as server,
        crowd(server.http, LIMIT + 10),
        socket.create_connection(("127.0.0.1", server.http), PATIENCE) as plain,
    ):
        plain.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 400 " in plain.recv(1000).partition(b"\r\n")[0]  # it was let in: the answer is about TLS


def test_a_request_under_way_is_never_given_up_for_a_newcomer(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    slow = (
        "import os, time, triton_python_backend_utils as pb_utils, numpy\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        f"        while not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
        "        zeros = numpy.zeros((1, 16), numpy.int32)\n"
        "        outputs = [pb_utils.Tensor('OUTPUT0', zeros), pb_utils.Tensor('OUTPUT1', zeros)]\n"
        "        return [pb_utils.InferenceResponse(outputs) for _ in requests]\n"
    )
    python_model(tmp_path / "models", "m", slow)
    data = ",".join("1" * 16)
    tensor = '{"name":"INPUT%d","datatype":"INT32","shape":[1,16],"data":[' + data + "]}"
    body = ('{"inputs":[' + tensor % 0 + "," + tensor % 1 + "]}").encode()
    infer = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with (
        serving(tmp_path / "models", "--http-max-connections=4") as server,
        crowd(server.http, 1, infer) as (busy,),
        crowd(server.http, 12),
    ):
        assert ask(server.http) == [200]
        gate.touch()
        assert busy.recv(100).startswith(b"HTTP/1.1 200")


def test_a_connection_that_never_says_anything_is_closed(tmp_path: Path) -> None:
    flags = ["--http-head-timeout-secs=1", "--http-idle-timeout-secs=300"]
    with serving(tmp_path, *flags) as server, crowd(server.http, 1) as (silent,):
        began = time.monotonic()
        assert silent.recv(100) == b""
        assert time.monotonic() - began < PATIENCE / 2


def test_an_address_has_its_connections_at_all_ports_together(tmp_path: Path) -> None:
    with serving(tmp_path, "--max-connections-per-address=3") as server, crowd(server.metrics, 3):
        for port in (server.http, server.metrics):
            with crowd(port, 1) as (one_more,):
                assert b" 503 " in one_more.recv(1000).partition(b"\r\n")[0]


def test_scrapes_go_on_beside_a_crowd_at_the_metrics_port(tmp_path: Path) -> None:
    with serving(tmp_path) as server, crowd(server.metrics, LIMIT + 10):
        assert ask(server.metrics) == [200]


def test_idle_grpc_connections_of_one_address_make_room_for_others(small: Running) -> None:
    grpc = pytest.importorskip("grpc")
    greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
    port = int(small.wait_for_log(r"gRPC on \S+:(\d+)")[1])
    with crowd(port, LIMIT + 10, greeting), grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        assert live(b"", timeout=PATIENCE) == b"\x08\x01"
