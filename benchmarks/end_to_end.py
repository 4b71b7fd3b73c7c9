"""How many inferences per second, beside Triton's python backend? INT32[16], a Python model in its own process."""

from __future__ import annotations

import functools

from benchmarks import load, peer
from benchmarks.report import Report
from benchmarks.servers import MODELS, both, repository

#: connections -> the ratio that the project requires
BARS = {1: 0.9, 8: 1.2, 32: 1.4}


def run(rounds: int = 3) -> Report:
    """Measure with perf_analyzer over binary HTTP, both servers in turn."""
    report = Report(
        "end_to_end", "inferences per second beside Triton 2.51's python backend (perf_analyzer, binary HTTP)"
    )
    with repository([MODELS / "add_sub"]) as models, peer.noted(report.notes), both(models) as (ours, theirs):
        for connections, bar in BARS.items():
            measure = functools.partial(load.perf_analyzer, model="add_sub", connections=connections)
            row = load.versus(ours, theirs, measure, rounds, "add_sub")
            report.rows.append({"connections": connections, **row, "asked": bar})
    return report
