"""How much memory do the front end and the workers hold?"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.report import Report
from benchmarks.servers import DEMO, edge_serve, family, repository


def run() -> Report:
    """Measure RSS and PSS (shared pages divided by the number of processes) once ready, before any request."""
    report = Report("memory", "MB held once ready (asked: front end without a model 48 MB RSS)")
    demo = [path.parent for path in sorted(DEMO.glob("*/config.pbtxt")) if any((path.parent / "1").glob("model.*"))]
    for name, chosen in (("empty", []), ("simple", [DEMO / "simple"]), (f"demo, {len(demo)} models", demo)):
        with (
            repository(chosen) as models,
            edge_serve(models, "--exit-on-error=false", "--strict-readiness=false") as server,
        ):
            workers = family(server.pid).keys() - {server.pid}
            report.rows.append(
                {
                    "repository": name,
                    "front end RSS": rollup(server.pid)["Rss"],
                    "front end PSS": rollup(server.pid)["Pss"],
                    "workers": len(workers),
                    "workers PSS": sum(rollup(worker)["Pss"] for worker in workers),
                }
            )
    return report


def rollup(pid: int) -> dict[str, float]:
    """Return `Rss`, `Pss` and so on of a process, in MB (10^6 bytes)."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return {name: int(kib) * 1024 / 1e6 for name, kib in re.findall(r"^(\w+): +(\d+) kB", text, re.MULTILINE)}
