"""Verdicts: the figures of a report beside the limits that the project requires."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.report import Row

REACHED, MISSED = "reached", "missed"
#: inferences a second of a bare loop: beyond it, ONNX Runtime's ratio is stated and has no limit
ORIN = 1000


@dataclass(frozen=True, slots=True)
class Limit:
    """A required figure.

    Attributes:
        steps: regular expression of the names of the steps.
        figure: regular expression of the keys in the result of a step.
        least: the figure must be at least `bound`; otherwise at most.
        slow_loop: holds only where the bare loop runs at most `ORIN` inferences a second.
    """

    steps: str
    figure: str
    bound: float
    least: bool = False
    slow_loop: bool = False

    def wanted(self) -> str:
        return f"at {'least' if self.least else 'most'} {self.bound:g}"

    def holds_for(self, step: str, row: Mapping[str, Any]) -> bool:
        loop = float(row.get("bare loop /s") or 0)
        return re.fullmatch(self.steps, step) is not None and not (self.slow_loop and loop > ORIN)


LIMITS = (
    Limit(r"onnx .*", "ratio", 0.95, least=True, slow_loop=True),
    Limit(r"tensorrt .*", "ratio", 0.95, least=True),
    Limit(r"onnx .*", "largest difference", 1e-3),
    Limit(r"tensorrt (?!.*fp16).*", "largest difference", 1e-3),
    Limit(r"tensorrt .*fp16.*", "largest difference", 1e-2),
    Limit(r"(onnx|tensorrt) .*", r"server's own ms \(median\)", 0.4),
    Limit(r"metrics", r".* off", 0.05),
    Limit(r"sanitizer", "errors", 0),
)


def judge(results: Mapping[str, Any]) -> list[Row]:
    """Return one row for each figure that has a limit; a step that failed or was skipped has none."""
    told = []
    for step, row in results.items():
        for limit in LIMITS if isinstance(row, Mapping) else ():
            for key, value in row.items():
                if limit.holds_for(step, row) and re.fullmatch(limit.figure, key) and isinstance(value, (int, float)):
                    good = value >= limit.bound if limit.least else value <= limit.bound
                    verdict = REACHED if good else MISSED
                    told.append(
                        {"step": step, "figure": key, "found": value, "wanted": limit.wanted(), "verdict": verdict}
                    )
    return told
