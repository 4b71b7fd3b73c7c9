"""Python models that break every rule: one clear error, on that request only; the next one is answered."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from edge_serve.workers.front.output import LONGEST_LINE
from tests.server.running import PATIENCE, Running, python_model, running

pytestmark = pytest.mark.slow  # models that fail in every way

#: `deed` is a statement; the batch has one request
MODEL = """
import os, pathlib, sys, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
kept = []

def answer(value=1):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value], np.int32))])

class TritonPythonModel:
    def initialize(self, args):
        self.directory = pathlib.Path(args["model_repository"])

    def execute(self, requests):
        deed = pb_utils.get_input_tensor_by_name(requests[0], "DEED").as_numpy()[0].decode()
        scope = {"self": self, "request": requests[0], "result": RESULT}
        exec(deed, {**globals(), **scope}, scope)
        return scope["result"]
"""
CONFIG = """
backend: "python"
input { name: "DEED" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"
LIMITED = 'parameters { key: "execution_timeout_ms" value { string_value: "1000" } }'


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Running]:
    root = repository
    ordinary, streaming = MODEL.replace("RESULT", "[answer()]"), MODEL.replace("RESULT", "None")
    python_model(root, "ordinary", ordinary, CONFIG)
    python_model(root, "ordinary_limited", ordinary, CONFIG + LIMITED)
    python_model(root, "streaming", streaming, CONFIG + DECOUPLED)
    python_model(root, "streaming_limited", streaming, CONFIG + DECOUPLED + LIMITED)
    python_model(root, "bystander")
    with running(f"--model-repository={root}", "--model-control-mode=explicit", "--load-model=*") as started:
        yield started


def infer(server: Running, deed: str, model: str = "ordinary") -> tuple[int, str]:
    """Status, and the answer's value or error."""
    inputs = [{"name": "DEED", "datatype": "BYTES", "shape": [1], "data": [deed]}]
    status, body = server.post(f"/v2/models/{model}/infer", {"inputs": inputs})
    document = json.loads(body)
    return status, str(document["outputs"][0]["data"]) if status == 200 else document["error"]


def stream(server: Running, deed: str, model: str = "streaming") -> tuple[int, list[str]]:
    """Status, and the value or error of each event."""
    status, body = server.post(f"/v2/models/{model}/generate_stream", {"DEED": deed})
    events = [json.loads(event.removeprefix("data: ")) for event in body.decode().split("\n\n") if event]
    return status, [str(event.get("OUT", event.get("error"))) for event in events]


def all_is_well(server: Running) -> None:
    """Every model answers."""
    assert infer(server, "") == (200, "[1]")
    assert stream(server, "request.get_response_sender().send(answer(), FINAL)") == (200, ["1"])
    assert server.add_sub("bystander")[0] == 200


