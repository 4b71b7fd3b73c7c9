"""Property tests with few examples in the default run, and many in the slow one.

The examples of a test are the same in each run (see tests/conftest.py): the default run tells that the property still
holds, and the slow one looks further.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def examples(few: int, many: int) -> pytest.MarkDecorator:
    """Give a test its `count` of examples."""
    return pytest.mark.parametrize("count", [few, pytest.param(many, marks=pytest.mark.slow)])


def holds(count: int, check: Callable[..., None], *strategies: st.SearchStrategy[Any]) -> None:
    """Run `check` with so many examples of the strategies.

    Raises:
        AssertionError: the check failed.
    """
    settings(max_examples=count, deadline=None)(given(*strategies)(check))()
