"""Decisions about systems that need no document: decide/system.py."""

from __future__ import annotations

import pytest

from ota.decide.system import SystemState, must_cancel


@pytest.mark.parametrize(
    ("pending", "wanted", "denied", "expected"),
    [
        (3, 3, (), False),
        (3, 4, (), False),
        (3, 4, (3,), True),
        (3, 3, (3,), True),
        (3, 2, (), True),
        (3, 1, (), True),
        (3, 0, (), True),
        (2, 3, (2,), False),
        (0, 3, (), False),
    ],
)
def test_a_version_that_waits_is_taken_back_unless_a_higher_one_supersedes_it(
    pending: int, wanted: int, denied: tuple[int, ...], expected: bool
) -> None:
    state = SystemState("edge", "base", "x86_64", 2, confirmed=(2,), pending=pending)
    assert must_cancel(state, wanted, denied) is expected
