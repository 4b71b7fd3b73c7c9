"""The paths of a tree to its leaves, and the splits of all trees, asked for many rows at once. NumPy only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from edge_serve.errors import Unsupported
from edge_serve.messages.tensors import Array

from .forest import Forest
from .structure import LEAF

#: comparisons and kinds of nodes, as Treelite numbers them
_LESS, _LESS_OR_EQUAL, _GREATER, _GREATER_OR_EQUAL = 2, 3, 4, 5
_CATEGORICAL = 2
_FIELDS = ("split_index", "threshold", "cmp", "default_left")


@dataclass(frozen=True, slots=True)
class PathEdge:
    """A step of a path."""

    node: int
    left: bool
    feature: int
    share: float


class Tree:
    """The fields of one tree."""

    def __init__(self, forest: Forest, number: int) -> None:
        self._forest, self._number = forest, number
        self.left, self.right, self.feature = (self.field(name) for name in ("cleft", "cright", "split_index"))
        self._vector, self._begin = self.field("leaf_vector"), self.field("leaf_vector_begin")
        self._end, self._value = self.field("leaf_vector_end"), self.field("leaf_value")
        hessians, counts = self.field("sum_hess_present"), self.field("data_count_present")
        if len(hessians) and hessians.all():
            self._cover = self.field("sum_hess").astype(np.float64)
        elif len(counts) and counts.all():
            self._cover = self.field("data_count").astype(np.float64)
        elif len(self.left) > 1:
            raise Unsupported("Model does not have node statistics.")  # Triton's text

    def field(self, name: str) -> Array:
        """Return a field."""
        return self._forest.field(name, self._number)

    def value(self, leaf: int) -> Array:
        """Return the value of a leaf: a number, or one for each class."""
        if len(self._begin) and self._end[leaf] > self._begin[leaf]:
            return self._vector[self._begin[leaf] : self._end[leaf]].astype(np.float64)
        return self._value[leaf : leaf + 1].astype(np.float64)

    def paths(self, first: int) -> Iterator[tuple[list[PathEdge], int]]:
        """Yield the path to each leaf, and the leaf. `first` is the number of this tree's root in the forest."""
        waiting: list[tuple[int, list[PathEdge]]] = [(0, [])]
        while waiting:
            node, edges = waiting.pop()
            if self.left[node] == LEAF:
                yield edges, node
                continue
            for child, is_left in ((int(self.left[node]), True), (int(self.right[node]), False)):
                share = self._cover[child] / self._cover[node] if self._cover[node] else 0.0
                waiting.append(
                    (child, [*edges, PathEdge(first + node, is_left, int(self.feature[node]), float(share))])
                )


class Splits:
    """The questions of all nodes of a forest."""

    def __init__(self) -> None:
        self.count = 0
        self._fields: dict[str, list[Array]] = {
            name: [] for name in ("split_index", "threshold", "cmp", "default_left")
        }
        self._joined: dict[str, Array] = {}
        #: node -> its categories, and whether they go right
        self._categories: dict[int, tuple[Array, bool]] = {}

    def add(self, tree: Tree) -> int:
        """Add the nodes of a tree. Return the number of its root."""
        first = self.count
        for name, arrays in self._fields.items():
            arrays.append(tree.field(name))
        categorical = np.flatnonzero((tree.field("node_type") == _CATEGORICAL) & (tree.left != LEAF))
        if len(categorical):
            begin, end, listed = (tree.field(f"category_list{part}") for part in ("_begin", "_end", ""))
            goes_right = tree.field("category_list_right_child")
            for node in categorical:
                self._categories[first + int(node)] = listed[begin[node] : end[node]], bool(goes_right[node])
        self.count += len(tree.left)
        return first

    def went_left(self, rows: Array) -> Array:
        """Return whether each row goes left at each node: [row, node]."""
        if not self._joined:
            self._joined = {name: np.concatenate(arrays) for name, arrays in self._fields.items()}
        fields = self._joined
        asked = rows[:, np.clip(fields["split_index"], 0, rows.shape[1] - 1)]
        threshold, cmp = fields["threshold"], fields["cmp"]
        left = np.select(
            [cmp == _LESS, cmp == _LESS_OR_EQUAL, cmp == _GREATER, cmp == _GREATER_OR_EQUAL],
            [asked < threshold, asked <= threshold, asked > threshold, asked >= threshold],
            asked == threshold,
        )
        for node, (categories, goes_right) in self._categories.items():
            values = asked[:, node]
            left[:, node] = np.isin(np.trunc(values), categories) & (values >= 0) ^ goes_right
        return np.where(np.isnan(asked), fields["default_left"].astype(bool), left)
