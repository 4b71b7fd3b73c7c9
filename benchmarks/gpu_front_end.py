"""What does a request to a TensorRT model cost the front end, beside one to an ONNX model on the CPU?

The TensorRT model runs on the stand-ins for CUDA and TensorRT (tests/stand_ins). It takes as long as the ONNX model,
but sleeps, as a processor does while a GPU computes. With a model of some microseconds the front end hardly sleeps,
with one of 0.4 ms it sleeps between batches (ADR 27).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from benchmarks import bodies, load
from benchmarks.report import ROOT, Report, Row
from benchmarks.servers import Server, edge_serve
from tests.devices import stand_in
from tests.stand_ins.plans import plan, tensor

CONNECTIONS, SECONDS = 8, 1.0
COLUMNS, MAX_BATCH = 16, 8
#: a row of a hidden layer, and the time that the slow model takes for two rows
WIDTH, SLOW_SECONDS = 256, 0.4e-3
#: the ratio that the project allows
BAR = 1.2
_CONFIG = """platform: "{platform}"
max_batch_size: {most}
dynamic_batching {{ }}
instance_group {{ kind: KIND_{kind} }}
"""
_ONE_THREAD = 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }\n'


def run(rounds: int = 5) -> Report:
    """Measure 8 connections in a closed loop, both servers in turn."""
    report = Report("gpu_front_end", "front end CPU per request: TensorRT on stand-ins beside ONNX on the CPU, in us")
    with tempfile.TemporaryDirectory(prefix="bench-models-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        models = {"some us": (0, 0.0), "0.4 ms": (_layers(), SLOW_SECONDS)}
        for model, (layers, seconds) in models.items():
            _write(folder, _short(model), _network(layers), seconds)
        library = stand_in.build(folder)
        path = os.pathsep.join([str(ROOT / "tests/stand_ins"), str(ROOT)])
        environ = {**os.environ, **stand_in.environ(library, devices=1), "PYTHONPATH": path}
        gpu = stack.enter_context(edge_serve(folder / "GPU", "--allow-grpc=true", environ=environ))
        cpu = stack.enter_context(edge_serve(folder / "CPU", "--allow-grpc=true"))
        pool = stack.enter_context(ProcessPoolExecutor(1, multiprocessing.get_context("spawn")))
        for model in models:
            for door in ("http", "grpc"):
                row = _in_turn(pool, gpu, cpu, _short(model), door, rounds)
                report.rows.append({"model": model, "door": door, **row, "asked": BAR})
    report.notes.append(f"{rounds} rounds of {SECONDS:g} s in turn, {CONNECTIONS} connections; medians")
    return report


def _short(model: str) -> str:
    return model.replace(" ", "").replace(".", "")


def _in_turn(pool: ProcessPoolExecutor, gpu: Server, cpu: Server, model: str, door: str, rounds: int) -> Row:
    for server in (gpu, cpu):
        pool.submit(clients, server, model, door, SECONDS / 2).result()  # warm up
    pairs = [[_cost(pool, server, model, door) for server in (gpu, cpu)] for _ in range(rounds)]
    ratios = sorted(ours["us"] / theirs["us"] for ours, theirs in pairs)
    row: Row = {}
    for index, side in enumerate(("TensorRT", "ONNX")):
        for key in ("us", "batch", "/s"):
            row[f"{side} {key}"] = statistics.median(pair[index][key] for pair in pairs)
    return {**row, "ratio": statistics.median(ratios), "lowest": ratios[0], "highest": ratios[-1]}


def _cost(pool: ProcessPoolExecutor, server: Server, model: str, door: str) -> dict[str, float]:
    """Return the front end's processor time of a request in us, the mean batch, and requests per second."""
    cpu, (answered, batches) = server.front_end_seconds(), server.counts(model)
    started = time.monotonic()
    pool.submit(clients, server, model, door, SECONDS).result()
    taken = time.monotonic() - started
    cpu, (answers, executions) = server.front_end_seconds() - cpu, server.counts(model)
    count = max(1, answers - answered)
    return {"us": cpu / count * 1e6, "batch": count / max(1, executions - batches), "/s": count / taken}


def clients(server: Server, model: str, door: str, seconds: float) -> None:
    """Send requests over all connections, in a process of their own."""
    target = _over_http if door == "http" else _over_grpc
    threads = [threading.Thread(target=target, args=(server, model, seconds)) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _over_http(server: Server, model: str, seconds: float) -> None:
    load.latencies(server, bodies.picture_binary(model, "INPUT0", _row()), seconds)


def _over_grpc(server: Server, model: str, seconds: float) -> None:
    import tritonclient.grpc as grpc

    end = time.perf_counter() + seconds
    given = grpc.InferInput("INPUT0", [1, COLUMNS], "FP32")
    given.set_data_from_numpy(_row())
    with grpc.InferenceServerClient(server.grpc_address) as client:
        while time.perf_counter() < end:
            client.infer(model, [given])


def _row() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.ones((1, COLUMNS), np.float32)


def _layers() -> int:
    """Return how many hidden layers take the time of the slow model on this machine."""
    import onnxruntime

    options, tried = onnxruntime.SessionOptions(), 50
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(_network(tried), options, providers=["CPUExecutionProvider"])
    taken = []
    for _ in range(50):
        start = time.perf_counter()
        session.run(None, {"INPUT0": np.ones((2, COLUMNS), np.float32)})
        taken.append(time.perf_counter() - start)
    return max(1, round(tried * SLOW_SECONDS / statistics.median(taken)))


def _network(layers: int) -> bytes:
    """Return an ONNX file FP32[N,16] -> FP32[N,16]; without hidden layers it negates."""
    generator = np.random.default_rng(1)
    sizes = [(COLUMNS, WIDTH), *[(WIDTH, WIDTH)] * (layers - 1), (WIDTH, COLUMNS)] if layers else []
    weights = [generator.normal(0, 1 / np.sqrt(rows), (rows, columns)) for rows, columns in sizes]
    tensors = [numpy_helper.from_array(one.astype(np.float32), f"w{n}") for n, one in enumerate(weights)]
    names = ["INPUT0", *(f"h{n}" for n in range(len(weights)))]
    nodes = [helper.make_node("MatMul", [names[n], f"w{n}"], [names[n + 1]]) for n in range(len(weights))]
    nodes.append(helper.make_node("Neg", [names[-1]], ["OUTPUT0"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", COLUMNS]) for name in ("INPUT0", "OUTPUT0")]
    graph = helper.make_graph(nodes, "network", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


def _write(folder: Path, name: str, content: bytes, seconds: float) -> None:
    """Write a model twice: as a plan of the stand-in, which sleeps, into GPU/, and as an ONNX file into CPU/."""
    ends = [tensor("INPUT0", "INPUT", "FLOAT", (-1, COLUMNS)), tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, COLUMNS))]
    profile = {"INPUT0": ((1, COLUMNS), (4, COLUMNS), (MAX_BATCH, COLUMNS))}
    files = {
        "GPU": ("tensorrt_plan", "model.plan", plan("identity", ends, [profile], milliseconds=seconds * 1e3)),
        "CPU": ("onnxruntime_onnx", "model.onnx", content),
    }
    for kind, (platform, file, data) in files.items():
        (folder / kind / name / "1").mkdir(parents=True)
        (folder / kind / name / "1" / file).write_bytes(data)
        config = _CONFIG.format(platform=platform, most=MAX_BATCH, kind=kind)
        (folder / kind / name / "config.pbtxt").write_text(config + (_ONE_THREAD if kind == "CPU" else ""))
