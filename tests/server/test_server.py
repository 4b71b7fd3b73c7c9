"""The whole server as a process: start, serve, break, stop."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton

from tests.forked import program
from tests.named_memory import assert_gone, named_memory
from tests.server.running import ADD_SUB, ADD_SUB_CONFIG, FREE_PORTS, PATIENCE, Running, python_model, running

SLOW = ADD_SUB.replace("        replies = []", "        import time\n        time.sleep(0.7)\n        replies = []")
STUCK = ADD_SUB.replace("        replies = []", "        import time\n        time.sleep(60)\n")
DIES = ADD_SUB.replace(
    "            a = ",
    "            first = pb_utils.get_input_tensor_by_name(request, 'INPUT0').as_numpy()[0][0]\n"
    "            if first == 666: __import__('os')._exit(7)\n"
    "            a = ",
)


@dataclass
class Models:
    """A server that loads models on request, and its repository."""

    server: Running
    root: Path

    @contextlib.contextmanager
    def loaded(self, name: str, code: str = ADD_SUB, config: str = ADD_SUB_CONFIG) -> Iterator[Running]:
        """The server while it has this model."""
        python_model(self.root, name, code, config)
        assert self.server.post(f"/v2/repository/models/{name}/load")[0] == 200, self.server.log()
        yield self.server
        assert self.server.post(f"/v2/repository/models/{name}/unload")[0] == 200
        shutil.rmtree(self.root / name)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    root = tmp_path_factory.mktemp("models")
    flags = ("--model-control-mode=explicit", "--metrics-config=histogram_latencies=true")
    with running(f"--model-repository={root}", *flags) as server:
        yield Models(server, root)


def test_a_real_client_infers_and_reads_everything(models: Models) -> None:
    with models.loaded("add_sub") as server, triton.InferenceServerClient(server.url) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("add_sub")
        a, b = np.arange(16, dtype=np.int32).reshape(1, 16), np.full((1, 16), 3, np.int32)
        inputs = [triton.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
        inputs[0].set_data_from_numpy(a)
        inputs[1].set_data_from_numpy(b, binary_data=False)
        outputs = [triton.InferRequestedOutput("OUTPUT0"), triton.InferRequestedOutput("OUTPUT1", binary_data=False)]

        result = client.infer("add_sub", inputs, outputs=outputs, request_id="7")

        np.testing.assert_array_equal(a + b, result.as_numpy("OUTPUT0"))
        np.testing.assert_array_equal(a - b, result.as_numpy("OUTPUT1"))
        assert result.get_response()["id"] == "7"
        assert client.get_inference_statistics("add_sub")["model_stats"][0]["inference_count"] == 1
        assert client.get_model_config("add_sub")["max_batch_size"] == 8

        page = server.get("/metrics", server.metrics)[1].decode()
        assert 'nv_inference_request_success{model="add_sub",version="1"} 1\n' in page


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        ((), 2, "--model-repository must be specified"),
        (("--model-repository=/no/such/place",), 1, "failed to read model repository '/no/such/place'"),
        (("--model-repository=.", "--model-control-mode=sometimes"), 2, "sometimes"),
        (("--model-repository=.", "--no-such-flag"), 2, "--no-such-flag"),
    ],
)
def test_a_bad_command_line_is_one_clear_line(arguments: tuple[str, ...], status: int, text: str) -> None:
    ended = program(*FREE_PORTS, *arguments)

    assert ended.status == status
    assert text in ended.output
    assert "Traceback" not in ended.output


def test_a_taken_port_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = f"--http-port={taken.getsockname()[1]}"
        ended = program(f"--model-repository={tmp_path}", *FREE_PORTS, port)

    assert ended.status == 1
    assert "Address already in use" in ended.output
    assert "Traceback" not in ended.output


def test_sigterm_loses_nothing_that_was_accepted(tmp_path: Path) -> None:
    python_model(tmp_path, "slow", SLOW)
    answers: list[int] = []
    with running(f"--model-repository={tmp_path}") as server:
        threads = [threading.Thread(target=lambda: answers.append(server.add_sub("slow")[0])) for _ in range(3)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + PATIENCE
        while b'pending_request_count{model="slow",version="1"} 2' not in server.get("/metrics", server.metrics)[1]:
            assert time.monotonic() < end
            time.sleep(0.02)

        status = server.stop()

        for thread in threads:
            thread.join(PATIENCE)
        assert answers == [200, 200, 200]
        assert status == 0
        assert "all requests answered" in server.log()


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    python_model(tmp_path, "stuck", STUCK)
    with running(f"--model-repository={tmp_path}") as server:
        client = socket.create_connection(("127.0.0.1", server.http))
        body = b'{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,1],"data":[1]}]}'
        body = body.replace(b"[1,1]", b"[1,16]").replace(b"[1]}", b"[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}")
        body = body[:-2] + b"," + body[len(b'{"inputs":[') :].replace(b"INPUT0", b"INPUT1")
        client.sendall(b"POST /v2/models/stuck/infer HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        end = time.monotonic() + PATIENCE
        while b'nv_inference_pending_request_count{model="stuck"' not in server.get("/metrics", server.metrics)[1]:
            assert time.monotonic() < end
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("SIGTERM: draining")
        started = time.monotonic()

        status = server.stop(signal.SIGINT)

        assert status == 1
        assert time.monotonic() - started < 20
        client.close()


def test_a_dying_worker_fails_only_its_requests_and_comes_back(tmp_path: Path) -> None:
    python_model(tmp_path, "dies", DIES)
    python_model(tmp_path, "fine")
    with running(f"--model-repository={tmp_path}") as server:
        status, answer = server.add_sub("dies", 666)

        assert status in (500, 503)
        assert "dies" in answer["error"]
        assert server.add_sub("fine")[0] == 200
        end = time.monotonic() + PATIENCE
        while server.add_sub("dies")[0] != 200:
            assert time.monotonic() < end
            time.sleep(0.02)
        page = server.get("/metrics", server.metrics)[1].decode()
        restarts = [line for line in page.splitlines() if "restarts" in line and 'model="dies"' in line]
        assert [float(line.rsplit(" ", 1)[1]) for line in restarts] == [1.0]
        end = time.monotonic() + PATIENCE
        while server.get("/v2/health/ready")[0] != 200:
            assert time.monotonic() < end
            time.sleep(0.05)


def test_unloading_ends_the_worker_and_loading_makes_a_new_one(models: Models) -> None:
    until_no_worker_runs(models.server)
    with models.loaded("m") as server:
        workers = server.workers()
        assert len(workers) == 1
        assert server.add_sub("m")[0] == 200

        assert server.post("/v2/repository/models/m/unload")[0] == 200

        assert server.add_sub("m")[0] == 404
        until_no_worker_runs(server)
        assert server.post("/v2/repository/models/m/load")[0] == 200
        assert len({*workers, *server.workers()}) == 2


def until_no_worker_runs(server: Running) -> None:
    end = time.monotonic() + PATIENCE
    while server.workers():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_model_that_says_no_is_not_ready_from_its_first_moment(models: Models) -> None:
    with models.loaded("no", ADD_SUB + "\n    def is_ready(self):\n        return False\n") as server:
        assert server.get("/v2/models/no/ready")[0] == 400
        assert server.add_sub("no")[0] == 200


def test_model_metrics_set_the_buckets_of_a_histogram(models: Models) -> None:
    more = """model_metrics { metric_control {
      metric_identifier { family: "nv_inference_first_response_histogram_ms" } histogram_options { buckets: [ 7, 8.5 ] }
    } }
    model_transaction_policy { decoupled: true }"""
    with models.loaded("first_response", config=ADD_SUB_CONFIG + more) as server:
        page = server.get("/metrics", server.metrics)[1].decode()

    lines = [line for line in page.splitlines() if line.startswith("nv_inference_first_response_histogram_ms_bucket")]
    assert [line.partition('le="')[2].partition('"')[0] for line in lines] == ["7", "8.5", "+Inf"]


def test_warm_up_runs_before_the_model_is_ready(models: Models) -> None:
    code = ADD_SUB.replace(
        "        replies = []",
        "        with open(__file__ + '.seen', 'a') as seen:\n"
        "            seen.write(f'{len(requests)} ')\n"
        "        replies = []",
    )
    value = "value { data_type: TYPE_INT32 dims: [16] zero_data: true }"
    config = (
        'backend: "python" max_batch_size: 8 input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 16 ] }, '
        '{ name: "INPUT1" data_type: TYPE_INT32 dims: [ 16 ] } ] '
        'output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] } ] '
        f"model_warmup {{ name: 'w' batch_size: 3 count: 2 inputs {{ key: 'INPUT0' {value} }} "
        f"inputs {{ key: 'INPUT1' {value} }} }}"
    )
    with models.loaded("warm", code, config) as server:
        assert (models.root / "warm/1/model.py.seen").read_text() == "3 3 "
        stats = triton.InferenceServerClient(server.url).get_inference_statistics("warm")["model_stats"][0]
        assert stats["inference_count"] == 0


def test_a_warm_up_that_fails_has_the_words_of_triton(models: Models) -> None:
    code = (
        "import triton_python_backend_utils as pb_utils\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        return [pb_utils.InferenceResponse(error=pb_utils.TritonError('too cold')) for _ in requests]\n"
    )
    config = (
        'backend: "python" input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ] '
        'output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ] '
        "model_warmup { name: 'w' batch_size: 1 "
        "inputs { key: 'X' value { data_type: TYPE_INT32 dims: 1 zero_data: true } } }"
    )
    python_model(models.root, "cold", code, config)
    status, answer = models.server.post("/v2/repository/models/cold/load")
    shutil.rmtree(models.root / "cold")

    assert (status, b"Invalid argument: failed to run warmup sample 'w': too cold; " in answer) == (400, True)


def test_kill_minus_nine_leaves_nothing_behind(tmp_path: Path) -> None:
    python_model(tmp_path, "m")
    before = named_memory()
    with running(f"--model-repository={tmp_path}") as server:
        workers = server.workers()
        assert workers
        server.stop(signal.SIGKILL)
        end = time.monotonic() + PATIENCE
        while any(Path(f"/proc/{pid}").exists() for pid in workers):
            assert time.monotonic() < end, "a worker outlived its server"
            time.sleep(0.02)
    assert_gone(named_memory() - before)
