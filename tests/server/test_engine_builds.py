"""Engines that are built at load: over HTTP, on the stand-ins for CUDA and TensorRT (tests/stand_ins)."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.backends import onnx_models
from tests.devices import stand_in
from tests.server.running import Running, running
from tests.server.test_tensorrt import ROOT, STAND_INS

GROUP = 'platform: "tensorrt_plan"\nmax_batch_size: 8\ninstance_group { kind: KIND_GPU gpus: [ 0 ] }\n'


def write(root: Path, name: str, options: str = "true", layers: int = 1) -> None:
    """Write a model of `layers` additions whose engine is built at load."""
    names = ["A", *(f"S{number}" for number in range(1, layers)), "SUM"]
    nodes = [onnx_models.node("Add", [first, "B"], [second]) for first, second in pairwise(names)]
    of = (onnx_models.FLOAT, ("N", 4))
    onnx_models.save(root / name / "1" / "model.onnx", nodes, {"A": of, "B": of}, {"SUM": of})
    parameter = f'parameters {{ key: "EDGE_SERVE_BUILD_ENGINE" value {{ string_value: "{options}" }} }}\n'
    (root / name / "config.pbtxt").write_text(GROUP + parameter)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Yield a server whose builds measure 100 ms for each layer. It loads models by request."""
    root = tmp_path_factory.mktemp("models")
    write(root, "plain")
    write(root, "same")
    write(root, "long", layers=100)
    write(root, "words", "--fp1")
    library = stand_in.build(tmp_path_factory.mktemp("cuda"))
    prefix = [
        *stand_in.prefix(library, devices=2), f"PYTHONPATH={STAND_INS}:{ROOT}", "STAND_IN_BUILD=milliseconds=100",
        f"CACHE_DIRECTORY={tmp_path_factory.mktemp('cache')}",
    ]  # fmt: skip
    with running(f"--model-repository={root}", "--model-control-mode=explicit", prefix=prefix) as served:
        yield served


def ask(server: Running, model: str) -> list[float]:
    inputs = [
        {"name": name, "datatype": "FP32", "shape": [2, 4], "data": data}
        for name, data in (("A", [1, 2, 3, 4, 5, 6, 7, 8]), ("B", [10] * 8))
    ]
    status, body = server.post(f"/v2/models/{model}/infer", {"inputs": inputs})
    assert status == 200, body
    found: list[float] = json.loads(body)["outputs"][0]["data"]
    return found


def reason(server: Running, model: str) -> str:
    _, body = server.post("/v2/repository/index", {})
    return str(next(entry.get("reason", "") for entry in json.loads(body) if entry["name"] == model))


def test_engine_is_built_at_load_and_the_second_load_takes_it_from_the_cache(server: Running) -> None:
    assert server.post("/v2/repository/models/plain/load", {}) == (200, b"")
    assert ask(server, "plain") == [11, 12, 13, 14, 15, 16, 17, 18]
    server.wait_for_log(r"model plain version 1: the engine was built in \d+\.\d s")

    assert server.post("/v2/repository/models/same/load", {})[0] == 200
    assert ask(server, "same") == ask(server, "plain")
    server.wait_for_log(r"model same version 1: the engine is in the cache")
    page = server.get("/metrics", server.metrics)[1].decode()
    seconds = dict(re.findall(r'edge_serve_engine_build_seconds\{.*model="(\w+)".*\} (\S+)', page))
    assert float(seconds["plain"]) > 0.1
    assert float(seconds["same"]) == 0


def running_seconds(server: Running) -> list[float]:
    """Return the gauge of the build of `long`."""
    page = server.get("/metrics", server.metrics)[1].decode()
    found = re.findall(
        r'^edge_serve_engine_build_running_seconds\{model="long",version="1"\} (\S+)', page, re.MULTILINE
    )
    return [float(one) for one in found]


def test_build_shows_progress_others_serve_and_an_unload_cancels_it(server: Running) -> None:
    answers: list[tuple[int, bytes]] = []
    thread = threading.Thread(target=lambda: answers.append(server.post("/v2/repository/models/long/load", {})))
    thread.start()
    while not re.fullmatch(r"building the engine: Building Engine, 0 %, \d+ s", reason(server, "long")):
        assert not answers
    assert server.post("/v2/repository/models/plain/load", {})[0] == 200
    assert ask(server, "plain")[0] == 11
    (seconds,) = running_seconds(server)
    assert 0 < seconds < running_seconds(server)[0]

    assert server.post("/v2/repository/models/long/unload", {})[0] == 200
    thread.join()
    ((status, body),) = answers
    assert status == 400
    assert b"the build of the engine was cancelled: model 'long' is unloaded" in body
    assert running_seconds(server) == []


def test_options_that_cannot_be_read_say_why(server: Running) -> None:
    status, body = server.post("/v2/repository/models/words/load", {})
    assert status == 400
    assert b"parameter EDGE_SERVE_BUILD_ENGINE of model 'words': unrecognized arguments: --fp1" in body
