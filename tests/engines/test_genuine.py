"""The calls of the builder on a genuine library of NVIDIA (TensorRT-RTX), which builds without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engines import genuine

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_genuine_library_builds_what_the_stand_in_builds(tmp_path: Path) -> None:
    if not genuine.PLACE.is_dir():
        pytest.skip(f"TensorRT-RTX {genuine.VERSION} is not installed: {genuine.COMMAND}")
    variables = {**os.environ, "PYTHONPATH": f"{genuine.PLACE}:{ROOT}"}
    command = [sys.executable, "-m", "tests.engines.genuine", str(tmp_path)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)

    built = found["dynamic"]
    assert built["bytes"] > 1000
    assert built["profiles"] == [{name: [[1, 4], [2, 4], [8, 4]] for name in ("A", "B")}]
    percents = [percent for phase, percent in built["told"] if phase == "Building engine"]
    assert percents == sorted(set(percents))
    assert percents[0] == 0
    assert percents[-1] == 100
    assert "has no precision FP16" in found["fp16"]["error"]
    assert "have contradictory IOptimizationProfile" in found["contradiction"]["error"]
    assert "lean runtime, and libnvinfer_lean.so.1 is not installed" in found["compatible"]["error"]
    assert "(node 0, operator LinearClassifier)" in found["unsupported"]["error"]
    assert "cannot read broken.onnx: " in found["broken"]["error"]
