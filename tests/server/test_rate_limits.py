"""The rate limiter of a running server."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from tests.forked import program
from tests.server.running import FREE_PORTS, Running, python_model, running

pytestmark = pytest.mark.slow  # a server for each kind of limit

SPAN = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        begin = time.monotonic_ns()
        time.sleep(0.01)
        span = np.array([[begin, time.monotonic_ns()]], np.int64)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SPAN", span)]) for _ in requests]
"""


def config(count: int) -> str:
    limits = f'rate_limiter {{ resources [ {{ name: "R" count: {count} }} ] }}'
    return (
        'backend: "python" max_batch_size: 1 input { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } '
        'output { name: "SPAN" data_type: TYPE_INT64 dims: [ 2 ] } '
        f"instance_group [ {{ count: 2 kind: KIND_CPU {limits} }} ]"
    )


def span(server: Running, model: str) -> list[int]:
    """When a request ran, from and to."""
    inputs = [{"name": "X", "datatype": "INT32", "shape": [1, 1], "data": [1]}]
    status, body = server.post(f"/v2/models/{model}/infer", {"inputs": inputs})
    assert status == 200, body
    data: list[int] = json.loads(body)["outputs"][0]["data"]
    return data


def test_instances_with_a_shared_resource_never_run_together(tmp_path: Path) -> None:
    for name in ("a", "b"):
        python_model(tmp_path, name, SPAN, config(1))
    with running(f"--model-repository={tmp_path}", "--rate-limit=execution_count") as server:
        with ThreadPoolExecutor(8) as pool:
            spans = sorted(pool.map(lambda n: span(server, "ab"[n % 2]), range(40)))
        assert all(before[1] <= after[0] for before, after in pairwise(spans))

        os.kill(server.workers()[0], signal.SIGKILL)
        server.wait_for_log(r"model [ab] is back in worker")
        assert [len(span(server, name)) for name in ("a", "b")] == [2, 2]
        page = server.get("/metrics", server.metrics)[1].decode()
        assert 'nv_inference_pending_request_count{model="a",version="1"} 0' in page


def test_a_worker_that_dies_with_a_resource_gives_it_back(tmp_path: Path) -> None:
    python_model(tmp_path, "dies", SPAN.replace("time.sleep(0.01)", "import os; os._exit(1)"), config(1))
    python_model(tmp_path, "lives", SPAN, config(1))
    with running(f"--model-repository={tmp_path}", "--rate-limit=execution_count") as server:
        status, _ = server.post(
            "/v2/models/dies/infer", {"inputs": [{"name": "X", "datatype": "INT32", "shape": [1, 1], "data": [1]}]}
        )
        assert status == 500
        assert len(span(server, "lives")) == 2


def test_off_means_that_nothing_is_limited_nor_refused(tmp_path: Path) -> None:
    python_model(tmp_path, "a", SPAN, config(9))
    with running(f"--model-repository={tmp_path}", "--rate-limit-resource=R:1") as server:
        assert len(span(server, "a")) == 2


def test_a_model_that_could_never_run_ends_the_start(tmp_path: Path) -> None:
    python_model(tmp_path, "a", SPAN, config(9))
    limits = ("--rate-limit=execution_count", "--rate-limit-resource=R:4")
    ended = program(f"--model-repository={tmp_path}", *FREE_PORTS, *limits)

    assert ended.status == 1
    assert (
        'Resource count for "R" is limited to 4 which will prevent scheduling of one or more model instances, the '
        "minimum required count is 9" in ended.output
    )
