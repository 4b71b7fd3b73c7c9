"""Shapley values of a forest (path-dependent TreeSHAP): the tensor `treeshap_output`. NumPy only.

A leaf adds its value if all features of its path agree with the row. A feature that is not known agrees with the share
of the training rows that went this way (Lundberg and others, "Consistent Individualized Feature Attribution for Tree
Ensembles", 2018). The Shapley weight of a set of known features is an integral over u of u^known (1-u)^unknown, so the
sum over all sets is the integral of a product of d factors, a polynomial in u: Gauss-Legendre quadrature with d/2
points is exact.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from edge_serve.messages.tensors import Array

from .forest import Forest
from .tree_paths import PathEdge, Splits, Tree

#: elements of a temporary array
_MOST = 4_000_000
#: in place of a share of 0, by which the product would be divided
_NO_ROW = 1e-30
#: features of a path, class (-1 = all): what has the same shape is computed at once
_Shape = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Paths:
    """Paths with equally many features, to leaves that add to the same class.

    Attributes:
        nodes, left: [path, feature, split], the splits on a feature, the last one repeated, and which way they go.
        share: [path, feature], of the training rows that went this way.
        column: [path, feature]; value: [path, class].
    """

    nodes: Array
    left: Array
    share: Array
    column: Array
    value: Array


class Explainer:
    """The paths of a forest.

    Raises:
        Unsupported: the model does not tell how many rows took each way.
    """

    def __init__(self, forest: Forest) -> None:
        self._facts = forest.facts
        self._splits = Splits()
        self._paths: dict[_Shape, _Paths] = {}
        self._mean = np.zeros(self._facts.classes)
        self._collect(forest)

    def explain(self, rows: Array) -> Array:
        """Return [row, class, feature + 1]: the part of each feature in the score before it is transformed, and last
        the mean score."""
        values = np.zeros((len(rows), self._facts.classes, self._facts.features + 1))
        values[:, :, -1] = self._mean
        if not self._paths:  # no tree, or none with a split
            return values
        step = max(1, _MOST // max(1, self._splits.count))
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            went_left = self._splits.went_left(rows[part])
            for (_, number), paths in self._paths.items():
                self._add(values[part], went_left, paths, number)
        return values

    def _add(self, values: Array, went_left: Array, paths: _Paths, number: int) -> None:
        count, depth, splits = paths.nodes.shape
        classes = range(self._facts.classes) if number < 0 else [number]
        step = max(1, _MOST // max(1, len(went_left) * depth * splits))
        for start in range(0, count, step):
            some = slice(start, start + step)
            agrees = (went_left[:, paths.nodes[some]] == paths.left[some]).all(axis=-1).astype(np.float64)
            parts = _shapley(agrees, paths.share[some])
            columns = paths.column[some].ravel()
            for place, one in enumerate(classes):
                weighted = (parts * paths.value[some, place, np.newaxis]).reshape(len(parts), -1)
                order = np.argsort(columns, kind="stable")
                firsts = np.flatnonzero(np.diff(columns[order], prepend=-1))
                values[:, one, columns[order][firsts]] += np.add.reduceat(weighted[:, order], firsts, axis=1)

    def _collect(self, forest: Forest) -> None:
        found: dict[_Shape, list[tuple[list[PathEdge], Array]]] = defaultdict(list)
        of_class = forest.field("class_id")
        average = _trees_of_class(of_class, self._facts.classes) if forest.field("average_tree_output")[0] else None
        for number in range(self._facts.trees):
            tree, one = Tree(forest, number), int(of_class[number])
            scale = 1.0 if average is None else 1 / (average if one < 0 else average[one])
            first = self._splits.add(tree)
            for edges, leaf in tree.paths(first):
                value = np.atleast_1d(tree.value(leaf)) * scale
                share = float(np.prod([edge.share for edge in edges]))
                self._mean[slice(None) if one < 0 else one] += (value if one < 0 else value[0]) * share
                depth = len({edge.feature for edge in edges})
                if depth:
                    found[depth, one].append((edges, value))
        self._mean += forest.field("base_scores").reshape(-1)
        self._paths = {shape: _joined(shape[0], paths) for shape, paths in found.items()}


def _shapley(agrees: Array, share: Array) -> Array:
    """Return the Shapley value of each feature of a path to a leaf of value 1: [row, path, feature]."""
    points, weights = np.polynomial.legendre.leggauss((share.shape[-1] + 1) // 2)
    total = np.zeros_like(agrees)
    for u, weight in zip((points + 1) / 2, weights / 2, strict=True):
        factors = share * (1 - u) + agrees * u
        total += weight * factors.prod(axis=-1, keepdims=True) / factors
    found: Array = total * (agrees - share)
    return found


def _trees_of_class(of_class: Array, classes: int) -> Array:
    return np.array([np.count_nonzero((of_class == one) | (of_class < 0)) for one in range(classes)], np.float64)


def _joined(depth: int, paths: list[tuple[list[PathEdge], Array]]) -> _Paths:
    """Return paths of one depth as arrays."""
    by_feature = []
    for edges, _ in paths:
        of_path: dict[int, list[PathEdge]] = defaultdict(list)
        for edge in edges:
            of_path[edge.feature].append(edge)
        by_feature.append(of_path)
    most = max(len(edges) for of_path in by_feature for edges in of_path.values())
    nodes, left = np.empty((len(paths), depth, most), np.int64), np.empty((len(paths), depth, most), bool)
    share, column = np.empty((len(paths), depth)), np.empty((len(paths), depth), np.int64)
    for row, of_path in enumerate(by_feature):
        for place, (feature, edges) in enumerate(of_path.items()):
            padded = [*edges, *[edges[-1]] * (most - len(edges))]
            nodes[row, place] = [edge.node for edge in padded]
            left[row, place] = [edge.left for edge in padded]
            column[row, place] = feature
            share[row, place] = max(float(np.prod([edge.share for edge in edges])), _NO_ROW)
    return _Paths(nodes, left, share, column, np.array([value for _, value in paths]))
