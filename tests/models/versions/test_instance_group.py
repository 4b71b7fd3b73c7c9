"""Which instances a new `instance_group` keeps; pure."""

from __future__ import annotations

import pytest

from edge_serve.config.model.text import parse_model_config
from edge_serve.models.versions.instance_group import Placed, compare, place_instances


def instances(*groups: str) -> list[Placed]:
    return place_instances(
        parse_model_config(f'name: "m" instance_group [ {", ".join(f"{{ {group} }}" for group in groups)} ]')
    )


def changed(now: list[Placed], wanted: list[Placed]) -> tuple[list[int], list[str], list[int]]:
    """Numbers that stay, names that come, numbers that go."""
    kept, added, removed = compare(dict(enumerate(now)), wanted)
    return sorted(kept), [one.spec.name for one in added], removed


CPU = "kind: KIND_CPU"


@pytest.mark.parametrize(
    ("now", "wanted", "expected"),
    [
        ([f'name: "a" {CPU} count: 2'], [f'name: "a" {CPU} count: 3'], ([0, 1], ["a_2"], [])),
        ([f'name: "a" {CPU} count: 3'], [f'name: "a" {CPU} count: 1'], ([0], [], [1, 2])),
        ([f'name: "a" {CPU} count: 2'], [f'name: "b" {CPU} count: 2'], ([0, 1], [], [])),
        (
            [f'name: "a" {CPU} count: 3'],
            [f'name: "b" {CPU} count: 1', f'name: "a" {CPU} count: 2'],
            ([0, 1, 2], [], []),
        ),
        (
            [f'name: "a" {CPU} count: 1'],
            [f'name: "a" {CPU} count: 1 rate_limiter {{ priority: 2 }}'],
            ([], ["a_0"], [0]),
        ),
        (
            [f'name: "a" {CPU} count: 2', 'name: "g" kind: KIND_MODEL count: 1'],
            ['name: "g" kind: KIND_MODEL count: 3', f'name: "a" {CPU} count: 1'],
            ([0, 2], ["g_1", "g_2"], [1]),
        ),
        ([f'name: "a" {CPU} count: 1'], [f'name: "a" {CPU} count: 1 passive: true'], ([], ["a_0"], [0])),
    ],
)
def test_instances_of_the_same_signature_stay(
    now: list[str], wanted: list[str], expected: tuple[list[int], list[str], list[int]]
) -> None:
    assert changed(instances(*now), instances(*wanted)) == expected


def test_each_gpu_counts_for_itself() -> None:
    now = instances('name: "g" kind: KIND_GPU count: 2 gpus: [0, 1]')
    assert [(one.spec.name, one.spec.device_id) for one in now] == [
        ("g_gpu0_0", 0), ("g_gpu0_1", 0), ("g_gpu1_0", 1), ("g_gpu1_1", 1),
    ]  # fmt: skip
    fewer = instances('name: "g" kind: KIND_GPU count: 1 gpus: [0, 1]')
    assert changed(now, fewer) == ([0, 2], [], [1, 3])
