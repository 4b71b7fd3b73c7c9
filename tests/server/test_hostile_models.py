"""Python models that write frames of their own to the server's sockets: their process is lost at most, nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from edge_serve.workers.wire.frames import FrameKind, frame
from tests.server.running import PATIENCE, Running, python_model, running
from tests.server.test_bad_python_models import CONFIG, MODEL, infer
from tests.workers.test_hostile import TEXTS, Dice

#: frames that are checked and used, so that their sender lives on
HARMLESS = (FrameKind.METRIC, FrameKind.LOG)
SEND = "from edge_serve.backends import host\nhost.current()._send(bytes.fromhex({data!r}))"
WRITE_TO_ALL_SOCKETS = """
import os, stat
for name in os.listdir("/proc/self/fd"):
    try:
        if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
            os.write(int(name), bytes.fromhex({data!r}))
    except OSError:
        continue
os._exit(1)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("models")
    python_model(root, "ordinary", MODEL.replace("RESULT", "[answer()]"), CONFIG)
    python_model(root, "bystander")
    with running(f"--model-repository={root}", "--model-control-mode=explicit", "--load-model=*") as started:
        yield started


def all_is_well(server: Running) -> None:
    assert server.add_sub("bystander")[0] == 200
    assert server.get("/v2/health/live")[0] == 200
    assert server.get("/metrics", server.metrics)[0] == 200
    assert server.get("/v2/models/stats")[0] == 200
    assert server.post("/v2/repository/index")[0] == 200
    assert "Exception in callback" not in server.log()
    assert "cannot be handled" not in server.log()


def metric(dice: Dice) -> dict[str, Any]:
    """A gauge with odd names and values."""
    return {
        "name": dice.choice((*TEXTS, "nv_inference_count", "a b", "\ud800x")), "description": dice.choice(TEXTS),
        "kind": dice.choice(("counter", "gauge", "histogram")), "operation": "set", "bounds": [1.0],
        "labels": {dice.choice(("a", "b", "\udfff", "le")): dice.choice(TEXTS)}, "value": dice.value(3),
    }  # fmt: skip


def test_values_that_no_model_should_send_break_no_page(server: Running) -> None:
    for seed in range(100):
        dice = Dice(seed)
        kinds = [int(dice.choice(HARMLESS)) for _ in range(5)]
        values = [{**dice.object(), **(metric(dice) if kind == FrameKind.METRIC else {})} for kind in kinds]
        data = b"".join(
            frame(kind, 1 << 40, json.dumps(value).encode()) for kind, value in zip(kinds, values, strict=True)
        )
        assert infer(server, SEND.format(data=data.hex())) == (200, "[1]")
    all_is_well(server)


@pytest.mark.parametrize("seed", range(4))
def test_frames_of_every_kind_cost_their_process_at_most(server: Running, seed: int) -> None:
    data = b""
    for said in Dice(seed).plan().values():
        data += b"".join(one if isinstance(one, bytes) else frame(one[0], 1, one[1]) for one in said)
    infer(server, WRITE_TO_ALL_SOCKETS.format(data=data.hex()))
    all_is_well(server)
    end = time.monotonic() + PATIENCE
    while infer(server, "") != (200, "[1]"):
        assert time.monotonic() < end, server.log()
