"""What does serving add to torch's own time, and how do two instances share two cores? A TorchScript network of 10 ms.

Not part of `make bench`: the pack's environment is 700 MB (`python -m tests.packs.environments pytorch` makes it).
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks import bodies, load, peer
from benchmarks.report import ROOT, Report, Row
from benchmarks.servers import Server, edge_serve
from tests.packs.environments import backends_with
from tests.packs.pytorch.environment import VENV

ALONE = ROOT / "benchmarks/torch_alone.py"
SIDE, ROUNDS, CONNECTIONS = 96, 4, 8
SECONDS = float(os.environ.get("BENCH_SECONDS", "3"))
#: iterations of polling (libgomp, team.c)
LIBGOMP_DEFAULT = "300000"
#: loops of torch alone that are tried for the best rate, with at most as many rows at once as connections: rows, loops
#: side by side, threads of each
LOOPS = ((1, 2, 1), (4, 2, 1), (8, 1, 0))
#: models: name -> what their configuration has beside the tensors
MODELS = {
    "one": "instance_group [ { kind: KIND_CPU count: 1 } ]",
    "batched": "instance_group [ { kind: KIND_CPU count: 2 } ]\n"
    "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 2000 }",
    "two": "instance_group [ { kind: KIND_CPU count: 2 } ]",
    "two_as_torch": "instance_group [ { kind: KIND_CPU count: 2 } ]\n"
    f'parameters {{ key: "INTRA_OP_THREAD_COUNT" value {{ string_value: "{len(os.sched_getaffinity(0))}" }} }}',
}
CONFIG = """
platform: "pytorch_libtorch"
max_batch_size: 8
input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 3, %d, %d ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 1000 ] } ]
%s
"""


def run() -> Report:
    """Measure the server and torch alone in turn.

    Raises:
        peer.NoPeerError: the pack's environment is missing.
    """
    if not (VENV / "bin/python").exists():
        raise peer.NoPeerError("no environment of the pack: python -m tests.packs.environments pytorch")
    report = Report("pytorch_pack", "TorchScript in the pack pytorch beside torch alone, 2 cores")
    with _served() as (server, default, model):
        for one, name in ((server, "one"), (server, "batched"), (server, "two"), (default, "two_as_torch")):
            _rate(one, name)  # torch prepares each operator for each size of a batch
        report.rows += [_added(server, model), _throughput(server, model), _threads(default, server)]
    return report


@contextmanager
def _served() -> Iterator[tuple[Server, Server, Path]]:
    """Yield the server, one whose torch waits as it does by default, and the model's file."""
    with tempfile.TemporaryDirectory() as folder:
        root, file = Path(folder, "models"), Path(folder, "model.pt")
        _alone("make", str(file))
        for name, more in MODELS.items():
            (root / name / "1").mkdir(parents=True)
            shutil.copy(file, root / name / "1/model.pt")
            (root / name / "config.pbtxt").write_text(CONFIG % (SIDE, SIDE, more))
        packs = f"--backend-directory={backends_with('pytorch', Path(folder, 'backends'))}"
        as_torch = {**os.environ, "GOMP_SPINCOUNT": LIBGOMP_DEFAULT}
        with edge_serve(root, packs) as server, edge_serve(root, packs, environ=as_torch) as default:
            yield server, default, file


def _alone(*arguments: str) -> str:
    done = subprocess.run(
        [str(VENV / "bin/python"), str(ALONE), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout


def _loop(model: Path, rows: int, loops: int, threads: int) -> dict[str, float]:
    found: dict[str, float] = json.loads(_alone("run", str(model), str(rows), str(loops), str(threads), str(SECONDS)))
    return found


def _request(name: str) -> bytes:
    values = np.random.default_rng(1).random((1, 3, SIDE, SIDE), dtype=np.float32)
    return bodies.picture_binary(name, "INPUT__0", values)


def _added(server: Server, model: Path) -> Row:
    """Return what a request takes longer than a run."""
    bare, served = [], []
    for _ in range(ROUNDS):
        bare.append(_loop(model, 1, 1, 0)["median"] * 1e3)
        served.append(statistics.median(load.latencies(server, _request("one"), SECONDS)[5:]) * 1e3)
    ratios = sorted(b / a for a, b in zip(bare, served, strict=True))
    return _row("1 connection, ms (torch alone, served)", bare, served, ratios)


def _throughput(server: Server, model: Path) -> Row:
    """Return the rate at 8 connections beside the best loop of torch alone."""
    best = max(LOOPS, key=lambda loop: _loop(model, *loop)["per_second"])
    bare, served = [], []
    for _ in range(ROUNDS):
        bare.append(_loop(model, *best)["per_second"])
        served.append(_rate(server, "batched"))
    ratios = sorted(b / a for a, b in zip(bare, served, strict=True))
    rows, loops, threads = best
    what = f"8 connections, per second (torch alone: {loops} loops, batches of {rows}, threads {threads or 'default'})"
    return _row(what, bare, served, ratios)


def _threads(default: Server, server: Server) -> Row:
    """Return the rate of two instances with our default number of threads beside torch's."""
    theirs, ours = [], []
    for _ in range(ROUNDS):
        theirs.append(_rate(default, "two_as_torch"))
        ours.append(_rate(server, "two"))
    ratios = sorted(b / a for a, b in zip(theirs, ours, strict=True))
    return _row("2 instances, 8 connections, per second (torch's threads, ours)", theirs, ours, ratios)


def _rate(server: Server, name: str) -> float:
    """Return requests per second of 8 connections."""
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        counts = pool.map(lambda _: len(load.latencies(server, _request(name), SECONDS)), range(CONNECTIONS))
    return sum(counts) / SECONDS


def _row(what: str, first: list[float], second: list[float], ratios: list[float]) -> Row:
    return {
        "measured": what, "first": statistics.median(first), "second": statistics.median(second),
        "ratio": statistics.median(ratios), "lowest": ratios[0], "highest": ratios[-1],
    }  # fmt: skip
