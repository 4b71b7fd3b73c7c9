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

import numpy as np
import pytest

from edge_serve import Server
from edge_serve.in_process.session import AsyncSession
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
    """Measures the longest turn of the loop, in seconds of its thread's CPU time."""

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
        pytest.param("echo/generate", {"X": [1.25] * COUNT}, 1, marks=pytest.mark.slow),
        pytest.param("stream/generate_stream", {"X": [1.25] * COUNT}, 2, marks=pytest.mark.slow),
    ],
    ids=["infer", "generate", "generate_stream"],
)
def test_large_json_is_read_and_written_in_codec_processes(
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


#: answers with one element after `execute` has returned, from a thread of its own
LATE = """
import threading, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request, request.get_response_sender())).start()

    def answer(self, request, sender):
        time.sleep(0.1)
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x[-1:] + len(x))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DECOUPLED = CONFIG + "model_transaction_policy { decoupled: true }"
OVER_LATE = """
platform: "ensemble"
input { name: "X" data_type: TYPE_FP64 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP64 dims: [ -1 ] }
ensemble_scheduling { step {
  model_name: "late" model_version: -1
  input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" }
} }
"""


def test_large_inputs_of_a_decoupled_model_do_not_travel_in_the_frame(tmp_path: Path) -> None:
    python_model(tmp_path, "late", LATE, DECOUPLED)
    (tmp_path / "over" / "1").mkdir(parents=True)
    (tmp_path / "over" / "config.pbtxt").write_text(OVER_LATE)
    large = np.arange(8 << 20, dtype=np.float64)  # 64 MiB

    async def ask(server: AsyncSession, model: str) -> tuple[float, float]:
        watch = Watch()
        (outputs,) = [outputs async for outputs in server.stream(model, {"X": large})]
        watch.stop()
        return watch.longest, float(outputs["Y"][0])

    async def story() -> None:
        async with Server(tmp_path) as server:
            for model in ("late", "over"):
                found = [await ask(server, model) for _ in range(3)]
                assert {answer for _, answer in found} == {2.0 * len(large) - 1}
                assert min(longest for longest, _ in found) < 0.005, (model, found)
            arena = server._service.lookup("late", "").arena
            assert arena is not None
            assert arena.used_bytes == 0  # released with the last response

    asyncio.run(story())