@pytest.mark.parametrize(
    ("deed", "text"),
    [
        ("result = []", "Number of InferenceResponse objects do not match the number of InferenceRequest objects."),
        ("result = [answer(), answer()]", "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:2"),
        ("result = 1", "Expected a list in the execute return"),
        ("result = [None]", "the model returned None for a request and sent no response for it"),
        ("sys.exit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("os._exit(3)", "ended with exit status 3; it is being restarted"),
        ("os.abort()", "was ended by SIGABRT in execute, /"),
        ("os.closerange(3, 64)", "it is being restarted"),
        ("def f(): return f()\nf()", "NameError"),
        (
            "import ctypes\nctypes.string_at(0)",
            "was ended by SIGSEGV in execute, /",
        ),
        ("(lambda x: [][0])(1)", "IndexError"),
    ],
)
def test_the_request_gets_an_error_and_the_next_an_answer(server: Running, deed: str, text: str) -> None:
    status, found = infer(server, deed)

    assert status == 500
    assert text in found
    all_is_well(server)


@pytest.mark.parametrize("deed", ["time.sleep(1000)", "while True: pass", "threading.Event().wait()"])
def test_a_blocked_model_is_killed_after_its_limit(server: Running, deed: str) -> None:
    status, text = infer(server, deed, "ordinary_limited")

    assert status == 500
    assert "a batch ran longer than the model's execution_timeout_ms (1000)" in text
    assert infer(server, "", "ordinary_limited") == (200, "[1]")
    all_is_well(server)


def test_a_model_that_blocks_hinders_no_other(server: Running) -> None:
    with ThreadPoolExecutor() as pool:
        blocked = pool.submit(infer, server, "time.sleep(1000)", "ordinary_limited")
        all_is_well(server)
        assert not blocked.done()
        assert blocked.result()[0] == 500


def test_a_response_after_the_final_one_is_refused_in_the_model(server: Running) -> None:
    deed = "s = request.get_response_sender()\ns.send(answer(1))\ns.send(answer(2), FINAL)\ns.send(answer(3))"

    assert stream(server, deed) == (200, ["1", "2"])
    server.wait_for_log("Unable to send response. Response sender has been closed.")
    all_is_well(server)


def test_a_stream_without_a_final_response_ends_when_the_model_drops_its_sender(server: Running) -> None:
    assert stream(server, "request.get_response_sender().send(answer(7))") == (200, ["7"])
    all_is_well(server)


def test_a_stream_that_a_model_keeps_ends_after_its_limit(server: Running) -> None:
    deed = "kept.append(request.get_response_sender())\nkept[-1].send(answer(7))"

    status, events = stream(server, deed, "streaming_limited")

    assert (status, events[0]) == (200, "7")
    assert events[1:] == [
        "model 'streaming_limited' sent 1 responses and no final one within its execution_timeout_ms (1000)"
    ]
    # the mark comes on another channel than the request, so it may come a moment later
    late = "s, end = kept.pop(), time.monotonic() + 0.5\nwhile not s.is_cancelled() and time.monotonic() < end: pass\n"
    late += "cancelled = s.is_cancelled()\ns.send(answer(8), FINAL)\n"
    late += "request.get_response_sender().send(answer(int(cancelled)), FINAL)"
    assert stream(server, late, "streaming_limited") == (200, ["1"])  # the late one went nowhere
    all_is_well(server)


@pytest.mark.parametrize(
    ("deed", "text"),
    [
        ("result = [answer()]", "must return None."),
        ("raise ValueError('no')", "ValueError: no"),
        ("sys.exit()", "SystemExit"),
        ("request.get_response_sender().send(answer(5))\nraise ValueError('no')", "ValueError: no"),
        ("os._exit(1)", "ended with exit status 1"),
    ],
)
def test_a_stream_that_fails_says_so(server: Running, deed: str, text: str) -> None:
    _, events = stream(server, deed)

    assert text in events[-1]
    all_is_well(server)


@pytest.mark.parametrize("model", ["ordinary", "streaming"])
def test_a_model_that_forks_answers_once(server: Running, repository: Path, model: str) -> None:
    """The child goes on as if it were the worker: it may not answer, and ends."""
    deed = "pid = os.fork()\nopen(self.directory / 'fork', 'a').write(f'{os.getpid()}\\n')\n"
    before = restarts(server)
    if model == "streaming":
        deed += "request.get_response_sender().send(answer(4), FINAL)"
        assert stream(server, deed) == (200, ["4"])
    else:
        assert infer(server, deed) == (200, "[1]")
    all_is_well(server)

    pids = [int(line) for line in (repository / model / "fork").read_text().split()]
    until(lambda: len(pids) > 0 and sum(psutil.pid_exists(pid) and not zombie(pid) for pid in pids) <= 1)
    assert restarts(server) == before, "the worker itself went on"


def test_a_process_that_a_model_forks_can_be_ended(server: Running) -> None:
    deed = "r, w = os.pipe()\npid = os.fork()\nif not pid: os.write(w, b'x'); time.sleep(1000)\n"
    deed += "os.read(r, 1)\nos.kill(pid, 15)\nresult = [answer(os.waitpid(pid, 0)[1])]"

    assert infer(server, deed) == (200, "[15]")


def test_a_process_that_a_model_forks_can_be_ended_at_once(server: Running) -> None:
    """`Pool.terminate` does that, and waits for ever for the one whose signal gets lost."""
    deed = "ended = 0\nfor _ in range(20):\n"
    deed += "    if not (pid := os.fork()): time.sleep(2); os._exit(0)\n"
    deed += "    os.kill(pid, 15)\n    ended += os.waitpid(pid, 0)[1] == 15\nresult = [answer(ended)]"

    assert infer(server, deed) == (200, "[20]")


@pytest.mark.parametrize("number", [2, 15])
def test_after_a_fork_the_worker_takes_no_notice_of_signals_as_before(server: Running, number: int) -> None:
    deed = f"os._exit(0) if not (pid := os.fork()) else os.waitpid(pid, 0)\nos.kill(os.getpid(), {number})"
    deed += "\nimport signal\nresult = [answer(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))]"

    assert infer(server, deed) == (200, "[0]")


def answers_by_itself(server: Running, repository: Path, model: str, code: str, deed: str) -> None:
    """Every request by one process, the worker, whose children have ended."""
    python_model(repository, model, code, CONFIG)
    assert server.post(f"/v2/repository/models/{model}/load")[0] == 200

    (worker,) = {infer(server, deed, model) for _ in range(20)}

    assert worker[0] == 200
    until(lambda: all(zombie(child.pid) for child in psutil.Process(int(worker[1].strip("[]"))).children()))
    assert server.post(f"/v2/repository/models/{model}/unload")[0] == 200


def test_a_model_that_forks_while_it_loads_answers_once(server: Running, repository: Path) -> None:
    code = MODEL.replace("RESULT", "[answer(os.getpid())]").replace(
        "        self", "        os.fork()\n        self", 1
    )
    answers_by_itself(server, repository, "forks_early", code, "")


def test_a_process_that_a_model_forks_waits_for_no_thread_that_counted(server: Running) -> None:
    deed = (
        "from edge_serve.backends import host\n"
        "f = pb_utils.MetricFamily(name='forks', description='', kind=pb_utils.MetricFamily.COUNTER)\n"
        "c = f.Metric(labels={})\nheld, go = threading.Event(), threading.Event()\n"
        "def count(host, held, go):\n    with host.lock: held.set(); go.wait()\n"
        "t = threading.Thread(target=count, args=(host, held, go))\nt.start()\nheld.wait()\n"
        "if not (pid := os.fork()): c.increment(1); os._exit(0)\n"
        "ended = os.waitpid(pid, 0)[1]\ngo.set()\nt.join()\nresult = [answer(ended)]"
    )

    assert infer(server, deed, "ordinary_limited") == (200, "[0]")


def test_a_coroutine_that_forks_answers_once(server: Running, repository: Path) -> None:
    code = MODEL.replace("RESULT", "[answer(os.getpid())]").replace("def execute", "async def execute")
    answers_by_itself(server, repository, "asynchronous", code, "os.fork()")


def test_a_model_may_start_processes(server: Running) -> None:
    deed = "import multiprocessing as m\nwith m.get_context('fork').Pool(2) as p: r = p.map(abs, [-1, -2])\n"
    deed += "result = [answer(sum(r))]"

    assert infer(server, deed) == (200, "[3]")
    all_is_well(server)


def test_a_process_that_a_model_forks_gets_an_error_when_it_calls_models(server: Running) -> None:
    deed = (
        "r, w = os.pipe()\npid = os.fork()\n"
        "if not pid:\n"
        "    q = pb_utils.InferenceRequest(model_name='bystander', requested_output_names=['OUTPUT0'], inputs=[])\n"
        "    os.write(w, q.exec().error().message().encode())\n"
        "    os._exit(0)\n"
        "os.close(w)\ntext = os.read(r, 1000).decode()\nos.waitpid(pid, 0)\nraise RuntimeError(text)"
    )

    status, text = infer(server, deed)

    assert status == 500
    assert "a process that a model forked cannot call models" in text
    all_is_well(server)


def test_a_gigabyte_of_output_is_counted_not_kept(server: Running) -> None:
    front_end = psutil.Process(server.process.pid)
    infer(server, "print('x')")
    before, size, began = front_end.memory_info().rss, len(server.log()), time.monotonic()

    assert infer(server, "for _ in range(10_000): os.write(1, b'x' * 99_999 + b'\\n')") == (200, "[1]")

    assert front_end.memory_info().rss - before < 32 << 20
    # as workers/front/output.py lets pass: on a slow machine more of them
    lines = 1000 + 200 * (time.monotonic() - began)
    assert len(server.log()) - size < lines * (LONGEST_LINE + 200)
    all_is_well(server)


def test_unload_in_the_middle_of_everything(server: Running, repository: Path) -> None:
    """Requests and streams that were accepted are answered, new ones are refused, and then the processes are gone."""
    slow = "(self.directory / 'busy').touch()\ntime.sleep(0.5)\nresult = [answer(9)]"
    dripping = "(self.directory / 'busy').touch()\ns = request.get_response_sender()\n"
    dripping += "for i in range(5): s.send(answer(i)); time.sleep(0.1)\ns.send(flags=FINAL)"
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(infer, server, slow) for _ in range(2)]
        streamed = pool.submit(stream, server, dripping)
        until(lambda: all((repository / name / "busy").exists() for name in ("ordinary", "streaming")))
        until(lambda: queued(server, "ordinary") == 1)
        workers = len(server.workers())
        unloads = [
            pool.submit(server.post, f"/v2/repository/models/{name}/unload") for name in ("ordinary", "streaming")
        ]
        until(lambda: server.get("/v2/models/ordinary/ready")[0] != 200)
        assert infer(server, "")[0] in (404, 503)
        assert [future.result()[0] for future in unloads] == [200, 200]
        assert [future.result() for future in asked] == [(200, "[9]")] * 2
        assert streamed.result() == (200, [str(i) for i in range(5)])
    until(lambda: len(server.workers()) == workers - 2)
    for name in ("ordinary", "streaming"):
        assert server.post(f"/v2/repository/models/{name}/load")[0] == 200
    all_is_well(server)


