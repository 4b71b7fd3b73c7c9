"""How many JSON requests per second, beside Triton's python backend? 16 numbers, and 150,528 floats."""

from __future__ import annotations

from benchmarks import bodies, load, peer
from benchmarks.report import Report
from benchmarks.servers import MODELS, Server, both, repository

#: model -> (the body, connections, the ratio that the project requires)
CASES = {"add_sub": ("2 x 16 numbers", 8, 0.7), "picture": ("150,528 floats", 4, 1.0)}


def run(rounds: int = 3) -> Report:
    """Send one body again and again with wrk, both servers in turn."""
    report = Report("json_bodies", "JSON requests per second beside Triton 2.51's python backend (wrk)")
    requests = {"add_sub": bodies.add_sub_json(), "picture": bodies.picture_json()}
    with (
        repository(MODELS / model for model in CASES) as models,
        peer.noted(report.notes),
        both(models) as (ours, theirs),
    ):
        for model, (sent, connections, bar) in CASES.items():

            def measure(server: Server, model: str = model, connections: int = connections) -> tuple[float, float]:
                path = f"/v2/models/{model}/infer"
                return load.wrk(server.address, path, requests[model], connections)

            row = load.versus(ours, theirs, measure, rounds)
            report.rows.append({"sent": sent, "connections": connections, **row, "asked": bar})
    return report
