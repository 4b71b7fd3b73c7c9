"""A server under load, beside the bare loop over the same library."""

from __future__ import annotations

import itertools
import json
import math
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import bodies, load
from benchmarks.hardware import bare_loop, models, readings
from benchmarks.report import Row
from benchmarks.servers import Server, edge_serve, get

CONNECTIONS = 32
#: a limited instance has one batch at a time (ADR 27)
ONE_SEAT = "--rate-limit=execution_count"
#: inferences a second of a bare loop, in the range of an Orin
HEAVY = 800
_TYPES = {"FP32": np.float32, "FP16": np.float16, "INT32": np.int32, "INT64": np.int64}
Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


def beside_loop(name: str, kind: str, seconds: float, plan: Path | None = None, *, graphs: bool = False) -> Row:
    """Measure one model: 32 connections beside a loop with the batches that the server formed, 32 connections while an
    instance has one batch at a time, and one connection.

    Args:
        plan: what TensorRT serves; None = ONNX Runtime serves the ONNX file.
        graphs: with CUDA graphs.
    """
    shape = models.measured(name)
    with tempfile.TemporaryDirectory(prefix="hw-check-") as folder:
        repository = Path(folder)
        models.write(repository, name, kind, plan, graphs=graphs)
        request = bodies.picture_binary(name, models.ends(name)[0], models.rows(1, shape=shape))
        with edge_serve(repository) as server:
            load.latencies(server, request, 1.0)  # warm up
            alone = {**_alone(server, request, seconds / 2), **own_times(server, name, request, seconds / 2)}
            full = _many(server, name, request, seconds)
        with edge_serve(repository, ONE_SEAT) as server:
            load.latencies(server, request, 1.0)  # warm up
            one_seat = _rate(server, request, seconds)
        batch = max(1, round(float(full["mean batch"])))
        bare = bare_loop.measure(plan or models.onnx_file(name), kind, seconds, (batch, *shape))
    library = "ONNX Runtime" if plan is None else f"TensorRT, {plan.stem}{', graphs' if graphs else ''}"
    ratio = float(full["served /s"]) / bare
    return {
        "model": name, "library": library, "kind": kind, **full,
        "one seat /s": one_seat, "bare loop /s": bare, "ratio": ratio, **alone,
    }  # fmt: skip


def heavy(kind: str, seconds: float) -> Row:
    """Measure ResNet-50 as many times in one model as makes the bare loop slower than `HEAVY` inferences a second."""
    alone = bare_loop.measure(models.onnx_file("resnet50"), kind, 2.0, (8, *models.SHAPE))
    times = math.ceil(alone / HEAVY)
    name = "resnet50" if times == 1 else f"resnet50-{times}-times"
    return {**beside_loop(name, kind, seconds), "largest difference": largest_difference(name, kind)}


def largest_difference(name: str, kind: str, plan: Path | None = None, *, graphs: bool = False) -> float:
    """Return the largest difference between the served answers and ONNX Runtime's on the CPU, for 8 inputs of each
    shape; infinity where the shapes of the answers differ. ONNX Runtime computes without TF32."""
    import onnxruntime

    source, names = models.ends(name)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(models.onnx_file(name), options, providers=[("CPUExecutionProvider", {})])
    with tempfile.TemporaryDirectory(prefix="hw-check-") as folder:
        models.write(Path(folder), name, kind, plan, graphs=graphs, tf32=False)
        with edge_serve(Path(folder)) as server:
            return max(
                _difference(session.run(names, {source: values}), [found[one] for one in names])
                for shape in models.shapes(name)
                for values in np.split(models.rows(8, shape=shape), 8)
                for found in [_ask(server, bodies.picture_binary(name, source, values))]
            )


def _difference(expected: Sequence[Array], found: Sequence[Array]) -> float:
    if [one.shape for one in expected] != [one.shape for one in found]:
        return math.inf
    pairs = zip(expected, found, strict=True)
    return max(float(np.abs(ours - theirs).max()) if ours.size else 0.0 for ours, theirs in pairs)


