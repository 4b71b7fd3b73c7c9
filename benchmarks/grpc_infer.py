"""How many inferences per second over gRPC, beside Triton? INT32[16], a Python model in its own process."""

from __future__ import annotations

import functools

from benchmarks import load, peer
from benchmarks.report import Report
from benchmarks.servers import MODELS, Server, both, repository

#: connections -> the ratio that the project requires
BARS = {1: 0.8, 8: 0.7, 32: 0.55}


def _streams(server: Server) -> tuple[float, float]:
    return load.perf_analyzer(server, "add_sub", 8, 1500, "grpc", "--streaming", "--async")


def run(rounds: int = 3) -> Report:
    """Measure unary calls and then streams with perf_analyzer, both servers in turn."""
    report = Report("grpc_infer", "inferences per second beside Triton 2.51's python backend (perf_analyzer, gRPC)")
    with repository([MODELS / "add_sub"]) as models, peer.noted(report.notes), both(models) as (ours, theirs):
        for connections, bar in BARS.items():
            measure = functools.partial(load.perf_analyzer, model="add_sub", connections=connections, protocol="grpc")
            row = load.versus(ours, theirs, measure, rounds, "add_sub")
            report.rows.append({"connections": str(connections), **row, "asked": bar})
        row = load.versus(ours, theirs, _streams, rounds, "add_sub")
        report.rows.append({"connections": "8 streams", **row, "asked": "-"})
    return report
