"""How far the answers of one precision are from the reference's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edge_serve.convert.trial import Trial, compare, not_finite


def answers(**outputs: Any) -> Trial:
    return Trial([outputs], 1.0, 1.0)


def floats(*values: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(values, np.float32)


def test_largest_difference_and_the_numbers_beyond_the_tolerance() -> None:
    found = compare(answers(y=floats(1, 2.5, 4)), answers(y=floats(1, 2, 4)), 0.1, 0.1)
    assert found.largest == 0.5
    assert found.relative == 0.125
    assert (found.beyond, found.values) == (1, 3)
    assert not found.fits
    assert compare(answers(y=floats(1, 2.25, 4)), answers(y=floats(1, 2, 4)), 0.1, 0.1).fits


@pytest.mark.parametrize(
    ("ours", "theirs", "fits"),
    [
        (np.nan, np.nan, True), (np.nan, 1, False), (1, np.nan, False), (np.inf, np.inf, True), (np.inf, 1, False),
        (-np.inf, np.inf, False),
    ],
)  # fmt: skip
def test_values_that_are_no_numbers(ours: float, theirs: float, fits: bool) -> None:
    assert compare(answers(y=floats(ours)), answers(y=floats(theirs)), 0.1, 0.1).fits is fits


def test_other_shapes_and_names_are_a_problem() -> None:
    shape = compare(answers(y=floats(1, 2)), answers(y=floats(1)), 1, 1)
    assert "shape [2], expected [1]" in shape.problem
    name = compare(answers(z=floats(1)), answers(y=floats(1)), 1, 1)
    assert "['z'], expected ['y']" in name.problem
    assert not shape.fits
    assert not name.fits


def test_strings_must_be_equal() -> None:
    ours, theirs = np.array([b"a", b"b"], object), np.array([b"a", b"c"], object)
    assert compare(answers(y=ours), answers(y=theirs), 1, 1).beyond == 1
    assert compare(answers(y=ours), answers(y=ours), 0, 0).fits


def test_reference_without_numbers_is_reported() -> None:
    assert not_finite(answers(y=floats(1, 2), n=np.arange(2), s=np.array([b"a"], object))) == ""
    assert "2 of its 3 numbers are NaN or infinite" in not_finite(answers(y=floats(np.nan, 2, np.inf)))
