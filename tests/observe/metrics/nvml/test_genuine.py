"""Readings through NVIDIA's genuine package, of drivers that are older and newer than it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.observe.metrics.nvml.genuine import CACHE, COMMAND, NEWEST, OLDEST

ROOT = Path(__file__).parents[4]
GIB = 1 << 30


def reading(folder: Path, version: str, driver: str, *flags: str) -> dict[str, Any]:
    """Return the reading of the stand-in's board, with a release of the package."""
    if not (CACHE / version).is_dir():
        pytest.skip(f"nvidia-ml-py {version} is not there: {COMMAND}")
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to build the stand-in libnvidia-ml with")
    source, library = Path(__file__).with_name("nvml.c"), folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", f"-D{driver}", *flags, "-o", str(library), str(source)], check=True)
    variables = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": f"{CACHE / version}:{ROOT}"}
    command = [sys.executable, "-m", "tests.observe.metrics.nvml.read"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("version", [pytest.param(OLDEST, marks=pytest.mark.slow), NEWEST])
def test_values_that_an_old_driver_lacks_are_unknown_and_the_others_are_there(version: str, tmp_path: Path) -> None:
    found = reading(tmp_path, version, "OLD")

    assert (found["utilization"], found["power_usage"], found["power_limit"]) == (0.42, 61.5, None)
    assert (found["temperature"], found["energy"], found["throttling"]) == (71.0, 0.0, ["sw_power_cap"])
    assert (found["processes"], found["problem"]) == ({}, "")
    assert (found["memory_total"], found["memory_used"], found["memory_free"]) == (16 * GIB, 1.5 * GIB, 14.5 * GIB)


@pytest.mark.parametrize("version", [pytest.param(OLDEST, marks=pytest.mark.slow), NEWEST])
def test_present_driver_tells_the_memory_of_processes(version: str, tmp_path: Path) -> None:
    found = reading(tmp_path, version, "PRESENT")

    assert (found["temperature"], found["throttling"]) == (71.0, ["sw_power_cap"])
    assert (found["processes"], found["problem"]) == ({"41": GIB}, "")


@pytest.mark.parametrize("reserve", ["", pytest.param("-DUSED_WITH_RESERVE", marks=pytest.mark.slow)])
def test_memory_that_the_driver_reserves_is_neither_used_nor_free(reserve: str, tmp_path: Path) -> None:
    """As in nvidia-smi; nvml.h of R525 says that `used` has it, that of R590 that it has not."""
    found = reading(tmp_path, NEWEST, "PRESENT", *reserve.split())

    assert (found["memory_total"], found["memory_used"], found["memory_free"]) == (16 * GIB, GIB, 14.5 * GIB)


def test_functions_that_cuda_14_removes_are_not_needed(tmp_path: Path) -> None:
    found = reading(tmp_path, NEWEST, "NEWEST")

    assert (found["temperature"], found["throttling"]) == (71.0, ["sw_power_cap"])
