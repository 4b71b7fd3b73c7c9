"""Calls between models follow the rules of requests: queues, sequences, ensembles, shutdown."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton

from tests.server.bls_models import COUNT, DECOUPLED, DOUBLE, PATIENT, model
from tests.server.running import Running, running
from tests.server.test_bls import metric, said, until

pytestmark = pytest.mark.slow  # deadlines and circles of calls

SLOWLY = """
    def execute(self, requests):
        open(os.environ["BLS_SIGNS"] + "/started", "w").close()
        found = []
        for _ in range(4):
            found.append(answer(ask("double", 3).exec()))
            time.sleep(0.1)
        return [text(found)]
"""


def test_accepted_requests_may_call_until_they_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLS_SIGNS", str(tmp_path))
    root = tmp_path / "models"
    model(root, "double", DOUBLE, output="Y")
    model(root, "asks", SLOWLY)
    found: list[object] = []
    with running(f"--model-repository={root}") as server:
        client = threading.Thread(target=lambda: found.append(said(server, "asks")))
        client.start()
        until(tmp_path / "started")
        assert server.stop(signal.SIGTERM) == 0
        client.join()
    assert found == [[[[6]] * 4]]


TIMEOUTS = """
    async def execute(self, requests):
        calls = [ask("slow", n, timeout=n).async_exec() for n in (0, 1, 0)]
        return [text([answer(found) for found in await asyncio.gather(*calls)])]
"""
SLOW = DOUBLE.replace("        answers = []", "        time.sleep(0.2)\n        answers = []")
QUEUE = """dynamic_batching {
  default_queue_policy { allow_timeout_override: true default_timeout_microseconds: 60000000 }
}"""


def test_a_call_times_out_in_the_queue(server: Running) -> None:
    (found,) = said(server, "times_out")
    assert (found[0], found[2]) == ([0], [0])
    assert found[1][1].endswith("Request timeout expired")


ADDS = """
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        answers = []
        for request in requests:
            key, flags = request.correlation_id(), request.flags()
            start = flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            self.sums[key] = (0 if start else self.sums[key]) + int(x[0])
            y = pb_utils.Tensor("Y", np.array([self.sums[key]], np.int32))
            answers.append(pb_utils.InferenceResponse([y]))
        return answers
"""
SEQUENCES = """
    def execute(self, requests):
        found = []
        for flags, value in ((1, 10), (0, 5), (2, 1)):
            for key in (7, 8):
                found.append(answer(ask("adds", value + key, correlation_id=key, flags=flags).exec()))
        lost = answer(ask("adds", 1, correlation_id=9).exec())
        return [text(found, lost)]
"""


def test_calls_make_sequences(server: Running) -> None:
    found, lost = said(server, "makes_sequences")
    assert found == [[17], [18], [29], [31], [37], [40]]
    assert lost[0] == 1
    assert "must specify the START flag on the first request of the sequence" in lost[1]


ENSEMBLE = """
platform: "ensemble"
max_batch_size: 0
input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_INT32 dims: [ -1 ] }
ensemble_scheduling {
  step { model_name: "double" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "A" } }
  step { model_name: "double" model_version: -1 input_map { key: "X" value: "A" } output_map { key: "Y" value: "Y" } }
}
"""
PASSES = """
    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()
        return [pb_utils.InferenceResponse(ask("both", x + 0).exec().output_tensors())]
"""


@pytest.mark.parametrize("count", [3, 500_000])
def test_an_ensemble_is_called(server: Running, count: int) -> None:
    x = np.arange(count, dtype=np.int32)
    with triton.InferenceServerClient(server.url) as client:
        given = triton.InferInput("X", [count], "INT32")
        given.set_data_from_numpy(x)
        np.testing.assert_array_equal(x * 4, client.infer("passes", [given]).as_numpy("Y"))
        end = time.monotonic() + 10
        while metric(server, "edge_serve_tensor_memory_used_bytes"):
            assert time.monotonic() < end, "tensor memory was never given back"
            time.sleep(0.02)


THREADS = """
    def execute(self, requests):
        found = [None] * 8

        def work(index):
            size = 3 if index % 2 else 30000
            calls = [ask("double", np.full(size, n + index)).exec() for n in range(20)]
            found[index] = all(answer(call) == [2 * (n + index)] * size for n, call in enumerate(calls))

        threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [text(found)]
