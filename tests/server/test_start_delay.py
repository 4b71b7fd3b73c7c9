"""TRITONSERVER_DELAY_SCHEDULER on a running server: first batches wait for requests, golden tests do not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.golden.golden_files import add_sub
from tests.server.running import ADD_SUB, ADD_SUB_CONFIG, Running, python_model, running
from tests.server.sequence_models import SUM, sequence_model, step


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("models")
    add_sub(python_model(root, "dynamic", ADD_SUB, f"{ADD_SUB_CONFIG} dynamic_batching {{ }}"))
    long = "max_sequence_idle_microseconds: 60000000"
    sequence_model(root, "direct", SUM, f"{long} direct {{ }}")
    sequence_model(root, "oldest", SUM, f"{long} oldest {{ max_candidate_sequences: 8 }}")
    python_model(root, "plain")
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("TRITONSERVER_DELAY_SCHEDULER", "3")
        with running(f"--model-repository={root}") as started:
            yield started


def pending(server: Running, model: str) -> int:
    (line,) = (
        line for line in server.get("/metrics", server.metrics)[1].decode().splitlines()
        if line.startswith("nv_inference_pending_request_count{") and f'model="{model}"' in line
    )  # fmt: skip
    return int(float(line.split()[-1]))


def wait_for_pending(server: Running, model: str, count: int) -> None:
    while pending(server, model) < count:
        pass


def test_the_log_names_the_variable(server: Running) -> None:
    server.wait_for_log(r"TRITONSERVER_DELAY_SCHEDULER=3: each scheduler waits")


def test_the_first_batch_of_a_dynamic_batcher_waits_for_requests(server: Running) -> None:
    with ThreadPoolExecutor(3) as pool:
        sent: list[Future[Any]] = []
        for count in (1, 2):
            sent.append(pool.submit(server.add_sub, "dynamic"))
            wait_for_pending(server, "dynamic", count)
        assert not any(one.done() for one in sent)
        sent.append(pool.submit(server.add_sub, "dynamic"))
        assert [one.result()[0] for one in sent] == [200] * 3

    batches = json.loads(server.get("/v2/models/dynamic/stats")[1])["model_stats"][0]["batch_stats"]
    assert [(one["batch_size"], one["compute_infer"]["count"]) for one in batches] == [(3, 1)]
    assert server.add_sub("dynamic")[0] == 200, "it waited again"


def test_the_default_scheduler_does_not_wait(server: Running) -> None:
    assert server.add_sub("plain")[0] == 200


@pytest.mark.parametrize("model", ["direct", "oldest"])
def test_sequences_wait_for_requests(server: Running, model: str) -> None:
    with ThreadPoolExecutor(3) as pool:
        sent: list[Future[Any]] = []
        for number in (1, 2, 3):
            sent.append(pool.submit(step, server, model, number, number, "start"))
            if number < 3:
                wait_for_pending(server, model, number)
                assert not any(one.done() for one in sent)
        assert [one.result() for one in sent] == [(200, [number, 3]) for number in (1, 2, 3)]

    assert step(server, model, 1, 5)[1] == [6, 1]
