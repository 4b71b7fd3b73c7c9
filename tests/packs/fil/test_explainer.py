"""Shapley values of a forest without trees, without the library."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from packs.fil.forest import Facts, Forest, Task
from packs.fil.shap import Explainer


class Bare:
    """A forest without trees: a training of no rounds, or of a constant target."""

    facts = Facts(Task.REGRESSION, 3, 0, 1, 1, np.dtype(np.float32))

    def field(self, name: str) -> Any:
        return {"class_id": np.empty(0, np.int32), "average_tree_output": [False], "base_scores": np.array([0.5])}[name]


def test_a_forest_without_trees_explains_its_base_score() -> None:
    found = Explainer(cast(Forest, Bare())).explain(np.ones((2, 3), np.float32))
    assert found.tolist() == [[[0, 0, 0, 0.5]]] * 2