"""


def test_threads_of_a_model_call_at_once(server: Running) -> None:
    assert said(server, "threads") == [[True] * 8]


BACKGROUND = """
    def initialize(self, args):
        self.found = []

    def execute(self, requests):
        self.thread = threading.Thread(target=lambda: self.found.append(answer(ask("patient", 1).exec())))
        self.thread.start()
        return [text("started")]

    def finalize(self):
        self.thread.join(20)
        print("finalize:", self.found)
"""


def test_a_model_that_is_unloaded_is_answered_what_it_still_waits_for(server: Running, signs: Path) -> None:
    said(server, "background")
    until(signs / "started")
    assert server.post("/v2/repository/models/background/unload")[0] == 200
    server.wait_for_log(r"CANCELLED: 7>, 'the model that called has been closed'\]\]")
    until(signs / "cancelled")


CALLS_IN_BACKGROUND = """
    def initialize(self, args):
        self.ends = threading.Event()
        self.thread = threading.Thread(target=self.call)

    def execute(self, requests):
        self.thread.start()
        return [text("started")]

    def call(self):
        while not self.ends.wait(0.001):
            ask("double", np.zeros(50_000)).exec()

    def finalize(self):
        time.sleep(0.1)
        self.ends.set()
        self.thread.join(20)
        print("finalize: it has ended")
"""


def test_a_thread_that_calls_with_large_tensors_does_not_cut_off_the_end_of_its_model(server: Running) -> None:
    said(server, "calls_in_background")
    assert server.post("/v2/repository/models/calls_in_background/unload")[0] == 200
    server.wait_for_log("finalize: it has ended")
    assert "was killed" not in server.log()


STREAMS = """
    async def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            stream = await ask("count", 3).async_exec(decoupled=True)
            for found in stream:
                if found.output_tensors():
                    (doubled,) = await asyncio.gather(ask("double", answer(found)).async_exec())
                    said = np.array([b"%d" % answer(doubled)[0]], object)
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", said)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_a_decoupled_model_passes_on_what_another_streams(server: Running) -> None:
    for _ in range(3):
        status, body = server.post("/v2/models/streams/generate_stream", {"X": [1]})
        assert status == 200, body
        assert re.findall(rb'"TEXT":"(.*?)"', body) == [b"0", b"2", b"4"]


@pytest.fixture(scope="module")
def signs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("signs")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, signs: Path) -> Iterator[Running]:
    """One server for all tests but that of the shutdown."""
    root = tmp_path_factory.mktemp("models")
    model(root, "double", DOUBLE, output="Y", instances=2)
    model(root, "count", COUNT, output="Y", more=DECOUPLED)
    model(root, "patient", PATIENT, output="Y")
    model(root, "slow", SLOW, output="Y", more=QUEUE)
    model(root, "adds", ADDS, output="Y", instances=2, more="sequence_batching { }")
    (root / "both" / "1").mkdir(parents=True)
    (root / "both" / "config.pbtxt").write_text(ENSEMBLE)
    model(root, "times_out", TIMEOUTS)
    model(root, "makes_sequences", SEQUENCES)
    model(root, "passes", PASSES, output="Y")
    model(root, "threads", THREADS)
    model(root, "background", BACKGROUND)
    model(root, "calls_in_background", CALLS_IN_BACKGROUND)
    model(root, "streams", STREAMS, more=DECOUPLED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BLS_SIGNS", str(signs))
        with running(f"--model-repository={root}", "--model-control-mode=explicit", "--load-model=*") as made:
            yield made
