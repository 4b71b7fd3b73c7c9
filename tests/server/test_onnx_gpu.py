"""ONNX models on a GPU over HTTP and gRPC, on the stand-ins for CUDA and its provider (tests/stand_ins)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http

from tests.backends import onnx_models as models
from tests.devices import stand_in
from tests.server.running import Running, running

ROOT = Path(__file__).parents[2]
STAND_INS = Path(__file__).parents[1] / "stand_ins"
#: above the bytes that travel in a frame
WIDE = 20_000


def write(root: Path, name: str, config: str = "", script: str = "", dims: models.Dims = ("N", None)) -> None:
    """Write a model with Y = X that runs on the GPU, with a script of the stand-in."""
    file = models.identity(root / name / "1/model.onnx", dims=dims)
    if script:
        loaded = onnx.load(file)
        loaded.producer_name = script
        onnx.save(loaded, file)
    (root / name / "config.pbtxt").write_text(f"instance_group {{ kind: KIND_GPU }}\n{config}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Yield a server with several models on the stand-in GPU."""
    root = tmp_path_factory.mktemp("models")
    write(root, "plain")
    write(root, "slow", "max_batch_size: 8\n", "slow 5")
    write(root, "lost", script="lose later")
    write(root, "wrong", "optimization { execution_accelerators { gpu_execution_accelerator { name: 'tensorrt' "
                         "parameters { key: 'trt_colour' value: 'red' } } } }\n")  # fmt: skip
    write(
        root, "tensorrt", "optimization { execution_accelerators { gpu_execution_accelerator { name: 'tensorrt' } } }"
    )
    library = stand_in.build(tmp_path_factory.mktemp("cuda"))
    prefix = [*stand_in.prefix(library, devices=2), f"PYTHONPATH={STAND_INS}:{ROOT}"]
    arguments = (f"--model-repository={root}", "--exit-on-error=false", "--grpc-port=0", "--allow-grpc=true")
    with running(*arguments, prefix=prefix) as served:
        yield served


def infer_http(server: Running, model: str, array: Any) -> Any:
    one = http.InferInput("X", list(array.shape), "FP32")
    one.set_data_from_numpy(array)
    with http.InferenceServerClient(server.url) as client:
        return client.infer(model, [one]).as_numpy("Y")


def test_small_and_large_tensors_over_http_and_grpc(server: Running) -> None:
    port = int(server.wait_for_log(r"gRPC on 127\.0\.0\.1:(\d+)")[1])
    client = grpc.InferenceServerClient(f"127.0.0.1:{port}")
    for columns in (3, WIDE):
        array = np.random.default_rng(columns).random((2, columns), np.float32)
        one = grpc.InferInput("X", [2, columns], "FP32")
        one.set_data_from_numpy(array)
        assert (infer_http(server, "plain", array) == array).all()
        assert (client.infer("plain", [one]).as_numpy("Y") == array).all()


def test_batches_overlap_and_each_request_gets_its_own_rows(server: Running) -> None:
    wrong: list[object] = []

    def ask(value: int) -> None:
        for step in range(4):
            columns = WIDE if step % 2 else 4
            array = np.full((1, columns), value * 10 + step, np.float32)
            if not (infer_http(server, "slow", array) == array).all():
                wrong.append((value, step))

    threads = [threading.Thread(target=ask, args=(value,)) for value in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    metrics = server.get("/metrics", server.metrics)[1].decode().splitlines()
    counts = {line.partition("{")[0]: float(line.rsplit(" ", 1)[1]) for line in metrics if 'model="slow"' in line}
    assert counts["nv_inference_count"] == 48
    assert counts["nv_inference_exec_count"] < 48


def test_models_that_do_not_load_say_why_and_the_others_serve(server: Running) -> None:
    _, body = server.post("/v2/repository/index", {})
    text = body.decode()
    assert "unknown parameter 'trt_colour' is provided for TensorRT Execution Accelerator" in text
    assert "onnxruntime has no TensorrtExecutionProvider, which the model asks for" in text
    assert server.get("/v2/models/plain/ready")[0] == 200


def test_a_worker_whose_device_is_lost_is_started_again(server: Running) -> None:
    array = np.ones((1, 3), np.float32)
    content = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 3], "data": [1, 1, 1]}]}

    status, body = server.post("/v2/models/lost/infer", content)

    assert status == 500
    assert b"an illegal memory access was encountered" in body
    server.wait_for_log("the worker ends because its device is lost")
    server.wait_for_log("model plain is back in worker")
    assert (infer_http(server, "plain", array) == array).all()


@pytest.mark.slow
def test_model_waits_while_the_load_of_another_keeps_the_interpreter(tmp_path: Path) -> None:
    """It cannot answer, and does not hang."""
    shared = 'parameters { key: "EDGE_SERVE_WORKER" value { string_value: "shared" } }\n'
    write(tmp_path, "serves", shared)
    write(tmp_path, "loads", shared, "hold 6000")
    library = stand_in.build(tmp_path)
    prefix = [*stand_in.prefix(library, devices=1), f"PYTHONPATH={STAND_INS}:{ROOT}"]
    flags = ("--model-control-mode=explicit", "--load-model=serves", "--hang-timeout-secs=1")
    with running(f"--model-repository={tmp_path}", *flags, prefix=prefix) as server:
        workers = server.workers()
        loading = threading.Thread(target=server.post, args=("/v2/repository/models/loads/load", {}))
        loading.start()
        time.sleep(2)
        started = time.monotonic()
        infer_http(server, "serves", np.zeros((1, 4), np.float32))
        assert time.monotonic() - started > 2, "the load was over before"
        loading.join()
        infer_http(server, "loads", np.zeros((1, 4), np.float32))
        assert server.workers() == workers
