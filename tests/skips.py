"""The line of a test run about the tests that need a GPU, and were skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

#: so many reasons are named
MOST = 3


def gpu_line(skipped: Iterable[pytest.TestReport | pytest.CollectReport]) -> str:
    """Return how many tests with the mark `gpu` were skipped, and why; "" = none."""
    tests = (report for report in skipped if isinstance(report, pytest.TestReport))  # others are files
    reasons = Counter(_reason(report) for report in tests if "gpu" in report.keywords)
    if not reasons:
        return ""
    told = [f"{count}: {reason}" for reason, count in reasons.most_common(MOST)]
    if rest := reasons.total() - sum(count for _, count in reasons.most_common(MOST)):
        told.append(f"{rest}: other reasons (-rs)")
    return f"skipped tests that need a GPU (docs/hardware.md): {reasons.total()} ({'; '.join(told)})"


def _reason(report: pytest.TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ").partition("\n")[0].rstrip(": ")
