"""A model sends more than its client reads: nothing is lost, memory stays flat, and nothing hangs."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.server.raw_http import Client, request
from tests.server.running import PATIENCE, Running, python_model, running

pytestmark = pytest.mark.slow  # clients that read slowly

#: COUNT responses of SIZE bytes, from `execute` or from a thread; for COUNT 0, the seconds that some send has taken
SENDER = """
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    since = {}

    def execute(self, requests):
        for request in requests:
            count, size = (int(tensor.as_numpy()[0]) for tensor in request.inputs())
            work = (request.get_response_sender(), count, size)
            if count and THREAD:
                threading.Thread(target=self.stream, args=work, daemon=True).start()
            else:
                self.stream(*work)

    def stream(self, sender, count, size):
        if count == 0:
            self.answer(sender, str(max((time.monotonic() - since for since in self.since.copy().values()), default=0)))
        for i in range(count):
            if sender.is_cancelled():
                print(f"cancelled after {i}")
                break
            self.since[sender] = time.monotonic()
            self.answer(sender, f"{i:08}".ljust(size, "x"))
        self.since.pop(sender, None)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def answer(self, sender, text):
        output = pb_utils.Tensor("OUT", np.array([text.encode()], dtype=np.object_))
        sender.send(pb_utils.InferenceResponse([output]))
