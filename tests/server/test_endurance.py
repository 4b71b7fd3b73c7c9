"""Endurance, short and, as slow tests, long: loads leak nothing, and a kill fails only requests of its worker."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.named_memory import assert_gone, named_memory
from tests.server.load import Load, busy
from tests.server.running import PATIENCE, Running, python_model, running

pytestmark = pytest.mark.slow  # hundreds of loads and deaths

SIMPLE = Path(__file__).parents[2] / "model_repository" / "simple"


@dataclass(frozen=True)
class Sample:
    """The front end after one cycle."""

    files: int
    resident: int


def sample(server: Running, files: int) -> Sample:
    """Once the connection of the last request is closed, and there are no more than the `files` of before."""
    proc = Path("/proc", str(server.process.pid))
    end = time.monotonic() + 0.5
    now = len(os.listdir(proc / "fd"))
    while now > files and time.monotonic() < end:
        time.sleep(0.005)
        now = min(now, len(os.listdir(proc / "fd")))
    pages = int((proc / "statm").read_text().split()[1])
    return Sample(now, pages * os.sysconf("SC_PAGE_SIZE"))


def arenas(server: Running) -> int:
    """Tensor memory that the front end still has open."""
    fds = Path("/proc", str(server.process.pid), "fd")
    return sum("edge-serve:" in os.readlink(fds / fd) for fd in os.listdir(fds))


def slope(values: list[int]) -> float:
    """Least squares: what is added with each value."""
    middle = (len(values) - 1) / 2
    mean = sum(values) / len(values)
    over = sum((i - middle) * (value - mean) for i, value in enumerate(values))
    return over / sum((i - middle) ** 2 for i in range(len(values)))


def cycles(root: Path, name: str, count: int) -> list[Sample]:
    """Load, infer, unload, again and again; the front end after each."""
    samples: list[Sample] = []
    shared = named_memory()
    with running(f"--model-repository={root}", "--model-control-mode=explicit") as server:
        for _ in range(count):
            status, answer = server.post(f"/v2/repository/models/{name}/load")
            assert status == 200, answer
            assert server.add_sub(name)[0] == 200
            assert server.post(f"/v2/repository/models/{name}/unload")[0] == 200
            samples.append(sample(server, samples[-1].files if samples else 0))
        assert server.workers() == []
        assert arenas(server) == 0
        assert_gone(named_memory() - shared)
    return samples


@pytest.mark.parametrize("name", ["simple", "add_sub"])
def test_loads_and_unloads_leak_no_files(tmp_path: Path, name: str) -> None:
    python_model(tmp_path, "add_sub")
    shutil.copytree(SIMPLE, tmp_path / "simple")
    samples = cycles(tmp_path, name, 3)

    assert len({one.files for one in samples[1:]}) == 1


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["simple", "add_sub"])
def test_two_hundred_loads_and_unloads_leak_nothing(tmp_path: Path, name: str) -> None:
    python_model(tmp_path, "add_sub")
    shutil.copytree(SIMPLE, tmp_path / "simple")
    samples = cycles(tmp_path, name, 200)[20:]

    assert len({one.files for one in samples}) == 1
    assert slope([one.resident for one in samples]) <= 20 * 1024


def kill_workers(
    server: Running, names: list[str], kills: int, pause: float, chance: random.Random
) -> tuple[dict[str, Load], Counter[str], float]:
    """Kill a random worker again and again while four clients use each model.

    Returns:
        What the clients of each model saw; how often the worker of each was killed; seconds from the last kill until
        all models were ready.
    """
    loads = {name: Load() for name in names}
    killed: list[int] = []
    took = 0.0

    def kill() -> None:
        nonlocal took
        for _ in range(kills):
            time.sleep(pause)
            pid = chance.choice(server.workers())
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
            last = time.monotonic()
        server.wait_for_log(rf"\(pid {killed[-1]}\) was ended by SIGKILL")
        while server.get("/v2/health/ready")[0] != 200:
            assert time.monotonic() < last + PATIENCE, server.log()
            time.sleep(0.02)
        took = time.monotonic() - last
        for load in loads.values():
            load.stop.set()

    work: list[Callable[[], None]] = [
        partial(load.add_sub, server.http, name) for name, load in loads.items() for _ in range(4)
    ]
    busy(loads[names[0]], work, kill)
    of = {int(pid): label for label, pid in re.findall(r"worker (\S+) \(pid (\d+)\) was ended", server.log())}
    return loads, Counter(of[pid] for pid in killed), took


def killing(root: Path, kills: int, pause: float) -> float:
    """Kill workers: only their own requests fail. Return the seconds until all models were ready again."""
    python_model(root, "first")
    python_model(root, "second")
    shutil.copytree(SIMPLE, root / "simple")
    workers = {"first": "first:1", "second": "second:1", "simple": "onnxruntime"}
    with running(f"--model-repository={root}") as server:
        pid = server.process.pid
        loads, killed, took = kill_workers(server, list(workers), kills, pause, random.Random(4))

        assert server.process.poll() is None
        assert server.process.pid == pid
        for name, worker in workers.items():
            load = loads[name]
            assert load.answered > len(load.failures)
            assert len(load.failures) <= 4 * killed[worker]
            for status, answer in load.failures:
                assert status in (500, 503)
                assert "was ended by SIGKILL" in answer["error"]
            assert server.add_sub(name)[0] == 200
        assert sum(killed.values()) == kills
    return took


def test_killed_workers_restart_and_fail_only_their_own_requests(tmp_path: Path) -> None:
    killing(tmp_path, 2, 0.5)


@pytest.mark.timeout(300)
def test_a_minute_of_kills(tmp_path: Path) -> None:
    assert killing(tmp_path, 30, 2.0) <= 2.0
