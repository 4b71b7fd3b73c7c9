"""A real server that asks its models; one of them loses its device."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path

import pytest

from edge_serve.models.versions.served import Served
from edge_serve.supervision.self_inference import SelfInference
from tests.golden.golden_files import add_sub
from tests.server.running import ADD_SUB, ADD_SUB_CONFIG, PATIENCE, Running, python_model, running

pytestmark = pytest.mark.slow  # intervals of the server

#: dead for the rest of its process once a file was there, as a CUDA context after an error
DIES_INSIDE = "import os\nDEAD = []\n" + ADD_SUB.replace(
    "        replies = []",
    "        if os.path.exists(FAULT): DEAD.append(1)\n"
    "        if DEAD: raise RuntimeError('CUDA error: an illegal memory access was encountered')\n"
    "        replies = []",
)
PICKY = ADD_SUB.replace("        replies = []", "        raise ValueError('zeros are no picture')\n")
INTERVAL = 0.2


def counter(server: Running, name: str, model: str) -> int:
    page = server.get("/metrics", server.metrics)[1].decode()
    found = re.search(rf'^{name}{{model="{model}",version="1"}} (\d+)$', page, re.MULTILINE)
    assert found is not None, page
    return int(found[1])


def wait_until_ready(server: Running, status: int) -> None:
    end = time.monotonic() + PATIENCE
    while server.get("/v2/health/ready")[0] != status:
        assert time.monotonic() < end, server.log()


def test_a_dead_device_is_found_without_traffic(tmp_path: Path) -> None:
    fault = tmp_path / "fault"
    python_model(tmp_path / "models", "dies", DIES_INSIDE.replace("FAULT", repr(str(fault))))
    python_model(tmp_path / "models", "picky", PICKY)
    flags = [f"--model-repository={tmp_path}/models", f"--self-inference-interval-secs={INTERVAL}"]
    with running(*flags) as server:
        server.wait_for_log("model picky is not asked by the server itself, because it does not take zeros")
        before = counter(server, "nv_inference_request_success", "dies")
        while counter(server, "nv_inference_request_success", "dies") < before + 2:
            time.sleep(INTERVAL)

        fault.touch()
        server.wait_for_log("model dies has answered its own question before and fails now: .*illegal memory access")
        wait_until_ready(server, 400)
        fault.unlink()

        server.wait_for_log("model dies answers again")
        wait_until_ready(server, 200)
        assert server.add_sub("dies")[0] == 200
        assert counter(server, "edge_serve_self_inference_failures_total", "dies") >= 1
        assert counter(server, "edge_serve_worker_restarts_total", "dies") >= 1
        assert counter(server, "edge_serve_self_inference_failures_total", "picky") == 0
        assert counter(server, "edge_serve_worker_restarts_total", "picky") == 0
        index = {one["name"]: one.get("reason", "") for one in json.loads(server.post("/v2/repository/index")[1])}
        assert "it fails on a request that it has answered before" in index["dies"]


def test_a_model_that_answers_wrong_is_found_by_its_golden_test(tmp_path: Path) -> None:
    fault = tmp_path / "fault"
    code = DIES_INSIDE.replace("FAULT", repr(str(fault))).replace(
        "if DEAD: raise RuntimeError('CUDA error: an illegal memory access was encountered')",
        "bits = np.int32(1 if DEAD else 0)",
    )
    code = "import numpy as np\n" + code.replace("a + b", "a + b + bits")
    add_sub(python_model(tmp_path / "models", "flips", code))
    add_sub(python_model(tmp_path / "models", "loses"))
    flags = [f"--model-repository={tmp_path}/models", f"--self-inference-interval-secs={INTERVAL}"]
    with running(*flags) as server:
        while counter(server, "nv_inference_request_success", "flips") < 2:
            time.sleep(INTERVAL / 4)
        (tmp_path / "models/loses/golden/first.in.INPUT0").unlink()
        fault.touch()
        said = "fails its golden test, which it has passed before.*: sample 'first': output 'OUTPUT0': 16 of 16 values"
        server.wait_for_log(f"model flips {said} differ, the largest difference is 1 at ")
        while "reason" not in (entry := of_index(server, "flips")):  # it was restarted meanwhile, and fails again
            time.sleep(INTERVAL / 4)
        assert re.search(said, entry["reason"]), entry
        fault.unlink()

        server.wait_for_log("model flips answers again")
        wait_until_ready(server, 200)
        assert server.add_sub("flips")[0] == 200
        assert counter(server, "edge_serve_self_inference_failures_total", "flips") >= 1
        server.wait_for_log(
            "model loses is not asked by the server itself: .*golden/first.in.INPUT0 cannot be read: No su"
        )
        assert counter(server, "edge_serve_self_inference_failures_total", "loses") == 0


def of_index(server: Running, model: str) -> dict[str, str]:
    return next(one for one in json.loads(server.post("/v2/repository/index")[1]) if one["name"] == model)


def test_a_dead_device_is_found_behind_answers_from_the_cache(tmp_path: Path) -> None:
    fault = tmp_path / "fault"
    code = DIES_INSIDE.replace("FAULT", repr(str(fault)))
    python_model(tmp_path / "models", "dies", code, ADD_SUB_CONFIG + "response_cache { enable: true }")
    flags = [f"--model-repository={tmp_path}/models", f"--self-inference-interval-secs={INTERVAL}"]
    with running(*flags, "--cache-config=local,size=1000000") as server:
        while counter(server, "nv_inference_request_success", "dies") < 1:  # its own question
            time.sleep(0.01)
        assert server.add_sub("dies")[0] == 200
        fault.touch()
        end = time.monotonic() + PATIENCE
        while "has answered its own question before and fails now" not in server.log():
            assert server.add_sub("dies")[0] == 200
            assert time.monotonic() < end, server.log()


def test_a_model_that_has_traffic_is_not_asked(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "busy")
    flags = [f"--model-repository={tmp_path}/models", "--self-inference-interval-secs=1000"]
    with running(*flags) as server:
        while counter(server, "nv_inference_request_success", "busy") < 1:  # the question right after the load
            time.sleep(0.01)
        for _ in range(5):
            assert server.add_sub("busy")[0] == 200
        assert counter(server, "nv_inference_request_success", "busy") == 6


@pytest.mark.parametrize("golden", [False, True])
def test_a_model_that_computes_for_longer_than_the_interval_is_not_restarted(tmp_path: Path, golden: bool) -> None:
    slow = f"        if a[0, 0] == 7: time.sleep({4 * INTERVAL})\n        return replies"
    code = "import time\n" + ADD_SUB.replace("        return replies", slow)
    directory = python_model(tmp_path / "models", "slow", code)
    if golden:
        add_sub(directory)
    with running(f"--model-repository={tmp_path}/models", f"--self-inference-interval-secs={INTERVAL}") as server:
        while counter(server, "nv_inference_request_success", "slow") < 2:
            time.sleep(INTERVAL / 4)
        assert server.add_sub("slow", 7)[0] == 200, server.log()
        assert counter(server, "edge_serve_self_inference_failures_total", "slow") == 0
        assert counter(server, "edge_serve_worker_restarts_total", "slow") == 0


def test_an_unexpected_error_ends_neither_the_round_nor_those_after_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        rounds = 0

        def served() -> list[Served]:
            nonlocal rounds
            rounds += 1
            if rounds == 1:
                raise RuntimeError("boom")
            return []

        asking = asyncio.ensure_future(SelfInference(served, 0.001).run())
        while rounds < 3:
            await asyncio.sleep(0.001)
            assert not asking.done(), "it asks nobody any more"
        asking.cancel()

    asyncio.run(asyncio.wait_for(story(), 10))
    assert "boom" in caplog.text
