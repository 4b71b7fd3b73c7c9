"""torch without a server: makes the network of `pytorch_pack`, and runs it. Run with the interpreter of the pack.

    python torch_alone.py make MODEL.PT
    python torch_alone.py run MODEL.PT

For each line `SIDE ROWS RUNS THREADS SECONDS` of standard input, `run` prints a line of JSON: rows per second of RUNS
loops side by side, each with batches of ROWS pictures of SIDE x SIDE and THREADS threads of torch, and the median
seconds of a run. THREADS 0 leaves torch its default.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import threading
import time
import warnings

import torch
from torch import nn


def block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Return two convolutions with what stands between them in a residual network."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip


def make(path: str) -> None:
    """Write a network like a small ResNet, with seeded random weights."""
    torch.manual_seed(19)
    network = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        block(64, 64, 1), block(64, 128, 2), block(128, 256, 2), block(256, 512, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000),
    ).eval()  # fmt: skip
    torch.jit.trace(network, torch.zeros(1, 3, 96, 96)).save(path)


def run(module: object, side: int, rows: int, runs: int, threads: int, seconds: float) -> dict[str, float]:
    """Return the rate and the median seconds of a run."""
    taken: list[list[float]] = [[] for _ in range(runs)]
    start = threading.Barrier(runs + 1)
    data = torch.rand(rows, 3, side, side)
    workers = [threading.Thread(target=_loop, args=(module, data, threads, seconds, start, one)) for one in taken]
    for worker in workers:
        worker.start()
    start.wait()
    began = time.perf_counter()
    for worker in workers:
        worker.join()
    took = time.perf_counter() - began
    return {"per_second": sum(map(len, taken)) * rows / took, "median": statistics.median(itertools.chain(*taken))}


def _loop(
    module: object, data: torch.Tensor, threads: int, seconds: float, start: threading.Barrier, taken: list[float]
) -> None:
    if threads:
        torch.set_num_threads(threads)
    with torch.inference_mode():
        for _ in range(5):
            module(data)  # type: ignore[operator]  # a script
        start.wait()
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            module(data)  # type: ignore[operator]
            taken.append(time.perf_counter() - began)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    command, path = sys.argv[1:]
    if command == "make":
        make(path)
    else:
        network = torch.jit.load(path)
        for line in sys.stdin:
            side, rows, runs, threads = map(int, line.split()[:4])
            print(json.dumps(run(network, side, rows, runs, threads, float(line.split()[4]))), flush=True)
