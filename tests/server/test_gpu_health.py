"""A server whose GPU runs full, is lost, and comes back, on the stand-ins for libcuda, CUDA, TensorRT, and NVML."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.devices import stand_in
from tests.server.load import Client, Load, busy
from tests.server.running import Running, python_model, running
from tests.stand_ins.plans import plan, tensor

ROOT = Path(__file__).parents[2]
STAND_INS = Path(__file__).parents[1] / "stand_ins"
MIB = 1 << 20
UUID = "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0"
#: a board that CUDA does not see, as with CUDA_VISIBLE_DEVICES
HIDDEN = {"uuid": "GPU-h1dden", "memory": [1000 * MIB, 0], "load": 99}
INPUT = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
OWN = 'parameters { key: "EDGE_SERVE_WORKER" value { string_value: "own" } }\n'
CPU_MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
"""
CPU_CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
"""


ON_CPU = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}]})


class Machine:
    """The files that describe the driver and the board to the stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.driver, self.nvml = folder / "driver", folder / "nvml.json"
        self.drive("")
        self.board()

    def drive(self, fields: str) -> None:
        self.driver.write_text(fields)

    def board(self, used: int = 200, **more: Any) -> None:
        board = {"uuid": UUID, "memory": [1000 * MIB, used * MIB], "load": 7, "clock_reasons": 0x40, **more}
        written = self.nvml.with_suffix(".new")
        written.write_text(json.dumps({"boards": [HIDDEN, board]}))
        written.rename(self.nvml)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("machine"))


def write(root: Path, ops: Mapping[str, str], version: str = "10.3.0") -> None:
    """Write plans (name -> op) of a version of TensorRT, and a model on the CPU."""
    both = [tensor("INPUT0", "INPUT", "FLOAT", (-1, 4)), tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, 4))]
    profiles = [{"INPUT0": ((1, 4), (4, 4), (8, 4))}]
    for name, op in ops.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "1" / "model.plan").write_bytes(plan(op, both, profiles, version))
        config = f'platform: "tensorrt_plan"\ninstance_group {{ kind: KIND_GPU }}\n{OWN if name == "apart" else ""}'
        (root / name / "config.pbtxt").write_text(config)
    python_model(root, "on_cpu", CPU_MODEL, CPU_CONFIG)


@contextmanager
def serving(machine: Machine, folder: Path, ops: Mapping[str, str], *arguments: str) -> Iterator[Running]:
    """Run a server with plans (name -> op) and a model on the CPU."""
    root, library = folder / "models", folder / "library"
    for place in (root, library):
        place.mkdir()
    stand_in.build(library)
    (library / "libnvidia-ml.so.1").write_bytes((library / "libcuda.so.1").read_bytes())  # pynvml is a stand-in too
    write(root, ops)
    prefix = [
        *stand_in.prefix(library), f"PYTHONPATH={STAND_INS}:{ROOT}", f"STAND_IN_CUDA_FILE={machine.driver}",
        f"STAND_IN_NVML={machine.nvml}",
    ]  # fmt: skip
    with running(f"--model-repository={root}", *arguments, prefix=prefix) as served:
        yield served


