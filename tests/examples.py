"""Property tests and random walks with few examples in the default run, and many in the slow one.

The examples of a test are the same in each run (see tests/conftest.py): the default run tells that the property still
holds, and the slow one looks further.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def examples(few: int, many: int, *strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Any]:
    """Make a test of a function that checks one example: with `few` examples, and as a slow test with `many`."""

    def decorate(check: Callable[..., None]) -> Any:
        @pytest.mark.parametrize("count", [few, pytest.param(many, marks=pytest.mark.slow)])
        def test(count: int) -> None:
            settings(max_examples=count, deadline=None)(given(*strategies)(check))()

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        return test

    return decorate


def seeds(few: int, many: int) -> pytest.MarkDecorator:
    """Run a test with `few` values of `seed`, and as slow tests with those up to `many`."""
    slow = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(few, many)]
    return pytest.mark.parametrize("seed", [*range(few), *slow])
