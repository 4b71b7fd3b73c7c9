"""TensorRT models over HTTP and gRPC, on the stand-ins for CUDA and TensorRT (tests/stand_ins)."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http

from tests.devices import stand_in
from tests.server.running import Running, running
from tests.stand_ins.plans import plan, tensor

ROOT = Path(__file__).parents[2]
STAND_INS = Path(__file__).parents[1] / "stand_ins"
GROUP = "instance_group { kind: KIND_GPU }\n"
BATCHED = ((1, 4), (4, 4), (8, 4))
#: floats of a row that lies in the arena
LARGE = 150_528


def write(root: Path, name: str, content: bytes, config: str = "") -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "1" / "model.plan").write_bytes(content)
    (root / name / "config.pbtxt").write_text(f'platform: "tensorrt_plan"\n{GROUP}{config}')


def addsub(dtype: str = "FLOAT", **more: Any) -> bytes:
    tensors = [tensor(f"INPUT{n}", "INPUT", dtype, (-1, 4)) for n in (0, 1)]
    tensors += [tensor(f"OUTPUT{n}", "OUTPUT", dtype, (-1, 4)) for n in (0, 1)]
    return plan("addsub", tensors, [{"INPUT0": BATCHED, "INPUT1": BATCHED}], **more)


def stretched() -> bytes:
    """Return a plan that repeats a column as often as its first input says, a shape tensor, and tells the shape."""
    tensors = [tensor("SIZE", "INPUT", "INT32", (2,), shape_tensor=True)]
    tensors += [tensor("INPUT0", "INPUT", "FLOAT", (-1, 4)), tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, -1))]
    tensors += [tensor("SHAPE", "OUTPUT", "INT64", (2,), shape_tensor=True)]
    return plan("stretched", tensors, [{"INPUT0": BATCHED, "SIZE": ((1, 1), (4, 4), (8, 99))}], milliseconds=5)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Yield a server with several plans, of which some do not load."""
    root = tmp_path_factory.mktemp("models")
    write(root, "addsub", addsub())
    write(root, "slow", addsub(milliseconds=20), "max_batch_size: 8 dynamic_batching { }\n")
    write(root, "graphs", addsub(), "optimization { cuda { graphs: true } }\n")
    write(root, "half", addsub("HALF"))
    both = [tensor("INPUT0", "INPUT", "FLOAT", (-1, -1)), tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, -1))]
    profiles = [{"INPUT0": ((1, 1), (1, 4), (2, 8))}, {"INPUT0": ((1, 8), (4, 64), (8, 64))}]
    group = 'name: "two"\n'
    (root / "two" / "1").mkdir(parents=True)
    (root / "two" / "1" / "model.plan").write_bytes(plan("identity", both, profiles))
    (root / "two" / "config.pbtxt").write_text(
        f'{group}platform: "tensorrt_plan"\ninstance_group {{ kind: KIND_GPU profile: ["0", "1"] }}\n'
    )
    found = [tensor("INPUT0", "INPUT", "FLOAT", (-1,)), tensor("OUTPUT0", "OUTPUT", "INT64", (1, -1))]
    write(root, "nonzero", plan("nonzero", found, [{"INPUT0": ((1,), (8,), (64,))}]), "max_batch_size: 0\n"
          'input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }\n'
          'output { name: "OUTPUT0" data_type: TYPE_INT64 dims: [ 1, -1 ] }\n')  # fmt: skip
    both = [tensor("INPUT0", "INPUT", "FLOAT", (-1, 4)), tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, 4))]
    write(root, "lost", plan("fail", both, [{"INPUT0": BATCHED}]))
    both = [tensor("INPUT0", "INPUT", "FLOAT", (-1, LARGE)), tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, LARGE))]
    write(root, "large", plan("identity", both, [{"INPUT0": ((1, LARGE), (2, LARGE), (4, LARGE))}]))
    write(root, "stretched", stretched())
    write(root, "old", addsub(version="8.6.1"))
    write(root, "foreign", addsub(capability="9.0"))
    write(root, "truncated", addsub()[:60])
    write(root, "toobig", addsub(), "max_batch_size: 16\n")
    write(root, "cpu", addsub())
    (root / "cpu" / "config.pbtxt").write_text('platform: "tensorrt_plan"\ninstance_group { kind: KIND_CPU }\n')
    library = stand_in.build(tmp_path_factory.mktemp("cuda"))
    prefix = [*stand_in.prefix(library, devices=2), f"PYTHONPATH={STAND_INS}:{ROOT}"]
    arguments = (f"--model-repository={root}", "--exit-on-error=false", "--grpc-port=0", "--allow-grpc=true")
    with running(*arguments, prefix=prefix) as served:
        yield served


