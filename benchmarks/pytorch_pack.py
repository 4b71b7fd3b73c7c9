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
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks import bodies, load, peer
from benchmarks.report import ROOT, Report, Row
from benchmarks.servers import Server, edge_serve
from tests.packs.environments import backends_with
from tests.packs.pytorch.environment import VENV

ALONE = ROOT / "benchmarks/torch_alone.py"
#: many short rounds: the speed of a shared machine changes within seconds. Several processes of the server and of torch
#: alone: the same loop differs by a tenth from one process to the next, for as long as they live
PROCESSES, ROUNDS, CONNECTIONS = 5, 3, 8
#: seconds that a run of one picture is to take, and the sides of pictures that are tried for it
RUN, SIDES = 0.010, range(96, 513, 16)
SECONDS = float(os.environ.get("BENCH_SECONDS", "1"))
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
input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 3, -1, -1 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 1000 ] } ]
%s
"""


#: a description, and what was measured in turn
Pairs = tuple[str, list[float], list[float]]


class Network:
    """The model, run by torch alone in a process of its own (`torch_alone`).

    Attributes:
        side: of its pictures.
    """

    def __init__(self, process: subprocess.Popen[str], side: int = 0) -> None:
        self._process = process
        self.side = side or next((one for one in SIDES if self.loop(1, 1, 0, one)["median"] >= RUN), SIDES[-1])

    def loop(self, rows: int, loops: int, threads: int, side: int = 0) -> dict[str, float]:
        """Return the rate, and the median seconds of a run."""
        questions, answers = self._process.stdin, self._process.stdout
        assert questions is not None
        assert answers is not None
        print(side or self.side, rows, loops, threads, SECONDS, file=questions, flush=True)
        found: dict[str, float] = json.loads(answers.readline())
        return found

    def request(self, model: str) -> bytes:
        """Return a request with one picture."""
        values = np.random.default_rng(1).random((1, 3, self.side, self.side), dtype=np.float32)
        return bodies.picture_binary(model, "INPUT__0", values)


def run() -> Report:
    """Measure the server and torch alone in turn.

    Raises:
        peer.NoPeerError: the pack's environment is missing.
    """
    if not (VENV / "bin/python").exists():
        raise peer.NoPeerError("no environment of the pack: python -m tests.packs.environments pytorch")
    measured: dict[str, tuple[list[float], list[float]]] = {}
    side = 0
    for _ in range(PROCESSES):
        with _served() as (server, default, file), _alone("run", file) as process:
            network = Network(process, side)
            side = network.side
            for running, name in ((server, "one"), (server, "batched"), (server, "two"), (default, "two_as_torch")):
                # torch prepares each operator for each size of a batch
                load.rate(running, network.request(name), CONNECTIONS, SECONDS)
            found = (_added(server, network), _throughput(server, network), _threads(default, server, network))
            for what, first, second in found:
                known = measured.setdefault(what, ([], []))
                known[0].extend(first)
                known[1].extend(second)
    cores = len(os.sched_getaffinity(0))
    text = f"TorchScript in the pack pytorch beside torch alone, {cores} cores, pictures of {side} x {side}"
    report = Report("pytorch_pack", text)
    report.rows += [_row(what, *pairs) for what, pairs in measured.items()]
    return report


@contextmanager
def _served() -> Iterator[tuple[Server, Server, Path]]:
    """Yield the server, one whose torch waits as it does by default, and the model's file."""
    with tempfile.TemporaryDirectory() as folder:
        root, file = Path(folder, "models"), Path(folder, "model.pt")
        with _alone("make", file):
            pass
        for name, more in MODELS.items():
            (root / name / "1").mkdir(parents=True)
            shutil.copy(file, root / name / "1/model.pt")
            (root / name / "config.pbtxt").write_text(CONFIG % more)
        packs = f"--backend-directory={backends_with('pytorch', Path(folder, 'backends'))}"
        as_torch = {**os.environ, "GOMP_SPINCOUNT": LIBGOMP_DEFAULT}
        with edge_serve(root, packs) as server, edge_serve(root, packs, environ=as_torch) as default:
            yield server, default, file


@contextmanager
def _alone(command: str, file: Path) -> Iterator[subprocess.Popen[str]]:
    """Run `torch_alone`, and wait for its end."""
    words: list[str | Path] = [VENV / "bin/python", ALONE, command, file]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


def _added(server: Server, network: Network) -> Pairs:
    """Return what a request takes longer than a run."""
    bare, served = [], []
    for _ in range(ROUNDS):
        bare.append(network.loop(1, 1, 0)["median"] * 1e3)
        served.append(statistics.median(load.latencies(server, network.request("one"), SECONDS)[5:]) * 1e3)
    return "1 connection, ms (torch alone, served)", bare, served


def _throughput(server: Server, network: Network) -> Pairs:
    """Return the rate at 8 connections beside the best loop of torch alone."""
    best = max(LOOPS, key=lambda loop: network.loop(*loop)["per_second"])
    bare, served = [], []
    for _ in range(ROUNDS):
        bare.append(network.loop(*best)["per_second"])
        served.append(load.rate(server, network.request("batched"), CONNECTIONS, SECONDS))
    return "8 connections, per second (the fastest loops of torch alone, served)", bare, served


def _threads(default: Server, server: Server, network: Network) -> Pairs:
    """Return the rate of two instances with our default number of threads beside torch's."""
    theirs, ours = [], []
    for _ in range(ROUNDS):
        theirs.append(load.rate(default, network.request("two_as_torch"), CONNECTIONS, SECONDS))
        ours.append(load.rate(server, network.request("two"), CONNECTIONS, SECONDS))
    return "2 instances, 8 connections, per second (torch's threads, ours)", theirs, ours


def _row(what: str, first: list[float], second: list[float]) -> Row:
    ratios = sorted(b / a for a, b in zip(first, second, strict=True))
    return {
        "measured": what, "first": statistics.median(first), "second": statistics.median(second),
        "ratio": statistics.median(ratios), "lowest": ratios[0], "highest": ratios[-1],
    }  # fmt: skip
