"""The line about skipped tests at the end of a run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.skips import gpu_line


def report(reason: str, **keywords: Any) -> pytest.TestReport:
    place = ("tests/gpu/test_x.py", 3, f"Skipped: {reason}")
    return pytest.TestReport("x", ("x", 1, "x"), keywords, "skipped", place, "setup")


def test_tests_that_need_a_gpu_are_one_line() -> None:
    skipped = [report("no NVIDIA GPU here", gpu=1)] * 3 + [report("no nvidia-smi: ", gpu=1), report("no torch")]

    assert gpu_line(skipped) == (
        "skipped tests that need a GPU (docs/hardware.md): 4 (3: no NVIDIA GPU here; 1: no nvidia-smi)"
    )
    assert gpu_line([report("no torch")]) == ""
    assert gpu_line([pytest.CollectReport("tests/test_x.py", "skipped", ("tests/test_x.py", 1, "no torch"), [])]) == ""


def test_rare_reasons_are_joined() -> None:
    skipped = [report(f"reason {number}", gpu=1) for number in (1, 1, 2, 2, 3, 3, 4, 5)]

    assert gpu_line(skipped).endswith(": 8 (2: reason 1; 2: reason 2; 2: reason 3; 2: other reasons (-rs))")
