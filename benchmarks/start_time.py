"""How long from the start of the process to "ready"?"""

from __future__ import annotations

import statistics

from benchmarks.report import Report
from benchmarks.servers import DEMO, edge_serve, repository

QUICKSTART = ("simple", "simple_int8", "simple_string", "simple_identity")
#: repository -> (models, seconds that the project requires)
CASES: dict[str, tuple[tuple[str, ...], float | None]] = {
    "empty": ((), None),
    "simple": (("simple",), 0.6),
    "quickstart and magika": ((*QUICKSTART, "magika"), 1.5),
}


def run(rounds: int = 5) -> Report:
    """Measure the median and the slowest of some starts; after the first, files are in the page cache."""
    report = Report("start_time", "seconds from the start of the process to ready")
    for name, (wanted, bar) in CASES.items():
        present = [model for model in wanted if any((DEMO / model / "1").glob("model.*"))]
        if len(present) < len(wanted):
            missing = ", ".join(set(wanted) - set(present))
            report.notes.append(f"without {missing}: `make models` fetches what is missing")
        seconds = []
        with repository(DEMO / model for model in present) as models:
            for _ in range(rounds):
                with edge_serve(models) as server:
                    seconds.append(server.start_seconds)
        row = {"repository": name, "models": len(present), "median s": statistics.median(seconds)}
        report.rows.append({**row, "slowest s": max(seconds), "asked": bar})
    return report
