"""What does a request cost in processor time, beside Triton? Both servers get the same number of requests per second.

On a quiet machine edge-serve polls while it waits, so a request costs more there than on a busy one. The notes have the
load.
"""

from __future__ import annotations

import functools

from benchmarks import load, peer
from benchmarks.report import Report
from benchmarks.servers import MODELS, both, repository

#: door and requests per second; on two cores both servers answer these
CASES = (("http", 300), ("http", 3000), ("grpc", 300), ("grpc", 3000))


def run(rounds: int = 3) -> Report:
    """Measure with perf_analyzer at a fixed rate, both servers in turn; an idle server has a cost, too."""
    report = Report(
        "processor_time", "processor time per request at the same rate, beside Triton 2.51's python backend"
    )
    with repository([MODELS / "add_sub"]) as models, peer.noted(report.notes), both(models) as (ours, theirs):
        for door, rate in CASES:
            measure = functools.partial(
                load.perf_analyzer, model="add_sub", connections=8, interval_ms=3000, protocol=door, rate=rate
            )
            row = load.versus(ours, theirs, measure, rounds, "add_sub")
            report.rows.append({"door": door, "requests/s": rate, **row})
    return report
