"""The plan for a device, and the check of its description before it is deserialized."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_serve.backends.tensorrt.plan import (
    PlanHost,
    PlanMeta,
    check_meta,
    find_plan,
    meta_path,
    plan_filename,
    read_meta,
    rebuild_command,
    version_runs,
    write_meta,
)
from edge_serve.errors import Internal, InvalidArgument, Unavailable

ORIN = PlanHost("10.3.0", (8, 7), "aarch64")
BUILT = PlanMeta(
    "10.3.0", "8.7", "Orin", "ab" * 32, ({"x": [[1, 3], [4, 3], [8, 3]]},), ("FP16",), "aarch64"
)  # fmt: skip


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "m/1/model.plan"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"plan")
    return path


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({}, "model.plan"),
        ({"default_model_filename": ""}, "model.plan"),
        ({"default_model_filename": "net.engine"}, "net.engine"),
        ({"default_model_filename": "net.engine", "cc_model_filenames": {"8.7": "orin.plan"}}, "orin.plan"),
        ({"default_model_filename": "net.engine", "cc_model_filenames": {"8.6": "other.plan"}}, "net.engine"),
    ],
)
def test_file_of_a_plan(config: dict[str, Any], name: str, plan: Path) -> None:
    assert plan_filename(config, (8, 7)) == name
    (plan.parent / name).touch()
    assert find_plan(plan.parent, config, (8, 7), "m_0") == plan.with_name(name)


def test_missing_plan(plan: Path) -> None:
    plan.unlink()
    with pytest.raises(Unavailable) as failed:
        find_plan(plan.parent, {"name": "m"}, (8, 7), "m_0_0")
    assert failed.value.message.startswith(f"unable to find '{plan}' for model instance 'm_0_0'")

    (plan.parent / "model.onnx").touch()
    with pytest.raises(Unavailable, match=r"; build it from the ONNX file there: edge-serve build m$"):
        find_plan(plan.parent, {"name": "m"}, (8, 7), "m_0_0")

    config = {"name": "my model", "cc_model_filenames": {"8.6": "a.plan", "7.5": "b.plan"}}
    with pytest.raises(
        Unavailable, match=r"plans for compute capability 7\.5, 8\.6, and this device has 8\.7: edge-serve"
    ):
        find_plan(plan.parent, config, (8, 7), "m_0_0")
    with pytest.raises(Unavailable, match=r"a\.plan' for model instance 'm_0_0'; build it from the ONNX file"):
        find_plan(plan.parent, config, (8, 6), "m_0_0")


def test_rebuild_command_takes_any_name() -> None:
    assert rebuild_command("my model") == "edge-serve build 'my model'"


def test_description_is_written_and_read(plan: Path) -> None:
    assert read_meta(plan, "m") is None
    write_meta(plan, BUILT)
    write_meta(plan, replace(BUILT, plan_bytes=4))

    assert meta_path(plan).name == "model.plan.meta.json"
    assert read_meta(plan, "m") == replace(BUILT, plan_bytes=4)
    assert sorted(path.name for path in plan.parent.iterdir()) == ["model.plan", "model.plan.meta.json"]


def test_members_of_a_newer_version_are_passed_over(plan: Path) -> None:
    meta_path(plan).write_text('{"tensorrt": "10.3.0", "capability": "8.7", "colour": "red"}')
    assert read_meta(plan, "m") == PlanMeta("10.3.0", "8.7")


def test_failed_write_leaves_the_old_description(plan: Path) -> None:
    write_meta(plan, BUILT)
    with pytest.raises(TypeError):
        write_meta(plan, replace(BUILT, flags=(object(),)))  # type: ignore[arg-type]
    assert read_meta(plan, "m") == BUILT
    assert len(list(plan.parent.iterdir())) == 2


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "7", "{}", '{"tensorrt": "10.3.0"}', '{"tensorrt": 10, "capability": "8.7"}',
        '{"tensorrt": "new", "capability": "8.7"}', '{"tensorrt": "10.3.0", "capability": ""}',
        '{"tensorrt": "10.3.0", "capability": "8.7", "profiles": 3}',
        '{"tensorrt": "10.3.0", "capability": "8.7", "profiles": [{"x": 3}]}',
        '{"tensorrt": "10.3.0", "capability": "8.7", "plan_bytes": "many"}', "[" * 100_000,
    ],
)  # fmt: skip
def test_description_that_is_none(plan: Path, text: str) -> None:
    meta_path(plan).write_text(text)
    with pytest.raises(InvalidArgument, match=r"^model.plan.meta.json does not describe a plan .*edge-serve build m$"):
        read_meta(plan, "m")


def test_plan_from_here_passes(plan: Path) -> None:
    check_meta(BUILT, ORIN, plan, "m")
    check_meta(replace(BUILT, plan_bytes=4), ORIN, plan, "m")
    check_meta(PlanMeta("10.3", "8.7"), ORIN, plan, "m")
    check_meta(replace(BUILT, tensorrt="10.3.0.26"), ORIN, plan, "m")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"machine": "x86_64"},
            "was built on a processor of type x86_64, and this is aarch64; build it again: edge-serve build m",
        ),
        ({"tensorrt": "8.6.0"}, "model.plan is a plan of TensorRT 8.6.0, and this is TensorRT 10.3.0; build it again"),
        ({"tensorrt": "10.3.1"}, "is a plan of TensorRT 10.3.1, and this is TensorRT 10.3.0;"),
        (
            {"tensorrt": "10.4.0", "flags": ("VERSION_COMPATIBLE",)},
            "is a version-compatible plan of TensorRT 10.4.0, and this is TensorRT 10.3.0;",
        ),
        (
            {"tensorrt": "8.6.0", "flags": ("VERSION_COMPATIBLE",)},
            "model.plan is version-compatible: it carries the runtime of TensorRT 8.6.0, whose code may not run here; "
            "if you trust the plan, start the server with --backend-config=tensorrt,version-compatible=true, or build",
        ),
        (
            {"capability": "9.0", "device": "H100"},
            "was built for compute capability 9.0 (H100), and this device has 8.7; build it again",
        ),
        ({"capability": "7.5", "flags": ("AMPERE_PLUS",)}, "was built for compute capability 7.5 (Orin), and this"),
        (
            {"plan_bytes": 9},
            "model.plan has 4 bytes, and model.plan.meta.json says 9; copy both files again, or build it again: "
            "edge-serve build m",
        ),
    ],
)
def test_plan_of_another_machine_is_explained(plan: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(Internal) as failed:
        check_meta(replace(BUILT, **changes), ORIN, plan, "m")
    assert failed.value.message.startswith("unable to create TensorRT engine: model.plan ")
    assert text in failed.value.message


def test_plan_for_ampere_and_newer(plan: Path) -> None:
    meta = replace(BUILT, capability="8.0", flags=("AMPERE_PLUS",))
    check_meta(meta, ORIN, plan, "m")


@pytest.mark.parametrize(
    ("built", "library", "runs"),
    [
        ("8.6.0", "9.0.0", True), ("8.6.0", "10.16.1.11", True), ("8.6.0", "11.4.0", False),
        ("8.5.3", "10.0.0", False),
        ("10.3.0", "10.16.0", True), ("10.3.0", "11.0.0", True), ("11.0.0", "11.4.1", True),
        ("11.4.0", "11.0.0", False),
        ("10.0.0", "8.6.0", False), ("12.0.0", "12.1.0", False), ("12.0.0", "12.0.0", True),
    ],
)  # fmt: skip
def test_versions_that_run_a_compatible_plan(built: str, library: str, runs: bool) -> None:
    compatible = PlanMeta(built, "8.7", flags=("VERSION_COMPATIBLE",))
    assert version_runs(compatible, library, host_code=True) == runs
    assert not version_runs(compatible, library, host_code=False)
    without = PlanMeta(built, "8.7", flags=("VERSION_COMPATIBLE", "EXCLUDE_LEAN_RUNTIME"))
    assert version_runs(without, library, host_code=False) == runs
    assert version_runs(PlanMeta(built, "8.7"), library, host_code=True) == (built == library)


versions = st.tuples(st.integers(8, 12), st.integers(0, 20), st.integers(0, 3)).map(lambda one: ".".join(map(str, one)))


@given(built=versions, library=versions, compatible=st.booleans(), host_code=st.booleans())
def test_no_plan_runs_on_an_older_library(built: str, library: str, compatible: bool, host_code: bool) -> None:
    meta = PlanMeta(built, "8.7", flags=("VERSION_COMPATIBLE",) if compatible else ())
    runs = version_runs(meta, library, host_code=host_code)
    older = [int(part) for part in library.split(".")] < [int(part) for part in built.split(".")]
    assert not (runs and older)
    assert runs or built != library or (compatible and not host_code)


def test_description_is_plain_json(plan: Path) -> None:
    write_meta(plan, BUILT)
    assert json.loads(meta_path(plan).read_text())["profiles"] == [{"x": [[1, 3], [4, 3], [8, 3]]}]
