"""TensorRT's own Python bindings, and the Python stand-in for them: the same behaviour, and the same names."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.nvinfer.genuine import DISTRIBUTIONS, ROOT, STAND_INS, Missing, environ

#: one of them in the slow tests alone, for the time
VERSIONS = [pytest.param(one, marks=[pytest.mark.slow] if one == "8.6.1" else []) for one in DISTRIBUTIONS]
#: attributes that the objects of the stand-in have for itself
OWN = {"plan", "logger"}


def output(module: str, path: dict[str, str]) -> Any:
    """Run a module in a process with these variables. Return the JSON that it prints."""
    command = [sys.executable, "-m", f"tests.nvinfer.{module}"]
    done = subprocess.run(command, env={**os.environ, **path}, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    return json.loads(done.stdout)


def variables(version: str) -> dict[str, str]:
    try:
        return environ(version)
    except Missing as reason:
        pytest.skip(str(reason))


@functools.cache
def bindings(version: str) -> Any:
    return output("checks", variables(version))


@functools.cache
def stand_in(version: str) -> Any:
    return output("checks", {"PYTHONPATH": f"{STAND_INS}:{ROOT}", "STAND_IN_TENSORRT": version})


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("module", [bindings, stand_in], ids=["bindings", "stand-in"])
def test_module_does_what_the_backend_counts_on(module: Any, version: str) -> None:
    results = module(version)["checks"]

    assert len(results) > 15
    assert {name: failure for name, failure in results.items() if failure} == {}


@pytest.mark.parametrize("version", VERSIONS)
def test_stand_in_has_the_names_and_parameters_of_the_bindings(version: str) -> None:
    genuine, own = bindings(version), stand_in(version)

    assert len(own["module"]) >= 15
    assert different(own["module"], genuine["module"]) == []
    for name, attributes in own["objects"].items():
        assert set(attributes) - OWN <= set(genuine["objects"][name]), name


def different(own: Any, genuine: Any, path: str = "") -> list[str]:
    """Return where a name, a number of an enum, or the parameters of a function are not those of the bindings."""
    if isinstance(own, dict) and isinstance(genuine, dict):
        missing = [f"{path}.{name} is not in the bindings" for name in own if name not in genuine]
        below = [different(own[name], genuine[name], f"{path}.{name}") for name in own if name in genuine]
        return missing + [one for each in below for one in each]
    if isinstance(own, list):  # one of the overloads has these parameters
        return [] if genuine and own[0] in genuine else [f"{path}: {own}, expected one of {genuine}"]
    return [] if own == genuine else [f"{path}: {own}, expected {genuine}"]


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_10_000_executions_in_four_threads_leak_nothing(version: str) -> None:
    result = output("load", variables(version))

    seconds, grown = result.pop("seconds"), result.pop("grown")
    assert result == {"wrong": 0, "leaked": {}, "living": 0}
    assert grown < 2048, f"{grown} KiB more after 8,000 executions and 25 loads that failed, in {seconds} s"