def test_a_client_that_leaves_a_stream_that_never_ends(server: Running) -> None:
    deed = "s = request.get_response_sender()\nwhile not s.is_cancelled(): s.send(answer()); time.sleep(0.01)"
    connection = http.client.HTTPConnection("127.0.0.1", server.http, timeout=PATIENCE)
    connection.request("POST", "/v2/models/streaming/generate_stream", json.dumps({"DEED": deed}))
    response = connection.getresponse()
    assert response.read(6) == b"data: "
    response.close()
    connection.close()

    all_is_well(server)  # its only instance is free again


def restarts(server: Running) -> int:
    """Of all workers, as the log tells."""
    return server.log().count("it is being restarted") + server.log().count("is back in worker")


def queued(server: Running, model: str) -> int:
    """Requests that wait for an instance."""
    _, page = server.get("/metrics", server.metrics)
    rows = [line for line in page.decode().splitlines() if f'model="{model}"' in line]
    return sum(int(float(line.rpartition(" ")[2])) for line in rows if line.startswith("nv_inference_pending"))


def zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def until(condition: Callable[[], bool]) -> None:
    """Wait for it.

    Raises:
        AssertionError: it did not become true.
    """
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def pid_of(server: Running, model: str = "ordinary") -> str:
    """The process of a model."""
    return infer(server, "result = [answer(os.getpid())]", model)[1]


