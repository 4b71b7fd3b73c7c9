"""The client's shape and the model's shape."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_serve.messages.tensors import Shape, element_count
from edge_serve.models.run.reshape import converted


@pytest.mark.parametrize(
    ("shape", "before", "after", "batch", "result"),
    [
        ((4, 2, 2), (2, 2), (4,), 1, (4, 4)),
        ((1,), (1,), (), 0, ()),
        ((3, 1), (1,), (), 1, (3,)),
        ((2, 5, 7), (-1, 7), (7, -1), 1, (2, 7, 5)),
        ((2, 6), (-1,), (2, -1), 1, (2, 2, 3)),
        ((8, 3, 4), (-1, -1), (-1, 1, -1), 1, (8, 3, 1, 4)),
    ],
)
def test_converted(shape: Shape, before: Shape, after: Shape, batch: int, result: Shape) -> None:
    assert result == converted(shape, before, after, batch)


def test_a_shape_that_does_not_follow_the_configuration_is_left_alone() -> None:
    assert converted((2, 3, 4), (3,), (1, 3), 1) == (2, 3, 4)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 1))
def test_there_and_back_gives_the_same_shape(sizes: list[int], batch: int) -> None:
    before = tuple(sizes)
    after = (1, element_count(before))
    shape = (5,) * batch + before

    there = converted(shape, before, after, batch)

    assert element_count(shape) == element_count(there)
    assert shape == converted(there, after, before, batch)
