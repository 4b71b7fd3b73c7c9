"""Variants, and the constraints on the facts of a device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ota.decide.variant import candidates, compare, find_faults, matches, reason_too_old
from ota.documents.manifest import FileEntry, Manifest, PlanBuild, Variant

ORIN = {"arch": "aarch64", "sm": "8.7", "tensorrt": "10.3.0.30", "jetpack": "6.2", "memory_bytes": str(16 << 30)}
PLAN = Variant(
    "orin", "trt-engine", 10, {"arch": "aarch64", "sm": "8.7", "tensorrt": "==10.3.0.30", "jetpack": ">=6.1,<6.3"}
)
BUILD = Variant("build", "onnx-build", 20, {"sm": ">=7.5", "tensorrt": ">=8.6"}, memory_bytes=2 << 30)
ONNX = Variant("onnx", "onnx", 90)
MANIFEST = Manifest("det", "vision", 17, 42, {"det": ()}, (ONNX, PLAN, BUILD))


def chosen(facts: dict[str, str], bad: dict[str, str] | None = None) -> list[tuple[str, str]]:
    return [(one.variant.id, one.why_not) for one in candidates(MANIFEST, facts, bad)]


@pytest.mark.fault("V4")
def test_the_lowest_priority_that_fits_comes_first_and_each_other_one_has_its_reason() -> None:
    assert chosen(ORIN) == [("orin", ""), ("build", ""), ("onnx", "")]
    assert chosen({"arch": "x86_64"}) == [
        ("orin", "arch is x86_64, expected aarch64"),
        ("build", "this device has no sm, expected >=7.5"),
        ("onnx", ""),
    ]
    assert chosen(ORIN, {"orin": "golden test"})[0] == ("orin", "it failed on this device: golden test")


@pytest.mark.fault("V1")
@pytest.mark.parametrize(
    ("fact", "value", "reason"),
    [
        ("sm", "8.9", "sm is 8.9, expected 8.7"),
        ("sm", "8.7,8.9", "sm is 8.9, expected 8.7"),
        ("arch", "x86_64", "arch is x86_64, expected aarch64"),
        ("tensorrt", "10.3.0.31", "tensorrt is 10.3.0.31, expected ==10.3.0.30"),
        ("jetpack", "6.3", "jetpack is 6.3, expected >=6.1,<6.3"),
    ],
)
def test_a_plan_runs_only_where_it_was_made_for(fact: str, value: str, reason: str) -> None:
    assert chosen({**ORIN, fact: value})[0] == ("orin", reason)


def test_memory_is_that_of_the_gpu_where_there_is_one() -> None:
    assert chosen({**ORIN, "gpu_memory_bytes": str(1 << 30)})[1][1] == "it needs 2048 MiB, and this device has 1024 MiB"
    assert chosen({**ORIN, "memory_bytes": str(1 << 30)})[1][1] == "it needs 2048 MiB, and this device has 1024 MiB"


@pytest.mark.parametrize(
    ("value", "constraint", "expected"),
    [
        ("6.1", "6.1.0", True), ("10.3", ">=9.9", True), ("6.2+b77", ">=6.1,<6.3", True), ("6.3", "<6.3", False),
        ("aarch64", "x86_64|aarch64", True), ("aarch64", "!=aarch64", False), ("x", "!=aarch64", True),
        ("RTX 3090 Ti", "RTX 3090 Ti", True), ("3090 Ti", "3090", False), ("aarch64", ">=1", False),
        ("1", ">=1,", False), ("1", "", False), ("1", "~1", False), ("1", ">=1|", True), ("1" * 80, ">=1", False),
    ],
)  # fmt: skip
def test_constraints(value: str, constraint: str, expected: bool) -> None:
    assert matches(value, constraint) is expected


@pytest.mark.parametrize(
    ("constraint", "odd"),
    [
        ("=>7.5", ["=>7.5"]), ("10..3", ["10..3"]), ("==>7", ["==>7"]), (">=new", [">=new"]), ("~1", ["~1"]),
        (">=6.1,<6.3|aarch64", []), ("10.3.0.30|NVIDIA A2", []), ("!=6.2+b77", []), ("", [""]), (">=1|", [""]),
        ("8.6|=>8.7", ["=>8.7"]),
    ],
)  # fmt: skip
def test_a_condition_that_no_device_meets_is_a_fault(constraint: str, odd: list[str]) -> None:
    manifest = replace(MANIFEST, variants=(replace(ONNX, match={"sm": constraint}),))
    found = find_faults(manifest)
    assert [one.partition(":")[0] for one in found] == ["variant onnx"] * len(odd)
    assert all(f"no device meets the condition sm {one!r}" in text for one, text in zip(odd, found, strict=True))


def test_a_variant_that_cannot_be_built_is_a_fault_and_fits_no_device() -> None:
    entry = FileEntry("17/model.onnx", "0" * 64, 1)
    manifest = replace(MANIFEST, models={"det": (entry,)})

    build = PlanBuild("det", entry.path, "17/model.plan", options=("--fp16", "--min-shapes=x:1x3"))

    def built(build: PlanBuild) -> Manifest:
        return replace(manifest, variants=(ONNX, replace(BUILD, match={}, build=(build,))))

    assert find_faults(built(build)) == []
    for wrong, reason in (
        (replace(build, onnx="17/other.onnx"), "it builds 17/model.plan of det from 17/other.onnx, which det lacks"),
        (replace(build, options=("--fp16", "--verbose")), "the option '--verbose' of its build is not known"),
    ):
        (fault,) = find_faults(built(wrong))
        assert fault.startswith(f"variant build: {reason}")
        first, second = candidates(built(wrong), {})
        assert (first.variant.id, second.variant.id, second.why_not) == ("build", "onnx", "")
        assert first.why_not.startswith(reason)


def test_versions_are_compared_number_by_number() -> None:
    assert [compare("10.3", "9.9"), compare("6.1", "6.1.0"), compare("1.2", "1.10"), compare("a", "b")] == [
        1,
        0,
        -1,
        -1,
    ]


def test_a_release_for_newer_programs_says_which() -> None:
    manifest = replace(MANIFEST, needs_agent="1.4", needs_server="2.0")
    assert reason_too_old(MANIFEST, "0.1", "") == ""
    assert "needs edge-ota 1.4 or newer, and this is 1.3.9: update edge-ota first" in reason_too_old(
        manifest, "1.3.9", "2.0"
    )
    assert "needs edge-serve 2.0 or newer, and this is unknown" in reason_too_old(manifest, "1.4", "")
    assert reason_too_old(manifest, "1.4", "2.0.1") == ""
