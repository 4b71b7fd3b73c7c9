"""The loop does nothing for long, however large the JSON is that comes and goes."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
from pathlib import Path

import pytest

from edge_serve import Server
from tests.server.running import python_model

COUNT = 300_000
ECHO = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        found = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]) for x in found]
"""
STREAM = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            sender = request.get_response_sender()
            for _ in range(2):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_FP64 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP64 dims: [ -1 ] }
"""
INFER = {"inputs": [{"name": "X", "datatype": "FP64", "shape": [COUNT], "data": [1.25] * COUNT}]}


class Watch:
    """What the longest turn of the loop took of its thread's CPU time, in seconds."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._last = time.thread_time()
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        now = time.thread_time()
        self.longest = max(self.longest, now - self._last)
        self._last = now
        self._handle = self._loop.call_later(0.0005, self._turn)

    def stop(self) -> None:
        self._handle.cancel()


@pytest.mark.parametrize(
    ("path", "body", "answers"),
    [
        ("echo/infer", INFER, 1),
        ("echo/generate", {"X": [1.25] * COUNT}, 1),
        ("stream/generate_stream", {"X": [1.25] * COUNT}, 2),
    ],
    ids=["infer", "generate", "generate_stream"],
)
def test_large_json_is_read_and_written_elsewhere(
    tmp_path: Path, path: str, body: dict[str, object], answers: int
) -> None:
    python_model(tmp_path, "echo", ECHO, CONFIG)
    python_model(tmp_path, "stream", STREAM, CONFIG + "model_transaction_policy { decoupled: true }")
    text = json.dumps(body).encode()
    before = time.thread_time()
    json.loads(text)
    to_read = time.thread_time() - before
    found: list[tuple[int, bytes]] = []

    async def story() -> float:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        async with Server(tmp_path, allow_http=True, http_address="127.0.0.1", http_port=port):
            client = threading.Thread(target=lambda: found.append(_post(port, f"/v2/models/{path}", text)))
            watch = Watch()
            client.start()
            while client.is_alive():
                await asyncio.sleep(0.01)
            watch.stop()
            return watch.longest

    longest = asyncio.run(story())
    ((status, answer),) = found
    assert status == 200, answer[:500]
    assert answer.count(b"1.25") == COUNT * answers
    assert longest < to_read / 3, f"{longest * 1e3:.1f} ms at once; reading it takes {to_read * 1e3:.1f} ms"


def _post(port: int, path: str, body: bytes) -> tuple[int, bytes]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("POST", path, body)
        reply = connection.getresponse()
        return reply.status, reply.read()
