"""Builds over the stand-in for TensorRT, of the three interfaces: 8.6, 10, and 11."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edge_serve.backends.tensorrt.library import Library
from edge_serve.engines import builder
from edge_serve.engines.builder import Phases

ROOT = Path(__file__).parents[2]
OLD, TEN, ELEVEN = "8.6.1", "10.3.0", "11.4.1"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return version -> case -> outcome; the three versions run at the same time."""
    running = {}
    for version in (OLD, TEN, ELEVEN):
        variables = {**os.environ, "PYTHONPATH": f"{ROOT}/tests/stand_ins:{ROOT}", "STAND_IN_TENSORRT": version}
        command = [sys.executable, "-m", "tests.engines.cases", str(tmp_path_factory.mktemp("builds"))]
        running[version] = subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    found = {}
    for version, process in running.items():
        output, errors = process.communicate(timeout=50)
        assert process.returncode == 0, errors
        found[version] = {**json.loads(output), "log": errors}
    return found


@pytest.mark.parametrize("version", [OLD, TEN, ELEVEN])
def test_engine_is_built_once_and_found_again(outcomes: dict[str, Any], version: str) -> None:
    built, again = outcomes[version]["plain"], outcomes[version]["again"]
    assert not built["cached"]
    assert again == {**built, "cached": True, "told": []}
    assert built["profiles"] == [{name: [[2, 4]] * 3 for name in ("A", "B")}]
    assert outcomes[version]["other shapes"]["key"] != built["key"]
    assert not outcomes[version]["other shapes"]["cached"]


def test_progress_shows_the_percentage_of_tensorrt(outcomes: dict[str, Any]) -> None:
    assert [percent for phase, percent in outcomes[TEN]["plain"]["told"] if phase == "Building Engine"] == [
        0, 25, 50, 75, 100,
    ]  # fmt: skip
    assert outcomes[OLD]["plain"]["told"] == [["parsing", None], ["building", None], ["writing", None]]


def test_precisions_are_flags_up_to_tensorrt_10_and_types_from_11(outcomes: dict[str, Any]) -> None:
    assert outcomes[OLD]["fp16"]["flags"] == ["FP16"]
    assert outcomes[TEN]["fp16"]["plan_flags"] == ["FP16", "TF32"]
    assert outcomes[TEN]["bf16"]["flags"] == ["BF16"]
    assert "TensorRT 8.6.1 has no precision BF16" in outcomes[OLD]["bf16"]["error"]
    text = "from TensorRT 11 (this is 11.4.1) the types in the ONNX file decide, and none in it is FP16"
    assert text in outcomes[ELEVEN]["fp16"]["error"]
    assert [outcomes[version]["quantized best"]["flags"] for version in (OLD, TEN, ELEVEN)] == [
        ["FP16", "INT8"], ["FP16", "BF16", "INT8"], [],
    ]  # fmt: skip


def test_precision_that_the_file_has_may_be_asked_for_with_every_version(outcomes: dict[str, Any]) -> None:
    """A release for devices with several versions has the option and such a file."""
    assert [outcomes[version]["fp16 of the file"].get("flags") for version in (OLD, TEN, ELEVEN)] == [
        ["FP16"], ["FP16"], [],
    ]  # fmt: skip
    assert outcomes[ELEVEN]["quantized int8"].get("flags") == []
    assert "none in it is INT8" in outcomes[ELEVEN]["int8"]["error"]


@pytest.mark.parametrize("version", [OLD, TEN, ELEVEN])
def test_tf32_is_used_unless_it_is_switched_off(outcomes: dict[str, Any], version: str) -> None:
    with_it, without = outcomes[version]["plain"], outcomes[version]["no tf32"]
    assert (with_it["plan_flags"], without["plan_flags"]) == (["TF32"], [])
    assert not without["cached"]
    assert without["key"] != with_it["key"] != outcomes[version]["other shapes"]["key"]


@pytest.mark.parametrize(("version", "others"), [(OLD, ["FP16"]), (TEN, ["FP16", "BF16"])])
def test_int8_needs_an_onnx_file_that_is_quantized(outcomes: dict[str, Any], version: str, others: list[str]) -> None:
    found = outcomes[version]
    assert found["quantized int8"]["flags"] == ["INT8"]
    assert found["int8"]["kind"] == "InvalidArgument"
    assert re.search(r"INT8 was asked for, and .* without Q-DQ nodes .*: quantize the model", found["int8"]["error"])
    assert found["best"]["flags"] == others
    assert "the ONNX file has no Q-DQ nodes: INT8 is left out" in found["log"]


@pytest.mark.parametrize("version", [OLD, TEN, ELEVEN])
def test_compatible_plans_and_dla(outcomes: dict[str, Any], version: str) -> None:
    assert outcomes[version]["compatible"]["flags"] == ["VERSION_COMPATIBLE", "AMPERE_PLUS"]
    assert outcomes[version]["dla"]["dla_core"] == 1
    assert "GPU_FALLBACK" in outcomes[version]["dla"]["plan_flags"]
    assert re.search(r"DLA core 2 .* has 2: name one below 2", outcomes[version]["no dla"]["error"])