"""
CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] }
input { name: "SIZE" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }
"""
#: the same, one response a run
RUNS = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sent = {}

    def execute(self, requests):
        for request in requests:
            name, sender = request.correlation_id(), request.get_response_sender()
            count, size = (int(tensor.as_numpy()[0, 0]) for tensor in request.inputs())
            i = self.sent[name] = self.sent.get(name, -1) + 1
            output = pb_utils.Tensor("OUT", np.array([[f"{i:08}".ljust(size, "x").encode()]], dtype=np.object_))
            if i + 1 == count or request.is_cancelled():
                sender.send(pb_utils.InferenceResponse([output]), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                continue
            sender.send(pb_utils.InferenceResponse([output]))
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
"""
#: seconds after which a send is one that waits
WAITING = 0.25


def models(root: Path) -> str:
    python_model(root, "threads", SENDER.replace("THREAD", "True"), CONFIG)
    python_model(root, "inline", SENDER.replace("THREAD", "False"), CONFIG)
    limit = 'parameters { key: "execution_timeout_ms" value { string_value: "1000" } }'
    python_model(root, "limited", SENDER.replace("THREAD", "False"), CONFIG + limit)
    python_model(root, "limited_threads", SENDER.replace("THREAD", "True"), CONFIG + limit)
    python_model(root, "runs", RUNS, CONFIG + "max_batch_size: 4 sequence_batching { iterative_sequence: true }")
    return f"--model-repository={root}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(models(tmp_path_factory.mktemp("models"))) as started:
        yield started


@contextlib.contextmanager
def streaming(server: Running, model: str, count: int, size: int = 4096) -> Iterator[Client]:
    """A client that has asked for a stream, and reads nothing yet."""
    with Client(server.http, receive_buffer=1 << 16) as client:
        body = json.dumps({"COUNT": count, "SIZE": size}).encode()
        client.send(request("POST", f"/v2/models/{model}/generate_stream", body))
        yield client


def ask(server: Running, model: str) -> float:
    """A short request to the same model."""
    status, body = server.post(f"/v2/models/{model}/generate_stream", {"COUNT": 0, "SIZE": 0})
    assert status == 200, body
    return float(json.loads(body.removeprefix(b"data: "))["OUT"])


def until_waiting(server: Running) -> None:
    """A sender of `threads` waits."""
    end = time.monotonic() + PATIENCE
    while ask(server, "threads") < WAITING:
        assert time.monotonic() < end, "the sender never waits"


def until_still(server: Running) -> None:
    """No worker computes any more."""
    workers = [psutil.Process(pid) for pid in server.workers()]
    end = time.monotonic() + PATIENCE
    spent = -1.0
    while (now := sum(sum(worker.cpu_times()[:2]) for worker in workers)) > spent + 0.01:
        assert time.monotonic() < end, "the sender never waits"
        spent = now
        time.sleep(WAITING)


def numbers(data: bytes | bytearray) -> list[int]:
    """Which responses came, in their order."""
    return [int(number) for number in re.findall(rb'"OUT":"(\d{8})', data)]


def read_all(client: Client, until: bytes = b"0\r\n\r\n") -> bytes:
    """The rest of the stream."""
    read = bytearray()
    while not read.endswith(until):
        data = client.socket.recv(1 << 20)
        if not data:
            break
        read += data
    return bytes(read)


def test_a_slow_reader_gets_everything_in_order_and_memory_stays_flat(server: Running) -> None:
    front = psutil.Process(server.process.pid)
    with streaming(server, "threads", 1) as client:
        read_all(client)  # code that only a first stream needs
    with streaming(server, "threads", 8_000) as client:  # 32 MB
        before = front.memory_info().rss
        until_waiting(server)  # by which other clients of the same model are answered
        highest = front.memory_info().rss
        data = bytearray()
        while not data.endswith(b"0\r\n\r\n"):
            data += client.socket.recv(1 << 20)
            highest = max(highest, front.memory_info().rss)
        assert numbers(data) == list(range(8_000))
        assert data.startswith(b"HTTP/1.1 200")
    assert highest - before < 12 << 20, f"{(highest - before) >> 20} MiB"


@pytest.mark.parametrize("size", [4096, 1_000_000])
def test_large_and_small_responses_are_held_in_execute_too(server: Running, size: int) -> None:
    count = 20_000_000 // size
    with streaming(server, "inline", count, size) as client:
        until_still(server)
        assert numbers(read_all(client)) == list(range(count))


def test_a_stream_is_held_through_all_of_its_runs(server: Running) -> None:
    front = psutil.Process(server.process.pid)
    with streaming(server, "runs", 1000, 20_000) as client:
        before = front.memory_info().rss
        until_still(server)
        grown = front.memory_info().rss - before
        assert numbers(read_all(client)) == list(range(1000))
    assert grown < 8 << 20, f"{grown >> 20} MiB"


def test_two_streams_of_one_model_are_held_each_by_its_own_client(server: Running) -> None:
    with streaming(server, "threads", 3000) as slow, streaming(server, "threads", 3000) as quick:
        assert numbers(read_all(quick)) == list(range(3000))
        until_waiting(server)
        assert numbers(read_all(slow)) == list(range(3000))


def test_a_pipelined_stream_is_not_held_for_the_one_before_it(server: Running) -> None:
    with streaming(server, "threads", 2000) as client:
        body = json.dumps({"COUNT": 2000, "SIZE": 4096}).encode()
        client.send(request("POST", "/v2/models/threads/generate_stream", body))
        both = read_all(client)
        while len(numbers(both)) < 4000:
            both += read_all(client)
    assert numbers(both) == [*range(2000), *range(2000)]


@pytest.mark.parametrize("model", ["threads", "inline"])
def test_a_client_that_leaves_ends_the_waiting(server: Running, model: str) -> None:
    said = server.log().count("cancelled after")
    with streaming(server, model, 20_000):
        until_waiting(server) if model == "threads" else until_still(server)
    ask(server, model)
    server.wait_for_log(rf"(?s)(cancelled after.*){{{said + 1}}}")


def test_the_time_in_which_a_client_does_not_read_is_not_the_models(server: Running) -> None:
    with streaming(server, "limited", 2000) as one, streaming(server, "limited_threads", 2000) as other:
        until_still(server)
        time.sleep(1.2)  # their execution_timeout_ms, and more
        for client in (one, other):
            assert numbers(read_all(client)) == list(range(2000))
    assert "execution_timeout_ms" not in server.log()


@pytest.mark.parametrize("model", ["threads", "inline"])
def test_a_model_whose_sender_waits_is_unloaded(tmp_path: Path, model: str) -> None:
    arguments = ("--model-control-mode=explicit", f"--load-model={model}", "--swap-drain-secs=1")
    with running(models(tmp_path), *arguments) as server, streaming(server, model, 20_000) as client:
        until_still(server)
        workers = server.workers()
        assert server.post(f"/v2/repository/models/{model}/unload")[0] == 200
        server.wait_for_log(f"model {model} version 1 unloaded")
        assert not set(workers) & set(server.workers())
        assert "was killed" not in server.log()

        came = read_all(client)
        assert numbers(came) == list(range(len(numbers(came))))
        assert f"model '{model}' version 1 was replaced or unloaded".encode() in came


@pytest.mark.parametrize("model", ["threads", "inline"])
def test_a_server_that_stops_waits_for_the_client_only_so_long(tmp_path: Path, model: str) -> None:
    with running(models(tmp_path), "--exit-timeout-secs=1") as server, streaming(server, model, 20_000):
        until_still(server)
        server.stop(signal.SIGTERM)
        assert "Traceback" not in server.log()


def test_a_server_that_stops_sends_what_was_accepted(tmp_path: Path) -> None:
    arguments = ("--model-control-mode=explicit", "--load-model=threads")
    with running(models(tmp_path), *arguments) as server, streaming(server, "threads", 5000) as client:
        until_waiting(server)
        stopping = threading.Thread(target=server.stop, args=(signal.SIGTERM,))
        stopping.start()
        assert numbers(read_all(client)) == list(range(5000))
        stopping.join(PATIENCE)
        assert server.process.returncode == 0
