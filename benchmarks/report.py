"""The result of a benchmark: rows that answer one question, written as JSON with facts about the machine."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: the committed results, from which the documentation takes its figures
RESULTS = ROOT / "benchmarks/results"
#: the results of a run that is not recorded; git ignores them
SCRATCH = ROOT / "build/benchmarks"

Row = dict[str, Any]


@dataclass
class Report:
    """The answer to `question`.

    Attributes:
        rows: the same keys in each.
        notes: facts that a reader needs to use the figures; reasons why a part was left out.
    """

    name: str
    question: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def table(self) -> str:
        """Return the rows as a Markdown table, with the notes below."""
        lines = [f"## {self.name}: {self.question}", ""]
        if self.rows:
            keys = list(self.rows[0])
            lines += [f"| {' | '.join(keys)} |", "|" + "---|" * len(keys)]
            lines += ["| " + " | ".join(_cell(row.get(key)) for key in keys) + " |" for row in self.rows]
        return "\n".join([*lines, "", *(f"{note}" for note in self.notes)]).rstrip() + "\n"

    def write(self, folder: Path) -> Path:
        """Write `<name>.json` into the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        document = {
            "benchmark": self.name, "question": self.question, "date": _now(), "machine": machine(),
            "rows": self.rows, "notes": self.notes,
        }  # fmt: skip
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps(document, indent=1) + "\n")
        return path


def last(name: str, folder: Path = RESULTS) -> tuple[Report, str] | None:
    """Return the last written report of this name and its day; None if there is none."""
    try:
        document = json.loads((folder / f"{name}.json").read_text())
    except FileNotFoundError:
        return None
    return Report(name, document["question"], document["rows"], document["notes"]), document["date"][:10]


def machine() -> Row:
    """Return the facts about this machine that a figure needs."""
    model = [line for line in _lines("/proc/cpuinfo") if line.startswith(("model name", "Model"))]
    memory = [line for line in _lines("/proc/meminfo") if line.startswith("MemTotal")]
    return {
        "cpu": model[0].partition(":")[2].strip() if model else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(int(memory[0].split()[1]) / 1e6, 1) if memory else None,
        "kernel": platform.release(),
        "python": f"{platform.python_version()}, {_builder()}",
        "packages": {name: package_version(name) for name in ("edge-serve", "numpy", "orjson", "onnxruntime")},
        "load_before": os.getloadavg()[0],
    }


def _builder() -> str:
    """Return whether a distribution built the interpreter: with profiles, a tenth faster than most other builds."""
    return "the system's" if sys.base_prefix == "/usr" else "not the system's"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def package_version(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str("" if value is None else value)