@pytest.fixture(scope="module")
def server(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    ops = {"same": "identity", "poison": "fail", "more": "identity", "apart": "identity"}
    loads = [f"--load-model={name}" for name in ("same", "poison", "apart", "on_cpu")]
    arguments = ["--model-control-mode=explicit", "--model-load-gpu-limit=0:0.9", *loads]
    with serving(machine, tmp_path_factory.mktemp("server"), ops, *arguments) as served:
        yield served


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def status_of(server: Running) -> Any:
    return json.loads(server.get("/edge-serve/status")[1])


def test_board_is_on_the_metrics_page_and_in_the_status(server: Running, machine: Machine) -> None:
    metrics = server.get("/metrics", server.metrics)[1].decode()
    assert f'nv_gpu_utilization{{gpu_uuid="{UUID}"}} 0.07' in metrics
    assert f'edge_serve_gpu_throttled{{gpu_uuid="{UUID}",reason="hw_thermal"}} 1' in metrics
    assert "nv_gpu_power_usage{" not in metrics, "this board does not report it"
    pid = next(pid for pid in server.workers())
    machine.board(processes={str(pid): 300 * MIB})

    status = status_of(server)

    assert [gpu["uuid"] for gpu in status["device"]["gpus"]] == [UUID]
    assert "GPU-h1dden" not in metrics
    assert status["device"]["gpus"][0]["throttling"] == ["hw_thermal"]
    assert next(one for one in status["workers"] if one["pid"] == pid)["gpu_memory_bytes"] == 300 * MIB


def test_load_that_does_not_fit_is_refused_and_fits_later(server: Running, machine: Machine) -> None:
    machine.board(used=950)
    status, body = server.post("/v2/repository/models/more/load", {})
    assert status == 400, body
    assert b"does not fit into the memory of GPU 0 (Stand-in GPU 0): it needs 256 MiB" in body
    assert b"50 MiB are available" in body
    machine.board(used=200)
    assert server.post("/v2/repository/models/more/load", {})[0] == 200
    assert server.post("/v2/repository/models/more/unload", {})[0] == 200


def test_sticky_error_under_load_costs_the_models_of_its_worker_alone(server: Running) -> None:
    fail_under_load(server)


def fail_under_load(server: Running) -> None:
    """Lose the device of a worker under load.

    `same` and `poison` share that worker, and are back within 10 s. `apart` and `on_cpu` have workers of their own, and
    no request to them fails.
    """
    others, sharing = Load(), Load()

    def ask(load: Load, model: str, body: str) -> None:
        client = Client(server.http)
        while not load.stop.is_set():
            status, answer = client.infer(model, body)
            with load.lock:
                load.answered += 1
                if status != 200:
                    load.failures.append((model, answer))
        client.close()

    def fail_once() -> None:
        others.wait_for_answers(20)
        before = server.workers()
        assert server.post("/v2/models/poison/infer", INPUT)[0] == 500
        failed = time.monotonic()
        until(lambda: len(server.workers()) == len(before) and set(server.workers()) != set(before))
        until(lambda: all(server.get(f"/v2/models/{name}/ready")[0] == 200 for name in ("same", "poison")))
        assert server.post("/v2/models/same/infer", INPUT)[0] == 200
        assert time.monotonic() - failed < 10
        assert len(set(before) & set(server.workers())) == len(before) - 1, "one worker was started again"
        others.wait_for_answers(20)

    work = [partial(ask, others, model, body) for model, body in (("apart", json.dumps(INPUT)), ("on_cpu", ON_CPU))]
    busy(sharing, [partial(ask, sharing, "same", json.dumps(INPUT))], lambda: busy(others, work, fail_once))

    assert others.failures == []
    assert len(sharing.failures) < sharing.answered
    assert {model for model, _ in sharing.failures} <= {"same"}


def test_lost_device_is_reported_and_its_models_return_with_it(server: Running, machine: Machine) -> None:
    assert server.get("/v2/health/ready")[0] == 200
    machine.drive("init=999")

    assert server.post("/v2/models/poison/infer", INPUT)[0] == 500
    server.wait_for_log(r"is not started: CUDA does not work: cuInit failed with CUDA_ERROR_UNKNOWN; .*dmesg")
    assert server.get("/v2/models/same/ready")[0] == 400
    assert server.get("/v2/health/ready")[0] == 400
    row = next(one for one in status_of(server)["models"] if one["name"] == "same")
    assert (row["condition"], "CUDA_ERROR_UNKNOWN" in row["reason"]) == ("restarting", True)
    assert server.get("/v2/models/on_cpu/ready")[0] == 200, "models on the CPU are untouched"

    machine.drive("")
    server.wait_for_log("the driver finds the GPUs of worker .* again")
    until(lambda: server.get("/v2/health/ready")[0] == 200)
    status, body = server.post("/v2/models/same/infer", INPUT)
    assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [1, 2, 3, 4])


@pytest.mark.slow
def test_sticky_error_is_found_by_self_inference_before_a_client_meets_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with serving(machine, tmp_path, {"idle": "breaks"}, "--self-inference-interval-secs=0.5") as server:
        until(lambda: idle_answers(server) > 0)  # it was asked, and will be compared with itself
        before = server.workers()
        machine.drive("broken=1")
        server.wait_for_log("the worker ends because its device is lost: .*an illegal memory access was encountered")
        server.wait_for_log("model idle is back in worker")
        machine.drive("")
        until(lambda: server.get("/v2/models/idle/ready")[0] == 200 and server.workers() != before)
        assert server.post("/v2/models/idle/infer", INPUT)[0] == 200


def idle_answers(server: Running) -> int:
    row = next(one for one in status_of(server)["models"] if one["name"] == "idle")
    return int(row["totals"]["requests"])
