"""Models are replaced under load: no request fails, and each sequence ends in the version that started it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.server.load import ADDS_UP, ADDS_UP_CONFIG, Client, Load, adds_up_body, busy, touch
from tests.server.running import ADD_SUB, PATIENCE, Running, python_model, running

EXPLICIT = ("--model-control-mode=explicit", "--load-model=*")


def swap_under_load(root: Path, server: Running, swaps: int, connections: int) -> Load:
    """Replace both models `swaps` times in all, with half of the clients in sequences."""
    load = Load()
    half = connections // 2
    work = [partial(load.add_sub, server.http, "add_sub") for _ in range(half)]
    work += [partial(load.adds_up, server.http, "adds_up", number, 50) for number in range(1, half + 1)]

    def swap() -> None:
        for number in range(swaps):
            name = ("add_sub", "adds_up")[number % 2]
            touch(root / name)
            status, answer = server.post(f"/v2/repository/models/{name}/load")
            assert status == 200, answer

    busy(load, work, swap)
    return load


def metrics(server: Running) -> str:
    return server.get("/metrics", server.metrics)[1].decode()


def only_two_workers_are_left(server: Running) -> None:
    end = time.monotonic() + PATIENCE
    while len(server.workers()) != 2:
        assert time.monotonic() < end, f"{len(server.workers())} workers:\n{server.log()}"
        time.sleep(0.05)


def hot_swaps(root: Path, swaps: int, connections: int) -> None:
    python_model(root, "add_sub")
    python_model(root, "adds_up", ADDS_UP, ADDS_UP_CONFIG)
    with running(f"--model-repository={root}", *EXPLICIT) as server:
        load = swap_under_load(root, server, swaps, connections)

        assert load.failures[:3] == []
        assert load.answered > 10 * swaps
        assert load.sequences >= connections // 2
        only_two_workers_are_left(server)


def test_hot_swaps_lose_nothing(tmp_path: Path) -> None:
    hot_swaps(tmp_path, 4, 8)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundred_hot_swaps_lose_nothing(tmp_path: Path) -> None:
    hot_swaps(tmp_path, 100, 32)


def test_open_sequences_end_with_the_limit(tmp_path: Path) -> None:
    python_model(tmp_path, "adds_up", ADDS_UP, ADDS_UP_CONFIG)
    with running(f"--model-repository={tmp_path}", *EXPLICIT, "--swap-drain-secs=1") as server:
        client = Client(server.http)
        client.infer("adds_up", adds_up_body(7, 1, start=True))
        touch(tmp_path / "adds_up")
        assert server.post("/v2/repository/models/adds_up/load")[0] == 200
        assert client.infer("adds_up", adds_up_body(7, 1))[1]["outputs"][0]["data"] == [2]
        server.wait_for_log(r"0 requests and 1 open sequences after 1 s")
        server.wait_for_log(r"adds_up version 1 unloaded")

        status, answer = client.infer("adds_up", adds_up_body(7, 1))
        assert (status, answer["error"]) == (
            400,
            "inference request for sequence 7 to model 'adds_up' must specify the START flag on the first request of "
            "the sequence",
        )
        client.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    """A server for tests that load a model each, and its repository."""
    root = tmp_path_factory.mktemp("models")
    with running(f"--model-repository={root}", "--model-control-mode=explicit") as server:
        yield server, root


def test_a_sequence_that_restarts_starts_in_the_new_version(shared: tuple[Running, Path]) -> None:
    server, root = shared
    python_model(root, "restarts", ADDS_UP, ADDS_UP_CONFIG)
    assert server.post("/v2/repository/models/restarts/load")[0] == 200
    client = Client(server.http)
    client.infer("restarts", adds_up_body(7, 1, start=True))
    python_model(root, "restarts", ADDS_UP.replace("[[self.sums[key]]]", "[[-self.sums[key]]]"), ADDS_UP_CONFIG)
    assert server.post("/v2/repository/models/restarts/load")[0] == 200
    assert client.infer("restarts", adds_up_body(7, 1))[1]["outputs"][0]["data"] == [2]

    assert client.infer("restarts", adds_up_body(7, 5, start=True))[1]["outputs"][0]["data"] == [-5]
    server.wait_for_log(r"restarts version 1 unloaded")  # nothing of the old one is open any more
    assert client.infer("restarts", adds_up_body(7, 5, end=True))[1]["outputs"][0]["data"] == [-10]
    client.close()


def test_a_sequence_stays_in_the_version_that_a_higher_one_replaced(shared: tuple[Running, Path]) -> None:
    server, root = shared
    python_model(root, "replaced", ADDS_UP, ADDS_UP_CONFIG)
    assert server.post("/v2/repository/models/replaced/load")[0] == 200
    client = Client(server.http)
    client.infer("replaced", adds_up_body(7, 1, start=True))
    client.infer("replaced/versions/1", adds_up_body(8, 1, start=True))
    python_model(root, "replaced", ADDS_UP, ADDS_UP_CONFIG, version=2)
    assert server.post("/v2/repository/models/replaced/load")[0] == 200

    assert client.infer("replaced", adds_up_body(9, 1, start=True, end=True))[1]["model_version"] == "2"
    answer = client.infer("replaced", adds_up_body(7, 1, end=True))[1]
    assert (answer["model_version"], answer["outputs"][0]["data"]) == ("1", [2])
    answer = client.infer("replaced/versions/1", adds_up_body(8, 1, end=True))[1]
    assert (answer["model_version"], answer["outputs"][0]["data"]) == ("1", [2])
    server.wait_for_log(r"replaced version 1 unloaded")
    assert client.infer("replaced/versions/1", adds_up_body(8, 1, start=True))[0] == 503
    client.close()


def test_unloading_does_not_wait_for_open_sequences(shared: tuple[Running, Path]) -> None:
    server, root = shared
    python_model(root, "unloaded", ADDS_UP, ADDS_UP_CONFIG)
    assert server.post("/v2/repository/models/unloaded/load")[0] == 200
    client = Client(server.http)
    client.infer("unloaded", adds_up_body(7, 1, start=True))
    touch(root / "unloaded")
    assert server.post("/v2/repository/models/unloaded/load")[0] == 200
    began = time.monotonic()
    assert server.post("/v2/repository/models/unloaded/unload")[0] == 200
    assert time.monotonic() - began < 20
    assert client.infer("unloaded", adds_up_body(7, 1))[0] == 404
    server.wait_for_log(r"(?s)unloaded version 1 unloaded.*unloaded version 1 unloaded")
    client.close()


@pytest.mark.slow
def test_a_request_that_takes_longer_than_the_limit_is_answered(tmp_path: Path) -> None:
    python_model(
        tmp_path,
        "stuck",
        ADD_SUB.replace("        replies = []", "        import time\n        time.sleep(3)\n        replies = []"),
    )
    with running(f"--model-repository={tmp_path}", *EXPLICIT, "--swap-drain-secs=1") as server:
        answers: list[tuple[int, object]] = []
        clients = [threading.Thread(target=lambda: answers.append(server.add_sub("stuck"))) for _ in range(3)]
        for client in clients:
            client.start()
        while 'nv_inference_pending_request_count{model="stuck",version="1"} 2' not in metrics(server):
            time.sleep(0.02)
        assert server.post("/v2/repository/models/stuck/unload")[0] == 200
        for client in clients:
            client.join(PATIENCE)
        assert sorted(status for status, _ in answers) == [200, 503, 503]  # what ran was done while it was closed
        assert sum("(--swap-drain-secs)" in str(answer) for _, answer in answers) == 2
        assert server.workers() == []