def test_workspace_is_half_of_the_free_memory_or_as_asked_for(outcomes: dict[str, Any]) -> None:
    found = outcomes[TEN]
    sizes = [found[f"{name} workspace"]["workspace"] >> 20 for name in ("small", "large", "too large")]
    assert (found["plain"]["workspace"] >> 20, sizes) == (512, [16, 700, 1024])
    text = "workspace of 100000 MiB was asked for, and 1024 MiB of the device are free: a limit of 1024 MiB is set"
    assert text in found["log"]
    assert "workspace of 700 MiB" not in found["log"]


@pytest.mark.parametrize(
    ("case", "kind", "text"),
    [
        ("memory", "Internal", r"Could not find any implementation .*; the device ran out of memory \(asked for "
         r"4096 MB or more, and 1024 MB were free\): unload models .* \(--workspace-mb\)"),
        ("implementation", "Internal", r"most often the device ran out of memory while TensorRT tried kernels for Add"),
        ("no device", "InvalidArgument", r"GPU 7 was asked for, and CUDA finds 2, .*edge-serve doctor"),
        ("broken", "InvalidArgument", r"cannot read broken.onnx: Failed to parse .* is it a whole ONNX file"),
        ("missing", "InvalidArgument", r"missing.onnx' cannot be read: No such file"),
        ("no shapes", "InvalidArgument", r"input 'A' has the shape \[-1,4\], and nothing says .* --min-shapes=A:1x4"),
        ("cache in a file", "Internal", r"cannot be written: Not a directory; name another .*--cache"),
        ("output in a file", "Internal", r"the plan '.*model.plan' cannot be written: (Not a directory|File exists)"),
        ("full disk", "Internal", r"has 0 MB of free disk, and the plan .* or more: free some space"),
        ("plugin", "Internal", r"plugin library '.*' does not load: .* --plugin"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("version", [OLD, TEN, ELEVEN])
def test_build_that_fails_says_why_and_what_to_do(
    outcomes: dict[str, Any], version: str, case: str, kind: str, text: str
) -> None:
    found = outcomes[version][case]
    assert found["kind"] == kind
    assert re.search(text, found["error"]), found["error"]


@pytest.mark.parametrize("version", [OLD, TEN, ELEVEN])
def test_plugin_may_be_named_without_its_folder(outcomes: dict[str, Any], version: str) -> None:
    """The loader finds it, as in the server. It is a part of the engine's key."""
    assert outcomes[version]["plugin by name"].get("error") is None
    assert outcomes[version]["plugin by name"]["key"] != outcomes[version]["plain"]["key"]


def test_unsupported_operator_is_named_as_the_parser_knows_it(outcomes: dict[str, Any]) -> None:
    text = "No importer registered for op: LinearClassifier. Attempting to import as plugin. (node "
    assert f"{text}0); " in outcomes[OLD]["unsupported"]["error"]
    assert f"{text}0, operator LinearClassifier); " in outcomes[TEN]["unsupported"]["error"]
    assert "backend 'onnxruntime'" in outcomes[ELEVEN]["unsupported"]["error"]


def test_timing_cache_that_is_damaged_is_replaced(outcomes: dict[str, Any]) -> None:
    assert not outcomes[TEN]["damaged timing cache"]["cached"]
    assert outcomes[TEN]["timing cache"]["whole"]
    assert "is of another TensorRT or device, or damaged: it is replaced" in outcomes[TEN]["log"]


@pytest.mark.parametrize(
    ("types", "typed", "text"),
    [
        (("FLOAT", None, "HALF"), True, "1 of 3 layers of the ONNX file are FP16"),
        (("HALF", "HALF"), True, ""),
        (("FLOAT", None), False, ""),
    ],
)
def test_layers_that_have_the_precision_are_counted(
    types: Sequence[str | None], typed: bool, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """TensorRT has None in place of an optional output that is left out."""

    def layer(kind: str | None) -> SimpleNamespace:
        output = None if kind is None else SimpleNamespace(dtype=SimpleNamespace(name=kind))
        return SimpleNamespace(num_outputs=1, get_output=lambda _: output)

    network = SimpleNamespace(num_layers=len(types), get_layer=lambda number: layer(types[number]))
    library = cast(Library, SimpleNamespace(version="11.0.0"))
    assert builder._is_typed(library, network, "FP16") is typed
    logged = capsys.readouterr().err
    assert text in logged
    assert bool(text) is bool(logged)


def test_nested_phases_add_up_and_no_percentage_falls() -> None:
    told: list[tuple[str, int | None]] = []
    phases = Phases(lambda phase, percent: told.append((phase, percent)))
    phases.start("build", "", 2)
    phases.start("tactics", "build", 10)
    for done in range(1, 11):
        phases.step("tactics", done)
    phases.finish("tactics")
    phases.step("build", 1)
    phases.finish("build")
    phases.step("unknown", 1)
    phases.start("empty", "", 0)
    assert told == [("build", share) for share in (0, *range(5, 55, 5), 100)] + [("empty", 0)]


@pytest.mark.parametrize("version", [OLD, TEN, ELEVEN])
def test_engine_of_an_onnx_file_that_was_replaced_meanwhile_is_not_cached(
    version: str, outcomes: dict[str, Any]
) -> None:
    """The engine would be served for the old file, once that is put back."""
    assert "add.onnx' was changed during the build" in outcomes[version]["changed meanwhile"]["error"]
    assert not outcomes[version]["changed back"]["cached"]
