"""What does a request cost in processor time, beside Triton? Both servers get the same number of requests per second.

On a quiet machine edge-serve polls while it waits, so a request costs more there than on a busy one. The notes have the
load.
"""

from __future__ import annotations

import functools

from benchmarks import load, peer
from benchmarks.report import Report
from benchmarks.servers import MODELS, edge_serve, repository, triton

#: door and requests per second; on two cores both servers answer these
CASES = (("http", 300), ("http", 3000), ("grpc", 300), ("grpc", 3000))


def run(rounds: int = 3) -> Report:
    """Measure with perf_analyzer at a fixed rate, both servers in turn; an idle server has a cost, too."""
    report = Report(
        "processor_time", "processor time per request at the same rate, beside Triton 2.51's python backend"
    )
    with repository([MODELS / "add_sub"]) as models, edge_serve(models) as ours:
        try:
            with triton(models) as theirs:
                for door, rate in CASES:
                    measure = functools.partial(
                        load.perf_analyzer, model="add_sub", connections=8, interval_ms=3000, protocol=door, rate=rate
                    )
                    row = load.versus(ours, theirs, measure, rounds, "add_sub")
                    report.rows.append({"door": door, "requests/s": rate, **row})
        except peer.NoPeerError as error:
            report.notes.append(f"not measured: {error}")
    return report
