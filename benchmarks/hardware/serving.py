"""A server under load, beside the bare loop over the same library."""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import re
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import bodies, load
from benchmarks.hardware import bare_loop, models
from benchmarks.report import Row
from benchmarks.servers import Server, edge_serve

CONNECTIONS = 32
#: a limited instance has one batch at a time (ADR 27)
ONE_SEAT = "--rate-limit=execution_count"
Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def beside_loop(name: str, kind: str, seconds: float, plan: Path | None = None, *, graphs: bool = False) -> Row:
    """Measure one model: 32 connections beside a loop with the batches that the server formed, 32 connections while an
    instance has one batch at a time, and one connection.

    Args:
        plan: what TensorRT serves; None = ONNX Runtime serves the ONNX file.
        graphs: with CUDA graphs.
    """
    with tempfile.TemporaryDirectory(prefix="hw-check-") as folder:
        repository = Path(folder)
        models.write(repository, name, kind, plan, graphs=graphs)
        request = bodies.picture_binary(name, models.ends(name)[0], models.rows(1))
        with edge_serve(repository) as server:
            load.latencies(server, request, 1.0)  # warm up
            alone = _alone(server, name, request, seconds / 2)
            full = _many(server, name, request, seconds)
            power = sampled_power(server)
        with edge_serve(repository, ONE_SEAT) as server:
            load.latencies(server, request, 1.0)  # warm up
            one_seat = _answered(server, request, seconds) / seconds
        batch = max(1, round(float(full["mean batch"])))
        library = "ONNX Runtime" if plan is None else f"TensorRT, {plan.stem}{', graphs' if graphs else ''}"
        bare = bare_loop.measure(plan or models.onnx_file(name), kind, batch, seconds)
    return {
        "model": name, "library": library, "kind": kind, **full,
        "one seat /s": one_seat, "bare loop /s": bare, "ratio": float(full["served /s"]) / bare, **alone,
        "power W": power,
    }  # fmt: skip


def largest_difference(name: str, kind: str, plan: Path | None = None) -> float:
    """Return the largest difference between the served answers and ONNX Runtime's on the CPU, for 8 inputs."""
    import onnxruntime

    input_name, output_name = models.ends(name)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(models.onnx_file(name), options, providers=[("CPUExecutionProvider", {})])
    values = models.rows(8)
    expected = session.run([output_name], {input_name: values})[0].reshape(8, -1)
    with tempfile.TemporaryDirectory(prefix="hw-check-") as folder:
        models.write(Path(folder), name, kind, plan)
        with edge_serve(Path(folder)) as server:
            found = [_ask(server, name, input_name, values[row : row + 1]) for row in range(len(values))]
    return float(np.abs(np.concatenate(found) - expected).max())


def _ask(server: Server, name: str, tensor: str, values: Array) -> Array:
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(bodies.picture_binary(name, tensor, values))
        reply = load.read_reply(sock)
    end = json.JSONDecoder().raw_decode(reply.decode("latin-1"))[1]
    return np.frombuffer(reply[end:], np.float32).reshape(1, -1)


def _alone(server: Server, name: str, request: bytes, seconds: float) -> Row:
    """One connection: latencies, and what of them is neither copies to and from the device nor execution."""
    before = _statistics(server, name)
    taken = sorted(load.latencies(server, request, seconds))
    after = _statistics(server, name)
    model = sum(after[part] - before[part] for part in ("input", "infer", "output")) / len(taken) / 1e6
    median = statistics.median(taken) * 1e3
    slow, own = taken[int(len(taken) * 0.99)] * 1e3, statistics.mean(taken) * 1e3 - model
    return {"alone median ms": median, "alone p99 ms": slow, "server's own ms (mean)": own}


def _many(server: Server, name: str, request: bytes, seconds: float) -> Row:
    before, cpu = _statistics(server, name), server.cpu_seconds()
    count = _answered(server, request, seconds)
    after, cpu = _statistics(server, name), server.cpu_seconds() - cpu
    executions = max(1, after["executions"] - before["executions"])
    batch = (after["inferences"] - before["inferences"]) / executions
    return {"served /s": count / seconds, "mean batch": batch, "CPU ms per request": cpu / max(1, count) * 1e3}


def _answered(server: Server, request: bytes, seconds: float) -> int:
    """Return how many requests were answered over all connections, spread over processes."""
    processes = min(CONNECTIONS, max(1, len(os.sched_getaffinity(0)) // 2))
    shares = [CONNECTIONS // processes + (one < CONNECTIONS % processes) for one in range(processes)]
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        asked = [pool.submit(_share, server, request, share, seconds) for share in shares]
        return sum(one.result() for one in asked)


def _share(server: Server, request: bytes, connections: int, seconds: float) -> int:
    counts: list[int] = []

    def ask() -> None:
        counts.append(len(load.latencies(server, request, seconds)))

    threads = [threading.Thread(target=ask) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def _statistics(server: Server, name: str) -> dict[str, int]:
    found: dict[str, Any] = json.loads(_get(server.port, f"/v2/models/{name}/stats"))["model_stats"][0]
    inner = found["inference_stats"]
    times = {part: int(inner[f"compute_{part}"]["ns"]) for part in ("input", "infer", "output")}
    return {
        "inferences": int(found["inference_count"]), "executions": int(found["execution_count"]), **times,
    }  # fmt: skip


def sampled_power(server: Server, samples: int = 5, sleep: Callable[[float], None] = time.sleep) -> float | None:
    """Return the mean watts of GPU 0 by the server's metrics; None = the device does not tell."""
    watts = []
    for _ in range(samples):
        page = _get(server.metrics_port, "/metrics").decode()
        watts += [float(one) for one in re.findall(r"^nv_gpu_power_usage\{[^}]*\} (\S+)", page, re.MULTILINE)[:1]]
        sleep(1.0)
    return statistics.mean(watts) if watts else None


def _get(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with closing(connection):
        connection.request("GET", path)
        return connection.getresponse().read()
