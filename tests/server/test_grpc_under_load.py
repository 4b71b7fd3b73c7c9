"""Ten thousand bad clients of a secured gRPC door: garbage below, in and above TLS, wrong roles, slow ones."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from hpack import Encoder

from edge_serve.protocol.grpc import grpc_service_pb2 as pb
from tests.server.load import Load, busy
from tests.server.running import PATIENCE, Running, python_model, running
from tests.server.secured import Keys
from tests.server.test_doors_under_load import SINK, SINK_CONFIG, SOURCE, SOURCE_CONFIG
from tests.server.traces import Traces

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
INFER = "/inference.GRPCInferenceService/ModelInfer"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


SETTINGS = frame(4, 0, 0, b"")


def question(model: str, size: int) -> bytes:
    made = pb.ModelInferRequest(model_name=model, raw_input_contents=[bytes(size)])
    made.inputs.add(name="IN", datatype="UINT8", shape=[size])
    return made.SerializeToString()


def begun(model: str, size: int, token: str, path: str = INFER) -> bytes:
    """All that a client sends for a call, but not necessarily all of it at once."""
    fields = [(":method", "POST"), (":scheme", "https"), (":path", path), (":authority", "x"), ("te", "trailers"),
              ("content-type", "application/grpc"), ("authorization", f"Bearer {token}")]  # fmt: skip
    message = question(model, size)
    message = struct.pack(">BI", 0, len(message)) + message
    pieces = [message[at : at + 16_384] for at in range(0, len(message), 16_384)]
    data = b"".join(frame(0, int(number == len(pieces)), 1, piece) for number, piece in enumerate(pieces, 1))
    return PREFACE + SETTINGS + frame(1, 4, 1, Encoder().encode(fields)) + data


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys.made(tmp_path)


@pytest.fixture
def server(tmp_path: Path, keys: Keys) -> Iterator[Running]:
    root = tmp_path / "models"
    python_model(root, "sink", SINK, SINK_CONFIG)
    python_model(root, "source", SOURCE, SOURCE_CONFIG)
    flags = [*keys.grpc_flags, f"--token-file={tmp_path / 'tokens'}", "--anonymous-role=read"]
    with running(f"--model-repository={root}", *flags, "--tls-handshake-timeout-secs=5") as started:
        yield started


class BadClients:
    """Makes trouble; some of it stays for a while."""

    def __init__(self, server: Running, keys: Keys, seed: int) -> None:
        self.port = int(server.wait_for_log(r"gRPC on 127\.0\.0\.1:(\d+)")[1])
        self.keys = keys
        self.dice = random.Random(seed)
        self.context = keys.authority.client(alpn="h2")
        self.staying: list[socket.socket] = []
        credentials = grpc.ssl_channel_credentials(keys.authority.root.read_bytes())
        self.channel = grpc.secure_channel(f"localhost:{self.port}", credentials)
        self.call = self.channel.unary_unary(INFER)

    def run(self, count: int) -> None:
        for _ in range(count):
            kind = self.dice.randrange(100)
            if kind < 50:
                self.wrong_role()
            elif kind < 75:
                self.no_tls()
            else:
                self.bad_frames()
            while len(self.staying) > 40:
                self.staying.pop(0).close()
        for sock in self.staying:
            sock.close()
        self.channel.close()

    def wrong_role(self) -> None:
        token = self.dice.choice(["", "Bearer wrong", "Basic eDp5", f"Bearer {self.keys.tokens['read']}"])
        metadata = (("authorization", token),) if token else ()
        size = self.dice.choice([10, 10, 10, 200_000])
        with pytest.raises(grpc.RpcError) as raised:
            self.call(question("sink", size), metadata=metadata, timeout=PATIENCE)
        known = token.endswith(self.keys.tokens["read"])
        code = grpc.StatusCode.PERMISSION_DENIED if known else grpc.StatusCode.UNAUTHENTICATED
        assert raised.value.code() is code, raised.value

    def no_tls(self) -> None:
        sock = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        data = [b"", PREFACE + SETTINGS, self.dice.randbytes(500), b"\x16\x03\x01\x40\x00" + self.dice.randbytes(9000)]
        with contextlib.suppress(OSError):
            sock.sendall(self.dice.choice(data))
        self.leave(sock)

    def bad_frames(self) -> None:
        """Behind a good handshake: bytes that are no HTTP/2, frames that make no sense, calls that stop in the middle,
        and answers that are never read."""
        plain = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        sock = self.context.wrap_socket(plain, server_hostname="localhost")
        dice = self.dice
        token = self.keys.tokens["infer"]
        model = dice.choice(["sink", "source"])
        whole = begun(model, dice.choice([100, 100_000]), token)
        changed = bytearray(whole)
        for _ in range(dice.randrange(1, 5)):
            changed[dice.randrange(len(changed))] = dice.randrange(256)
        data = [
            dice.randbytes(2000),
            PREFACE + frame(dice.randrange(12), dice.randrange(256), dice.randrange(4), dice.randbytes(50)),
            PREFACE + SETTINGS + b"".join(
                frame(dice.randrange(12), dice.randrange(256), dice.randrange(9), dice.randbytes(8)) for _ in range(20)
            ),
            bytes(changed),
            whole[: dice.randrange(len(whole))],
            begun("source", 100, token),
            begun("none", 100, token, "/none/none"),
        ]  # fmt: skip
        with contextlib.suppress(OSError):
            sock.sendall(dice.choice(data))
        self.leave(sock)

    def leave(self, sock: socket.socket) -> None:
        kind = self.dice.randrange(3)
        if kind == 0:
            self.staying.append(sock)
            return
        if kind == 1 and not isinstance(sock, ssl.SSLSocket):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()


def good(server: Running, keys: Keys, load: Load) -> None:
    port = server.wait_for_log(r"gRPC on 127\.0\.0\.1:(\d+)")[1]
    credentials = grpc.ssl_channel_credentials(keys.authority.root.read_bytes())
    metadata = (("authorization", f"Bearer {keys.tokens['infer']}"),)
    with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
        call = channel.unary_unary(INFER)
        while not load.stop.is_set():
            failure = None
            try:
                answer = pb.ModelInferResponse.FromString(
                    call(question("sink", 1000), metadata=metadata, timeout=PATIENCE)
                )
                assert struct.unpack("<q", answer.raw_output_contents[0]) == (1000,)
            except (grpc.RpcError, AssertionError) as error:
                failure = error
            with load.lock:
                load.answered += 1
                if failure is not None:
                    load.failures.append(failure)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_bad_clients_of_a_secured_grpc_door(server: Running, keys: Keys) -> None:
    load = Load()
    BadClients(server, keys, seed=1).run(1_000)
    before = Traces.at_rest(server)
    busy(load, [lambda: good(server, keys, load)] * 2, lambda: BadClients(server, keys, seed=2).run(10_000))
    Traces.at_rest(server)
    after = before.settled(server)
    log = server.log()
    assert load.failures[:3] == [], log[-3000:]
    assert load.answered > 100
    assert threading.active_count() < 50
    assert before.pids == after.pids
    assert before.files == after.files
    assert before.worker_files == after.worker_files
    assert after.shared_memory <= before.shared_memory
    assert after.tensor_memory == 0
    assert after.resident < before.resident + (16 << 20)
    assert "Traceback" not in log