def infer_http(server: Running, model: str, **arrays: Any) -> dict[str, Any]:
    client = http.InferenceServerClient(server.url)
    inputs = []
    for name, array in arrays.items():
        kind = {"f4": "FP32", "f2": "FP16", "i4": "INT32"}[array.dtype.str[1:]]
        inputs.append(http.InferInput(name, list(array.shape), kind))
        inputs[-1].set_data_from_numpy(array)
    result = client.infer(model, inputs)
    return {output["name"]: result.as_numpy(output["name"]) for output in result.get_response()["outputs"]}


def test_batch_is_added_and_subtracted(server: Running) -> None:
    first, second = np.arange(12, dtype=np.float32).reshape(3, 4), np.ones((3, 4), np.float32)
    for model in ("addsub", "graphs"):
        for rows in (1, 2, 3):
            found = infer_http(server, model, INPUT0=first[:rows], INPUT1=second[:rows])
            assert (found["OUTPUT0"] == first[:rows] + 1).all()
            assert (found["OUTPUT1"] == first[:rows] - 1).all()


def test_grpc_and_half_precision(server: Running) -> None:
    port = int(server.wait_for_log(r"gRPC on 127\.0\.0\.1:(\d+)")[1])
    client = grpc.InferenceServerClient(f"127.0.0.1:{port}")
    array = np.array([[0.5, 1, 2, 4]], np.float16)
    inputs = [grpc.InferInput(f"INPUT{n}", [1, 4], "FP16") for n in (0, 1)]
    for one in inputs:
        one.set_data_from_numpy(array)

    result = client.infer("half", inputs)

    assert result.as_numpy("OUTPUT0").tolist() == [[1, 2, 4, 8]]
    config = client.get_model_config("half", as_json=True)["config"]
    assert config["max_batch_size"] == 8
    assert config["dynamic_batching"] == {"preferred_batch_size": [8]}
    assert [one["data_type"] for one in config["input"]] == ["TYPE_FP16"] * 2


def test_requests_are_batched_and_each_gets_its_own_rows(server: Running) -> None:
    wrong: list[object] = []

    def ask(value: int) -> None:
        first = np.full((1, 4), value, np.float32)
        for _ in range(5):
            found = infer_http(server, "slow", INPUT0=first, INPUT1=first)
            if found["OUTPUT0"].tolist() != [[2 * value] * 4]:
                wrong.append(found)

    threads = [threading.Thread(target=ask, args=(value,)) for value in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    metrics = server.get("/metrics", server.metrics)[1].decode().splitlines()
    counts = {line.partition("{")[0]: float(line.rsplit(" ", 1)[1]) for line in metrics if 'model="slow"' in line}
    assert counts["nv_inference_count"] == 40
    assert counts["nv_inference_exec_count"] < 30


def pinned(server: Running, which: str) -> float:
    """Return nv_pinned_memory_pool_<which>_bytes."""
    metrics = server.get("/metrics", server.metrics)[1].decode()
    return float(re.findall(rf"^nv_pinned_memory_pool_{which}_bytes (\S+)$", metrics, re.MULTILINE)[0])


def test_memory_of_large_tensors_is_registered_and_shown(server: Running) -> None:
    for seed in range(100):
        array = np.random.default_rng(seed).random((1, LARGE), np.float32)
        assert (infer_http(server, "large", INPUT0=array)["OUTPUT0"] == array).all()
        if pinned(server, "used"):
            break

    assert (pinned(server, "used"), pinned(server, "total")) == (8 << 20, 256 << 20)


def test_profile_is_chosen_by_the_shape(server: Running) -> None:
    for shape in ((1, 2), (8, 64), (2, 8)):
        array = np.random.default_rng(1).random(shape).astype(np.float32)
        assert (infer_http(server, "two", INPUT0=array)["OUTPUT0"] == array).all()
    status, body = server.post(
        "/v2/models/two/infer",
        {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [8, 4], "data": [0] * 32}]},
    )
    assert status == 400
    assert b"failed to find any Optimization Profile among [ 0[0] 1[1]]" in body
    assert b"profile" not in body or b"takes INPUT0 [1,1] to [2,8]" in body


