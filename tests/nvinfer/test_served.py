"""Plans that the server runs through TensorRT's own Python bindings, over HTTP and gRPC."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import tritonclient.grpc as grpc

from tests.devices import stand_in
from tests.nvinfer.genuine import Missing, environ
from tests.server.running import Running, running
from tests.server.test_tensorrt import addsub, infer_http, write
from tests.stand_ins.plans import plan, tensor


@dataclass(frozen=True, slots=True)
class Served:
    """A server, and the version of TensorRT that it uses."""

    server: Running
    version: str


@pytest.fixture(
    scope="module",
    params=["10.3.0", *(pytest.param(version, marks=pytest.mark.slow) for version in ("8.6.1", "11.4.0"))],
)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Yield a server with several plans, of which some do not load."""
    version, root = request.param, tmp_path_factory.mktemp("models")
    try:
        variables = environ(version)
    except Missing as reason:
        pytest.skip(str(reason))
    write(root, "slow", addsub(milliseconds=20, version=version), "max_batch_size: 8 dynamic_batching { }\n")
    write(root, "half", addsub("HALF", version=version), "optimization { cuda { graphs: true } }\n")
    kind = "INT32" if version.startswith("8.") else "INT64"
    found = [tensor("INPUT0", "INPUT", "FLOAT", (-1,)), tensor("OUTPUT0", "OUTPUT", kind, (1, -1))]
    write(root, "nonzero", plan("nonzero", found, [{"INPUT0": ((1,), (8,), (64,))}], version=version),
          'input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }\n'
          f'output {{ name: "OUTPUT0" data_type: TYPE_{kind} dims: [ 1, -1 ] }}\n')  # fmt: skip
    found = [tensor("SIZE", "INPUT", "INT32", (2,), shape_tensor=True), tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, -1))]
    found += [tensor("SHAPE", "OUTPUT", kind, (2,), shape_tensor=True)]
    write(root, "sized", plan("sized", found, [{"SIZE": ((1, 1), (2, 3), (8, 9))}], version=version),
          'input { name: "SIZE" data_type: TYPE_INT32 dims: [ 2 ] is_shape_tensor: true }\n'
          'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1, -1 ] }\n'
          f'output {{ name: "SHAPE" data_type: TYPE_{kind} dims: [ 2 ] is_shape_tensor: true }}\n')  # fmt: skip
    both = [tensor("INPUT0", "INPUT", "FLOAT", (-1, -1)), tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, -1))]
    profiles = [{"INPUT0": ((1, 1), (1, 4), (2, 8))}, {"INPUT0": ((1, 8), (4, 64), (8, 64))}]
    write(root, "two", plan("identity", both, profiles, version=version))
    config = root / "two" / "config.pbtxt"
    config.write_text(config.read_text().replace("KIND_GPU", 'KIND_GPU profile: ["0", "1"]'))
    write(root, "lost", plan("fail", both, profiles, version=version))
    write(root, "old", addsub(version="7.2.3"))
    write(root, "truncated", addsub(version=version)[:60])
    library = stand_in.build(tmp_path_factory.mktemp("cuda"))
    # the Python stand-in for `tensorrt` would refuse every plan
    prefix = [*stand_in.prefix(library), f"PYTHONPATH={variables['PYTHONPATH']}", "STAND_IN_TENSORRT=0.0.0"]
    arguments = (f"--model-repository={root}", "--exit-on-error=false", "--grpc-port=0", "--allow-grpc=true")
    with running(*arguments, prefix=prefix) as server:
        yield Served(server, version)


def test_requests_over_http_are_batched_and_each_gets_its_own_rows(served: Served) -> None:
    wrong: list[object] = []

    def ask(value: int) -> None:
        first = np.full((1, 4), value, np.float32)
        for _ in range(5):
            found = infer_http(served.server, "slow", INPUT0=first, INPUT1=first)
            if found["OUTPUT0"].tolist() != [[2 * value] * 4]:
                wrong.append(found)

    threads = [threading.Thread(target=ask, args=(value,)) for value in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    metrics = served.server.get("/metrics", served.server.metrics)[1].decode().splitlines()
    counts = {line.partition("{")[0]: float(line.rsplit(" ", 1)[1]) for line in metrics if 'model="slow"' in line}
    assert counts["nv_inference_count"] == 40
    assert counts["nv_inference_exec_count"] < 30


def test_half_precision_over_grpc_with_graphs(served: Served) -> None:
    port = int(served.server.wait_for_log(r"gRPC on 127\.0\.0\.1:(\d+)")[1])
    client = grpc.InferenceServerClient(f"127.0.0.1:{port}")
    for rows in (1, 3):
        array = np.arange(rows * 4, dtype=np.float16).reshape(rows, 4) / 4
        inputs = [grpc.InferInput(f"INPUT{n}", array.shape, "FP16") for n in (0, 1)]
        for one in inputs:
            one.set_data_from_numpy(array)

        result = client.infer("half", inputs)

        assert (result.as_numpy("OUTPUT0") == array * 2).all()
        assert (result.as_numpy("OUTPUT1") == 0).all()


def test_output_whose_size_the_data_decide_and_profiles_by_shape(served: Served) -> None:
    array = np.array([0, 3, 0, 0, 5, 7], np.float32)

    assert infer_http(served.server, "nonzero", INPUT0=array)["OUTPUT0"].tolist() == [[1, 4, 5]]
    for shape in ((1, 2), (8, 64), (2, 8)):
        array = np.random.default_rng(1).random(shape).astype(np.float32)
        assert (infer_http(served.server, "two", INPUT0=array)["OUTPUT0"] == array).all()


def test_shape_tensors_among_inputs_and_outputs(served: Served) -> None:
    for size in ([3, 2], [8, 9], [1, 1]):
        found = infer_http(served.server, "sized", SIZE=np.array(size, np.int32))
        assert (found["SHAPE"].tolist(), list(found["OUTPUT0"].shape)) == (size, size)


def test_plan_that_cannot_be_served_says_why(served: Served) -> None:
    _, body = served.server.post("/v2/repository/index", {})
    reasons = {entry["name"]: entry.get("reason", "") for entry in json.loads(body)}

    assert f"expecting library version {served.version} got 7.2.3" in reasons["old"]
    assert re.search("unable to load plan file to auto complete config|unexpected end of archive", reasons["truncated"])


def test_worker_whose_device_is_lost_is_started_again(served: Served) -> None:
    entry = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1] * 4}

    status, body = served.server.post("/v2/models/lost/infer", {"inputs": [entry]})

    assert status == 500
    assert b"an illegal memory access was encountered" in body
    served.server.wait_for_log("model two is back in worker")
    array = np.ones((1, 4), np.float32)
    assert (infer_http(served.server, "two", INPUT0=array)["OUTPUT0"] == array).all()
