"""How many inferences per second beside Triton, where other programs compute on the same cores?"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Iterator

from benchmarks import load, peer
from benchmarks.report import Report
from benchmarks.servers import MODELS, Server, both, repository

CONNECTIONS = (1, 8)


def run(rounds: int = 3) -> Report:
    """Measure with perf_analyzer, both servers in turn, while programs keep one core busy, then all cores."""
    report = Report("busy_machine", "inferences per second beside Triton's, on cores that other programs use as well")
    with repository([MODELS / "add_sub"]) as models, peer.noted(report.notes), both(models) as (ours, theirs):
        for programs in dict.fromkeys((0, 1, len(os.sched_getaffinity(0)))):
            for connections in CONNECTIONS:
                measure = functools.partial(_measure, connections=connections)
                with busy(programs):
                    row = load.versus(ours, theirs, measure, rounds, "add_sub")
                report.rows.append({"programs": programs, "connections": connections, **row})
    return report


def _measure(server: Server, connections: int) -> tuple[float, float]:
    # a busy machine has no stable window: take the mean of three
    return load.perf_analyzer(server, "add_sub", connections, 1500, "http", "-s", "999")


@contextlib.contextmanager
def busy(programs: int) -> Iterator[None]:
    """Run programs that compute all the time."""
    with contextlib.ExitStack() as running:
        for _ in range(programs):
            program = running.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            running.callback(program.kill)
        yield
