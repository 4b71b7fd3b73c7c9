"""Requests in flight, the age of the oldest batch, errors of clients, and totals that only grow, of a real server."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from edge_serve.observe.status.report import report
from tests.server.running import ADD_SUB, PATIENCE, Running, python_model, running
from tests.supervision.manager import mailbox, supervised

HANG = ADD_SUB.replace("        replies = []", "        import time\n        while True: time.sleep(0.1)")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Models `good` and `hang`, of which one has got a request that it never answers; loaded on request."""
    models = tmp_path_factory.mktemp("models")
    python_model(models, "good")
    python_model(models, "hang", HANG)
    flags = ("--model-control-mode=explicit", "--load-model=*", "--allow-grpc=true", "--grpc-port=0")
    with running(f"--model-repository={models}", *flags, "--exit-timeout-secs=20") as started:
        asking = threading.Thread(target=ask_in_vain, args=(started,), daemon=True)
        asking.start()
        wait_for(started, lambda document: row(document, "hang")["in_flight"] == 1)
        yield started
        if started.process.poll() is None:
            end_at_once(started, signal.SIGTERM)


def end_at_once(server: Running, number: signal.Signals) -> None:
    """As a second signal does."""
    server.process.send_signal(number)
    server.wait_for_log(f"{number.name}: draining")
    server.process.send_signal(number)
    assert server.process.wait(PATIENCE) == 1


def ask_in_vain(server: Running) -> None:
    try:
        server.add_sub("hang")
    except (OSError, ValueError):
        return  # the server ended


def status(server: Running) -> dict[str, Any]:
    code, body = server.get("/edge-serve/status")
    assert code == 200
    document: dict[str, Any] = json.loads(body)
    return document


def row(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (one for one in document["models"] if one["name"] == name)
    return dict(found)


def wait_for(server: Running, wanted: Callable[[dict[str, Any]], bool], seconds: float = PATIENCE) -> dict[str, Any]:
    end = time.monotonic() + seconds
    while not wanted(document := status(server)):
        assert time.monotonic() < end, document
        time.sleep(0.05)
    return document


def metrics(server: Running) -> dict[str, float]:
    """Series of the metrics page -> value."""
    text = server.get("/metrics", server.metrics)[1].decode()
    return {series: float(value) for series, value in re.findall(r"^(edge_serve_\S+) (\S+)$", text, re.MULTILINE)}


def shown(server: Running) -> str:
    """Return the output of `edge-serve status`."""
    command = [sys.executable, "-m", "edge_serve", "status", "--url", server.url]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE).stdout


def test_a_request_that_is_not_answered_is_in_flight_and_its_batch_grows_old(server: Running) -> None:
    before = row(status(server), "hang")
    after = row(wait_for(server, lambda now: row(now, "hang")["oldest_batch_seconds"] > 0.3), "hang")
    page = metrics(server)

    assert (after["in_flight"], after["pending"]) == (1, 0)
    assert after["oldest_batch_seconds"] > before["oldest_batch_seconds"]
    assert row(status(server), "good")["oldest_batch_seconds"] is None
    assert page['edge_serve_requests_in_flight{model="hang",version="1"}'] == 1
    assert page['edge_serve_requests_in_flight{model="good",version="1"}'] == 0
    assert page['edge_serve_oldest_batch_seconds{model="hang",version="1"}'] > after["oldest_batch_seconds"]
    assert page['edge_serve_oldest_batch_seconds{model="good",version="1"}'] == 0


@pytest.mark.slow
def test_a_model_that_hangs_is_called_busy_within_15_seconds(server: Running) -> None:
    document = wait_for(server, lambda now: row(now, "hang")["condition"] == "busy", 15)

    assert row(document, "hang")["reason"].startswith("a batch has been running for 1")
    assert row(document, "hang")["reason"].endswith(" s; requests in flight: 1")
    assert document["server"]["state"] == "ready"
    (line,) = (line for line in shown(server).splitlines() if line.startswith("hang "))
    assert re.search(r" busy .* 1\d s .*a batch has been running for 1\d s; requests in flight: 1$", line)


def test_requests_that_are_wrong_are_counted_for_their_model(server: Running) -> None:
    name, wrong = "good", {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 3], "data": [1, 2, 3]}]}
    before = row(status(server), name)["client_errors"]
    for path in ("infer", "generate", "versions/7/infer"):
        assert server.post(f"/v2/models/{name}/{path}", wrong)[0] in (400, 404)
    large = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 40_000], "data": [1] * 40_000}]}
    assert server.post(f"/v2/models/{name}/infer", large)[0] == 400  # a codec process reads it
    assert server.post(f"/v2/models/{name}/infer", {})[0] == 500  # as Triton
    assert server.post(f"/v2/models/{name}/infer", {"inputs": [], "parameters": 7, "id": "x" * 40_000})[0] == 500
    assert server.post("/v2/models/nothere/infer", wrong)[0] == 404
    assert server.get("/v2/models/good/versions/7")[0] == 404
    with triton.InferenceServerClient(server.wait_for_log(r"gRPC on (\S+)")[1]) as client:
        for version in ("", "7"):
            with pytest.raises(InferenceServerException):
                client.infer(name, [tensor("INPUT0", 3)], version)
        answers: list[Any] = []
        client.start_stream(lambda result, error: answers.append(error or result))
        client.async_stream_infer(name, [tensor("INPUT0", 3)])
        client.async_stream_infer(name, [tensor("INPUT0", 16), tensor("INPUT1", 16)])
        client.async_stream_infer(name, [tensor("INPUT0", 3), tensor("INPUT1", 16)])
        client.stop_stream()

    assert [isinstance(answer, Exception) for answer in answers] == [True, False, True]
    assert row(status(server), name)["client_errors"] == before + 10
    assert set(row(status(server), name)["totals"]["failures"].values()) == {0}
    page = metrics(server)
    assert page['edge_serve_client_errors_total{model="good",version="1"}'] == before + 10
    assert not any("nothere" in series for series in page)


