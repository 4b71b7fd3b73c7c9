"""Texts of LightGBM that end the process of Treelite. Needs neither Treelite nor a trained model."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from packs.fil.lightgbm_text import without_zeros
from packs.fil.lightgbm_trees import problem_of_text

TEXT = """tree
num_class=1
max_feature_idx=1
objective=regression

Tree=0
num_leaves=2
num_cat=1
split_feature=0
threshold=0
decision_type=1
left_child=-1
right_child=-2
leaf_value=1 2
cat_boundaries=0 1
cat_threshold=1

end of trees
"""


@pytest.mark.parametrize(
    ("line", "changed", "problem"),
    [
        ("", "", ""),
        ("objective=regression\n", "", ""),  # trained with a function of the user
        ("objective=regression", "objective=", "its objective has no name"),
        ("objective=regression", "objective", "its objective has no name"),
        ("threshold=0", "threshold=1", "tree 0: a split has a set of categories that is not there"),
        ("threshold=0", "threshold=nan", "tree 0: a split has a set of categories that is not there"),
    ],
)
def test_lines_that_treelite_believes(line: str, changed: str, problem: str) -> None:
    assert problem_of_text(TEXT.replace(line, changed, 1).encode()) == problem


def test_a_line_of_many_digits_is_read_at_once() -> None:
    """A pattern that can match digits in many ways takes twice as long for each digit more."""
    text = TEXT.replace("split_feature=0", f"split_feature={'0' * 30}.0", 1).encode()
    before = time.process_time()
    assert without_zeros(Path("model.txt"), text) is None
    assert time.process_time() - before < 10