def _ask(server: Server, request: bytes) -> dict[str, Array]:
    """Return the outputs, by name."""
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(request)
        reply = load.read_reply(sock)
    document, end = json.JSONDecoder().raw_decode(reply.decode("latin-1"))
    found: dict[str, Array] = {}
    for one in document["outputs"]:
        size = int(one["parameters"]["binary_data_size"])
        found[one["name"]] = np.frombuffer(reply[end : end + size], _TYPES[one["datatype"]]).reshape(one["shape"])
        end += size
    return found


def _alone(server: Server, request: bytes, seconds: float) -> Row:
    """Measure latencies of one connection."""
    taken = sorted(load.latencies(server, request, seconds))
    return {"alone median ms": statistics.median(taken) * 1e3, "alone p99 ms": taken[int(len(taken) * 0.99)] * 1e3}


def own_times(server: Server, name: str, request: bytes, seconds: float) -> Row:
    """Measure what of each request on one connection is neither a copy to or from the device nor execution.

    The model's time is read from the statistics after each request: the mean and its parts would not give a p99. The
    client's part and the socket count as the server's.
    """
    own: list[float] = []
    end = time.perf_counter() + seconds
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        before = _model_seconds(server, name)
        while (start := time.perf_counter()) < end:
            sock.sendall(request)
            load.read_reply(sock)
            taken = time.perf_counter() - start
            after = _model_seconds(server, name)
            own.append((taken - (after - before)) * 1e3)
            before = after
    own.sort()
    return {
        "server's own ms (mean)": statistics.mean(own), "server's own ms (median)": statistics.median(own),
        "server's own ms (p99)": own[int(len(own) * 0.99)],
    }  # fmt: skip


def _model_seconds(server: Server, name: str) -> float:
    found = _statistics(server, name)
    return sum(found[part] for part in ("input", "infer", "output")) / 1e9


def _many(server: Server, name: str, request: bytes, seconds: float) -> Row:
    """Measure 32 connections; "busy" is the share of one core."""
    before, cpu, front = _statistics(server, name), server.cpu_seconds(), server.front_end_seconds()
    with ThreadPoolExecutor(1) as beside:
        read = beside.submit(readings.means, server, int(seconds))
        rate = _rate(server, request, seconds)
        gpu = read.result()
    after, cpu, front = _statistics(server, name), server.cpu_seconds() - cpu, server.front_end_seconds() - front
    rows = max(1, after["inferences"] - before["inferences"])
    batch = rows / max(1, after["executions"] - before["executions"])
    return {
        "served /s": rate, "mean batch": batch, "CPU ms per request": cpu / rows * 1e3,
        "front end busy": front / seconds, "workers busy": (cpu - front) / seconds,
        "GPU busy": gpu.get("nv_gpu_utilization"), "power W": gpu.get(readings.POWER),
    }  # fmt: skip


def under_load(server: Server, name: str, seconds: float) -> None:
    """Send requests over all connections."""
    request = bodies.picture_binary(name, models.ends(name)[0], models.rows(1, shape=models.measured(name)))
    _rate(server, request, seconds)


def _rate(server: Server, request: bytes, seconds: float) -> float:
    """Return the answers per second over all connections, spread over processes, after a fifth of the time."""
    processes = min(CONNECTIONS, max(1, len(os.sched_getaffinity(0)) // 2))
    shares = [CONNECTIONS // processes + (one < CONNECTIONS % processes) for one in range(processes)]
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        asked = [pool.submit(_share, server, request, share, seconds) for share in shares]
        return sum(one.result() for one in asked) / (0.8 * seconds)


def _share(server: Server, request: bytes, connections: int, seconds: float) -> int:
    """Return the answers that came after a fifth of the time, and before its end."""

    def ask(_: int) -> int:
        ends = itertools.accumulate(load.latencies(server, request, seconds))
        return sum(seconds / 5 < end <= seconds for end in ends)

    with ThreadPoolExecutor(connections) as pool:
        return sum(pool.map(ask, range(connections)))


def _statistics(server: Server, name: str) -> dict[str, int]:
    found: dict[str, Any] = json.loads(get(server.port, f"/v2/models/{name}/stats"))["model_stats"][0]
    inner = found["inference_stats"]
    times = {part: int(inner[f"compute_{part}"]["ns"]) for part in ("input", "infer", "output")}
    return {
        "inferences": int(found["inference_count"]), "executions": int(found["execution_count"]), **times,
    }  # fmt: skip