def test_output_whose_size_the_data_decide(server: Running) -> None:
    array = np.array([0, 3, 0, 0, 5, 7], np.float32)

    assert infer_http(server, "nonzero", INPUT0=array)["OUTPUT0"].tolist() == [[1, 4, 5]]
    assert infer_http(server, "nonzero", INPUT0=array * 0)["OUTPUT0"].shape == (1, 0)


def test_shape_tensor_before_other_inputs_and_one_among_the_outputs(server: Running) -> None:
    """Requests with equal values share a batch, and each has the rows of its other input."""
    wrong: list[object] = []

    def ask(rows: int) -> None:
        first = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4) + rows
        for size in (7, 7, 7, 3):
            found = infer_http(server, "stretched", SIZE=np.array([size], np.int32), INPUT0=first)
            if (
                found["OUTPUT0"].tolist() != [[row[0]] * size for row in first]
                or found["SHAPE"].tolist() != [[size]] * rows
            ):
                wrong.append(found)

    threads = [threading.Thread(target=ask, args=(rows,)) for rows in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("old", "is not compatible with this version of TensorRT, expecting library version 10.3.0 got 8.6.1"),
        ("foreign", "expecting compute 8.7 got compute 9.0"),
        ("truncated", "unable to load plan file to auto complete config|unable to create TensorRT engine"),
        ("toobig", "configuration specified max-batch 16 but TensorRT engine only supports max-batch 8"),
        ("cpu", "TensorRT backend supports only GPU device"),
    ],
)
def test_plan_that_cannot_be_served_says_why_and_the_others_serve(server: Running, model: str, text: str) -> None:
    _, body = server.post("/v2/repository/index", {})
    reason = next(entry["reason"] for entry in json.loads(body) if entry["name"] == model)
    assert re.search(text, reason), reason
    assert server.get("/v2/models/addsub/ready")[0] == 200


@pytest.mark.slow
def test_plugin_that_is_not_there_is_named_with_the_setting(tmp_path: Path) -> None:
    models, library = tmp_path / "models", tmp_path / "library"
    library.mkdir()
    write(models, "addsub", addsub())
    prefix = [*stand_in.prefix(stand_in.build(library)), f"PYTHONPATH={STAND_INS}:{ROOT}"]
    plugins = f"--backend-config=tensorrt,plugins=libc.so.6;{tmp_path}/none.so"
    with running(f"--model-repository={models}", "--exit-on-error=false", plugins, prefix=prefix) as served:
        (entry,) = json.loads(served.post("/v2/repository/index", {})[1])
        assert entry["reason"] == (
            f"Internal: plugin library '{tmp_path}/none.so' does not load: there is no such file; correct "
            f"--backend-config=tensorrt,plugins=libc.so.6;{tmp_path}/none.so (or --plugin of edge-serve build)"
        )
        assert served.get("/v2/health/live")[0] == 200


def test_worker_whose_device_is_lost_is_started_again(server: Running) -> None:
    array = np.ones((1, 4), np.float32)
    before = server.workers()

    status, body = server.post(
        "/v2/models/lost/infer", {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1] * 4}]}
    )

    assert status == 500
    assert b"an illegal memory access was encountered" in body
    server.wait_for_log("the worker ends because its device is lost")
    server.wait_for_log("model addsub is back in worker")
    assert (infer_http(server, "addsub", INPUT0=array, INPUT1=array)["OUTPUT0"] == 2).all()
    assert server.workers() != before
