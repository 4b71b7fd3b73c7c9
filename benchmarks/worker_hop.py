"""What does the hop to a worker and back cost? A request of two INT32[16] tensors, which the backend answers with.

`python -m benchmarks.worker_hop [--requests N] [--batch B]` prints JSON: round trips in microseconds, and the CPU that
the front end and the worker spend on each; once when both sleep while they wait, once when they poll (ADR 17).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.servers import own_cpu_seconds
from edge_serve.backends.base import InstanceSpec, ModelSpec
from edge_serve.errors import EdgeServeError
from edge_serve.messages.infer import InferRequest
from edge_serve.messages.tensors import DataType, InferTensor
from edge_serve.workers.front.busy_poll import PollingSelector, PollPolicy
from edge_serve.workers.front.frames.batch import BatchReply
from edge_serve.workers.front.link import ModelListener
from edge_serve.workers.front.workers import OpenedModel, Workers
from edge_serve.workers.memory.arena import Arena, Budget

#: answers with the inputs; the shortest way through a worker
_BACKEND = """
from edge_serve.backends.base import Reply
from edge_serve.messages.tensors import InferTensor


class Echo:
    def execute(self, batch, timing):
        return [
            Reply([InferTensor(f"OUTPUT{i}", t.datatype, t.shape, t.data) for i, t in enumerate(request.inputs)])
            for request in batch
        ]

    def close(self):
        pass


class Backend:
    def open(self, spec, instances):
        return [Echo() for _ in instances]

    def close(self):
        pass
"""


class Loop(ModelListener):
    """Closed loop: sends the next batch when a reply arrives."""

    def __init__(self, count: int, requests: list[InferRequest]) -> None:
        self.model: OpenedModel
        self.left = count
        self.requests = requests
        self.times: list[int] = []
        self.inside: list[int] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sent = 0

    def send(self) -> None:
        """Send one more batch."""
        self._sent = time.perf_counter_ns()
        self.model.execute(0, self.left, self.requests)

    def on_reply(self, instance: int, reply: BatchReply) -> None:
        """Record the round trip and send the next batch."""
        self.times.append(time.perf_counter_ns() - self._sent)
        self.inside.append(reply.end_ns - reply.compute_start_ns)
        self.left -= 1
        if self.left:
            self.send()
        else:
            self.done.set_result(None)

    def on_lost(self, lost: Mapping[int, EdgeServeError]) -> None:
        """Fail the measurement."""
        self.done.set_exception(next(iter(lost.values())))

    def on_back(self, instance: int) -> None:
        """Do nothing."""


def make_config(name: str) -> dict[str, object]:
    """Return a configuration with two inputs and two outputs."""
    tensor = {"data_type": "TYPE_INT32", "dims": [16]}
    return {
        "name": name,
        "max_batch_size": 64,
        "input": [{"name": f"INPUT{i}", **tensor} for i in range(2)],
        "output": [{"name": f"OUTPUT{i}", **tensor} for i in range(2)],
    }


async def measure(count: int, batch: int, policy: PollPolicy) -> dict[str, float]:
    """Return the figures of `count` batches of `batch` requests, one after the other."""
    data = np.arange(16, dtype=np.int32).tobytes()
    requests = [
        InferRequest("echo", inputs=[InferTensor(f"INPUT{i}", DataType.INT32, (1, 16), data) for i in range(2)])
        for _ in range(batch)
    ]
    with tempfile.TemporaryDirectory() as directory:
        workers = Workers(poll_policy=policy)
        arena = Arena("echo", Budget(64 << 20))
        (Path(directory) / "backend.py").write_text(_BACKEND)
        spec = ModelSpec("echo", 1, Path(directory), Path(directory), make_config("echo"))
        warm, run = Loop(1000, requests), Loop(count, requests)
        started = time.perf_counter()
        model = await workers.open(spec, "echo", [InstanceSpec("echo_0")], warm, arena)
        opened = time.perf_counter() - started
        warm.model = run.model = model
        warm.send()
        await warm.done
        model.listener = run
        before = time.process_time(), own_cpu_seconds(model.pids()[0])
        run.send()
        await run.done
        front, back = time.process_time() - before[0], own_cpu_seconds(model.pids()[0]) - before[1]
        await model.close()
        await workers.stop()
        arena.close()
    times = sorted(run.times)
    return {
        "open_ms": opened * 1e3,
        "round_trip_us_median": statistics.median(times) / 1e3,
        "round_trip_us_p99": times[len(times) * 99 // 100] / 1e3,
        "front_end_cpu_us": front / count * 1e6,
        "worker_cpu_us": back / count * 1e6,
        "worker_start_to_end_us": statistics.median(run.inside) / 1e3,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20000)
    parser.add_argument("--batch", type=int, default=1)
    options = parser.parse_args()
    machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
    figures = {}
    for name, poll_us in (("sleeping", 0), ("polling", 300)):
        policy = PollPolicy(poll_us, len(os.sched_getaffinity(0)))
        loop = asyncio.SelectorEventLoop(PollingSelector(policy))
        with contextlib.closing(loop):
            figures[name] = loop.run_until_complete(measure(options.requests, options.batch, policy))
    print(json.dumps({"benchmark": "worker_hop", "batch": options.batch, **machine, **figures}, indent=2))


if __name__ == "__main__":
    main()