def tensor(name: str, size: int) -> triton.InferInput:
    made = triton.InferInput(name, [1, size], "INT32")
    made.set_data_from_numpy(np.ones((1, size), np.int32))
    return made


def test_totals_go_on_when_a_model_is_unloaded_and_loaded_again(server: Running) -> None:
    seen = [totals(server)]
    for _ in range(3):
        assert server.add_sub("good")[0] == 200
    assert server.post("/v2/models/good/infer", {"inputs": []})[0] == 400
    seen.append(totals(server))
    assert server.post("/v2/repository/models/good/unload")[0] == 200
    seen.append(totals(server))
    assert server.post("/v2/repository/models/good/load")[0] == 200
    assert server.add_sub("good")[0] == 200
    seen.append(totals(server))

    first, used, unloaded, again = seen
    assert used == (first[0] + 3, first[1] + 1)
    assert unloaded == used
    assert again == (first[0] + 4, first[1] + 1)
    assert row(status(server), "good")["totals"]["requests"] == 1
    assert any(f"{again[0]} in all, 0 failed, 1 in flight" in line for line in report(None, status(server)))


def totals(server: Running) -> tuple[int, int]:
    document = status(server)
    return document["totals"]["requests"], document["totals"]["client_errors"]


def test_a_stop_names_the_model_that_it_waits_for_and_a_second_ctrl_c_ends_it(server: Running) -> None:
    workers = server.workers()
    time.sleep(1.0)  # the age of a batch is told from one second on; alone, this test would begin earlier
    server.process.send_signal(signal.SIGINT)
    begun = time.monotonic()
    server.wait_for_log(r"SIGINT: draining, at most 20 s")
    told = server.wait_for_log(r"waiting at most (\d+) s more for (.*)$")

    assert time.monotonic() - begun < 2.0  # half a second, on a machine that is not shared
    assert int(told[1]) in (19, 20)
    expected = r"hang version 1 \(1 request, its batch has been running for \d+ s\); press Ctrl-C again to end at once"
    assert re.fullmatch(expected, told[2])

    assert status(server)["server"]["reason"].startswith("waiting for hang version 1 (1 request, ")

    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(5) == 1
    assert re.search(r"SIGINT again: ending now; not answered: hang version 1 \(1 request, ", server.log())
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


@pytest.mark.slow
def test_systemd_and_the_last_line_of_the_log_name_it_too(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "hang", HANG)
    flags = (f"--model-repository={tmp_path / 'models'}", "--exit-timeout-secs=7")
    with mailbox(tmp_path / "notify") as box, supervised(box, *flags) as server:
        box.wait_for(lambda message: "READY" in message)
        server.http = int(server.wait_for_log(r"HTTP on 127\.0\.0\.1:(\d+)")[1])
        threading.Thread(target=ask_in_vain, args=(server,), daemon=True).start()
        wait_for(server, lambda document: row(document, "hang")["in_flight"] == 1)
        time.sleep(1)
        server.process.send_signal(signal.SIGTERM)
        told = [box.wait_for(lambda message: message.get("STATUS", "").startswith("waiting ")) for _ in range(2)]
        assert server.process.wait(PATIENCE) == 1
        log = server.log()

    first, second = (message["STATUS"] for message in told)
    name = r"hang version 1 \(1 request, its batch has been running for {} s\)"
    assert re.fullmatch(r"waiting at most [67] s more for " + name.format("[12]"), first)
    assert re.fullmatch(r"waiting at most [12] s more for " + name.format("[67]"), second)
    assert "; a second SIGTERM ends the server at once\n" in log
    assert re.search(
        r"after 7 s there still were 1 busy model version\(s\): " + name.format(r"\d+") + " and 1 connection"
        ".*; raise --exit-timeout-secs", log,
    )  # fmt: skip


def test_a_stop_does_not_wait_for_a_stream_that_a_client_has_left_open(tmp_path: Path) -> None:
    """All of it is answered, so the stop is clean; the client is told."""
    python_model(tmp_path, "good")
    with running(f"--model-repository={tmp_path}", "--allow-grpc=true", "--grpc-port=0") as server:
        client = triton.InferenceServerClient(server.wait_for_log(r"gRPC on (\S+)")[1])
        answers: list[Any] = []
        client.start_stream(lambda result, error: answers.append(error or result))
        client.async_stream_infer("good", [tensor("INPUT0", 16), tensor("INPUT1", 16)])
        end = time.monotonic() + PATIENCE
        while not answers and time.monotonic() < end:
            time.sleep(0.01)

        assert server.stop() == 0, "1 = a connection was cut off"
        assert "all requests answered" in server.log_path.read_text()
        client.close()
    assert [isinstance(answer, InferenceServerException) for answer in answers] == [False, True]
    assert "shutting down" in str(answers[1])
