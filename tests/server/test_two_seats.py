"""Models whose instances take their next batch while one runs, over HTTP, with a device that tests control."""

from __future__ import annotations

import http.client
import itertools
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.server.load import ADD_SUB_BODY, Client, Load, busy
from tests.server.raw_http import reset_on_close
from tests.server.running import ADD_SUB_CONFIG, PATIENCE, Running, running

BACKEND = Path(__file__).parents[1] / "backends/device.py"
TENSORS = ADD_SUB_CONFIG[ADD_SUB_CONFIG.index("input") :]
#: model -> its configuration
MODELS = {
    "two": "max_batch_size: 1",
    "limited": "max_batch_size: 1 " + 'parameters { key: "execution_timeout_ms" value { string_value: "300" } }',
    "full_one": 'max_batch_size: 4 dynamic_batching { } parameters { key: "seats" value { string_value: "1" } }',
    "full_two": "max_batch_size: 4 dynamic_batching { }",
}
#: longer than twelve clients take for their next requests, also on a busy machine
SLOW = 'parameters { key: "ms" value { string_value: "10" } }'


def write(root: Path, name: str, config: str) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "1/weights").touch()
    shutil.copy(BACKEND, root / name / "backend.py")
    slow = SLOW if "full" in name else ""
    (root / name / "config.pbtxt").write_text(f'backend: "device"\n{config}\n{slow}\n{TENSORS}')


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    for name, config in MODELS.items():
        write(made, name, config)
    return made


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Running]:
    """Yield a server with all models, which may be loaded again."""
    with running(f"--model-repository={root}", "--model-control-mode=explicit", "--load-model=*") as served:
        yield served


class Clients:
    """Clients of a model that send one request each."""

    _ids = itertools.count()

    def __init__(self, server: Running, model: str) -> None:
        self._server = server
        self._model = model
        self._pool = ThreadPoolExecutor(2)

    def ask(self, deed: str) -> Future[tuple[int, Any]]:
        """Send a request whose batch does `deed`, and wait until the device runs it."""
        id = f"n{next(self._ids)}"
        answer = self.send(deed, id)
        self._server.wait_for_log(f"device: {deed} {id}$")
        return answer

    def send(self, deed: str = "", id: str = "") -> Future[tuple[int, Any]]:
        """Send a request whose batch does `deed`. Return its status and answer."""
        return self._pool.submit(self._infer, deed, id)

    def _infer(self, deed: str, id: str) -> tuple[int, Any]:
        document = {**json.loads(ADD_SUB_BODY), "id": id, "parameters": {"do": deed} if deed else {}}
        status, answer = self._server.post(f"/v2/models/{self._model}/infer", document)
        return status, json.loads(answer)


@pytest.fixture
def two(server: Running) -> Clients:
    return Clients(server, "two")


def result(answer: Future[tuple[int, Any]]) -> tuple[int, Any]:
    return answer.result(PATIENCE)


def test_next_batch_begins_while_one_runs(two: Clients) -> None:
    first = two.ask("until_followed")
    second = two.send()

    assert result(first)[1]["parameters"]["followed"] is True
    status, answer = result(second)
    assert (status, answer["outputs"][0]["data"], answer["parameters"]["gap"]) == (200, [2] * 16, False)


def gaps(server: Running, model: str) -> tuple[int, int]:
    """Return how many batches of a busy model there were, and before how many the device had nothing to do."""
    load = Load()
    found: list[tuple[bool, int]] = []

    def infer() -> None:
        client = Client(server.http)
        while not load.stop.is_set():
            status, answer = client.infer(model, ADD_SUB_BODY)
            with load.lock:
                if status != 200:
                    load.failures.append(answer)
                found.append((answer["parameters"]["gap"], answer["parameters"]["rows"]))
        client.close()

    def until_enough() -> None:
        while len(found) < 120:
            load.stop.wait(0.01)

    busy(load, [infer] * 12, until_enough)
    assert load.failures == []
    batches = sum(1 / rows for _, rows in found)
    return round(batches), round(sum(1 / rows for gap, rows in found if gap))


def test_device_idles_between_fewer_batches(server: Running) -> None:
    one, idle_one = gaps(server, "full_one")
    two, idle_two = gaps(server, "full_two")

    assert idle_one >= one - 1, "it waits before each batch"
    assert idle_two < 0.8 * two, "of a machine that others use as well: half of them, and fewer on one that is quiet"


def test_dead_worker_fails_both_batches_and_comes_back(two: Clients) -> None:
    answers = [result(one) for one in (two.ask("exit_when_followed"), two.send())]

    reason = "the worker of 'two_0' ended with exit status 7; it is being restarted"
    assert [(status, answer["error"]) for status, answer in answers] == [(500, reason)] * 2
    status, answer = result(two.send())
    assert (status, answer["outputs"][0]["data"]) == (200, [2] * 16)


def test_batch_that_hangs_fails_with_the_one_behind_it(server: Running) -> None:
    limited = Clients(server, "limited")
    answers = [result(one) for one in (limited.ask("hang"), limited.send())]

    assert [status for status, _ in answers] == [500, 500]
    assert all("longer than the model's execution_timeout_ms (300)" in answer["error"] for _, answer in answers)
    assert result(limited.send())[0] == 200


def test_error_in_begin_answers_its_own_batch(two: Clients) -> None:
    first = two.ask("until_refused")
    status, answer = result(two.send("fail_in_begin"))
    assert (status, answer["error"]) == (400, "asked to fail in begin")
    assert result(first)[0] == 200
    assert result(two.send())[0] == 200


def test_error_of_the_first_batch_leaves_the_second_alone(two: Clients) -> None:
    first, second = two.ask("fail"), two.send()

    assert result(first)[0] == 500
    assert "asked to fail" in result(first)[1]["error"]
    assert result(second)[0] == 200


def test_client_of_the_second_batch_disconnects(two: Clients, server: Running) -> None:
    first = two.ask("until_next_is_cancelled")
    second = http.client.HTTPConnection("127.0.0.1", server.http)
    second.request("POST", "/v2/models/two/infer", ADD_SUB_BODY)
    server.wait_for_log("device: next has begun")
    reset_on_close(second.sock)
    second.close()

    assert result(first)[1]["parameters"]["cancelled"] is True
    assert result(two.send())[0] == 200


def test_swaps_and_changes_of_instances_under_load_lose_nothing(root: Path, server: Running) -> None:
    load = Load()
    config = root / "full_two/config.pbtxt"
    before = config.read_text()

    def change() -> None:
        (root / "full_two/1/weights").write_text("new")
        for groups in ("", "instance_group { count: 2 }", "instance_group { count: 1 }"):
            config.write_text(f"{before}{groups}\n")
            status, answer = server.post("/v2/repository/models/full_two/load")
            assert status == 200, answer

    busy(load, [partial(load.add_sub, server.http, "full_two") for _ in range(8)], change)
    assert load.failures == []
    assert load.answered > 40
