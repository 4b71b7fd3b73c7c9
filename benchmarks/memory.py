"""How much memory do the front end and the workers hold?"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.report import Report
from benchmarks.servers import DEMO, edge_serve, repository


def run() -> Report:
    """Measure RSS and PSS (shared pages divided by the number of processes) once ready, before any request."""
    report = Report("memory", "MB held once ready (asked: front end without a model 48 MB RSS)")
    demo = [path.parent for path in sorted(DEMO.glob("*/config.pbtxt")) if any((path.parent / "1").glob("model.*"))]
    for name, chosen in (("empty", []), ("simple", [DEMO / "simple"]), (f"demo, {len(demo)} models", demo)):
        with (
            repository(chosen) as models,
            edge_serve(models, "--exit-on-error=false", "--strict-readiness=false") as server,
        ):
            workers = descendants(server.pid)
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


def descendants(pid: int) -> list[int]:
    """Return the children of a process, and their children."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue  # the process has ended meanwhile
    found = [pid]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found[1:]