def test_a_handler_of_a_signal_may_raise_between_two_batches(server: Running) -> None:
    """`TimeoutError` is an OSError, as the errors of sockets are."""
    pid = pid_of(server)
    deed = "import signal\ndef late(*_): raise TimeoutError('too slow for the handler')\n"
    deed += "signal.signal(signal.SIGALRM, late)\nsignal.setitimer(signal.ITIMER_REAL, 0.05)"

    assert infer(server, deed) == (200, "[1]")

    server.wait_for_log("ordinary:1: TimeoutError: too slow for the handler")
    assert pid_of(server) == pid


@pytest.mark.parametrize("logs", ["logging.warning", "pb_utils.Logger.log_warn"])
def test_a_process_that_a_model_forks_can_log(server: Running, logs: str) -> None:
    deed = f"import logging\nif not (pid := os.fork()): {logs}('forked: {logs}'); os._exit(0)\nos.waitpid(pid, 0)"

    assert infer(server, deed) == (200, "[1]")

    server.wait_for_log(rf"ordinary:1: WARNING forked: {logs}$")


@pytest.mark.parametrize(
    ("name", "given"), [("into_file", "filename=str(pathlib.Path(__file__).parent / 'lines'), "), ("on_stderr", "")]
)
def test_a_model_configures_logging_beside_the_servers_log(
    server: Running, repository: Path, name: str, given: str
) -> None:
    code = MODEL.replace("RESULT", "[answer()]").replace("import os", "import logging, os", 1)
    python_model(repository, name, f"{code}\nlogging.basicConfig({given}level=logging.DEBUG)", CONFIG)
    assert server.post(f"/v2/repository/models/{name}/load")[0] == 200
    deed = "for say in (logging.debug, logging.warning): say('said')\n"
    deed += "logging.basicConfig(level=logging.ERROR)\nlogging.warning('said again')\nprint('printed')"

    assert infer(server, deed, name) == (200, "[1]")

    for text in ("said again", "printed"):  # they come in different ways
        server.wait_for_log(f"{name}:1: {text}")
    lines = [line.split(f" {name}:1: ") for line in server.log().splitlines() if f" {name}:1: " in line]
    found = sorted(head[0] + " " + text for head, text in lines)
    assert found == ["I printed", "W said", "W said again"], "no line is there twice"
    if given:
        written = ["DEBUG:root:said", "WARNING:root:said", "WARNING:root:said again"]
        assert (repository / name / "1" / "lines").read_text().splitlines() == written
    assert server.post(f"/v2/repository/models/{name}/unload")[0] == 200
