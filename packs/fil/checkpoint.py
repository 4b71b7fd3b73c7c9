"""Checks a checkpoint of Treelite before the library reads it: lengths, and the shape of each tree.

The library believes every length and every child in such a file: a damaged one makes it allocate any amount of memory,
read outside of its arrays, or walk in a circle. Format: Treelite's docs/serialization/v4.rst. Files of Treelite 3.9,
which the library reads too, have another layout, and only the library's own checks.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import numpy as np

from edge_serve.errors import InvalidArgument
from edge_serve.messages.tensors import Array

from .structure import LEAF, problem_of_tree

_CHECKED_MAJOR = 4
_ADVICE = "copy the file again, or save it anew with Treelite's model.serialize('checkpoint.tl')"
#: the types in a model, by their number: include/treelite/enum/typeinfo.h
_TYPES = {2: "<f4", 3: "<f8"}
#: arrays of a tree in the order of the file; `T` is the type of thresholds, `L` that of leaves
_ARRAYS = {
    "node_type": "i1", "cleft": "<i4", "cright": "<i4", "split_index": "<i4", "default_left": "u1", "leaf_value": "L",
    "threshold": "T", "cmp": "i1", "category_list_right_child": "u1", "leaf_vector": "L", "leaf_vector_begin": "<u8",
    "leaf_vector_end": "<u8", "category_list": "<u4", "category_list_begin": "<u8", "category_list_end": "<u8",
    "data_count": "<u8", "data_count_present": "u1", "sum_hess": "<f8", "sum_hess_present": "u1", "gain": "<f8",
    "gain_present": "u1",
}  # fmt: skip
#: arrays with one element for each node
_OF_NODES = ("node_type", "cleft", "cright", "split_index", "default_left", "leaf_value", "threshold", "cmp")
_NUMERICAL, _CATEGORICAL = 1, 2
#: include/treelite/enum/operator.h
_COMPARISONS = range(1, 6)


class _Damaged(Exception):
    """A file that is cut or contradicts itself. The text says where."""


def check_checkpoint(path: Path) -> None:
    """Read through a file.

    Raises:
        InvalidArgument: it is damaged.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            _check(_Reader(view))
    except _Damaged as error:
        raise InvalidArgument(f"'{path}' is damaged: {error}; {_ADVICE}") from error


class _Reader:
    """The values of a file, one after the other."""

    def __init__(self, view: mmap.mmap) -> None:
        self._view = view
        self.place = 0

    def number(self, code: str) -> int:
        """Return one number."""
        (value,) = struct.unpack(f"<{code}", self._take(struct.calcsize(code)))
        return int(value)

    def array(self, dtype: str) -> Array:
        """Return an array, which has its length before it."""
        count, kind = self.number("Q"), np.dtype(dtype)
        return np.frombuffer(self._take(count * kind.itemsize), kind)

    def skip_optional(self) -> None:
        """Read over the fields that a newer Treelite may add."""
        for _ in range(self.number("i")):
            self.array("u1")
            size, count = self.number("Q"), self.number("Q")
            self._take(size * count)

    @property
    def at_end(self) -> bool:
        """Return whether everything was read."""
        return self.place == len(self._view)

    def _take(self, count: int) -> bytes:
        if count > len(self._view) - self.place:
            raise _Damaged(f"it ends after {len(self._view)} bytes, where {count} more than {self.place} are announced")
        self.place += count
        return self._view[self.place - count : self.place]


def _check(reader: _Reader) -> None:
    version = [reader.number("i") for _ in range(3)]
    if version[0] != _CHECKED_MAJOR:
        return  # the library says so, or reads it
    threshold, leaf = (_TYPES.get(reader.number("B"), "") for _ in range(2))
    if not threshold or not leaf:
        raise _Damaged("its numbers have a type that is not known")
    trees, features = reader.number("Q"), reader.number("i")
    reader.number("B")  # task
    reader.number("B")  # average_tree_output
    leaf_size = _check_header(reader, trees, features)
    for number in range(trees):
        try:
            _check_tree(reader, features, {"T": threshold, "L": leaf}, leaf_size)
        except _Damaged as error:
            raise _Damaged(f"tree {number}: {error}") from error
    if not reader.at_end:
        raise _Damaged(f"it goes on after its last tree, which ends at {reader.place}")


def _check_header(reader: _Reader, trees: int, features: int) -> int:
    """Return the size of a leaf that has a vector."""
    targets = reader.number("i")
    classes, shape, target, of_class = (reader.array("<i4") for _ in range(4))
    reader.array("u1")  # postprocessor
    reader.number("I")  # sigmoid_alpha
    reader.number("I")  # ratio_c
    base_scores = reader.array("<f8")
    reader.array("u1")  # attributes
    reader.skip_optional()
    if features < 1 or targets < 1 or len(classes) != targets or classes.min() < 1 or len(shape) != 2:
        raise _Damaged(f"its header has {features} features, {targets} targets, and classes {classes.tolist()}")
    if len(base_scores) != targets * int(classes.max()):
        raise _Damaged(f"its header has {len(base_scores)} base scores")
    for name, ids, most in (("target_id", target, targets), ("class_id", of_class, int(classes.max()))):
        if len(ids) != trees or (trees and (ids.min() < -1 or ids.max() >= most)):
            raise _Damaged(f"its header has a wrong {name}")
    return int(shape[0]) * int(shape[1])


def _check_tree(reader: _Reader, features: int, types: dict[str, str], leaf_size: int) -> None:
    nodes = reader.number("i")
    reader.number("B")  # has_categorical_split
    arrays = {name: reader.array(types.get(code, code)) for name, code in _ARRAYS.items()}
    reader.skip_optional()
    reader.skip_optional()
    if nodes < 1 or any(len(arrays[name]) != nodes for name in _OF_NODES):
        raise _Damaged(f"its arrays have other lengths than its {nodes} nodes")
    if problem := problem_of_tree(arrays["cleft"], arrays["cright"], arrays["split_index"], features):
        raise _Damaged(problem)
    inner = np.flatnonzero(arrays["cleft"] != LEAF)
    numeric = inner[arrays["node_type"][inner] == _NUMERICAL]
    if not np.isin(arrays["node_type"][inner], (_NUMERICAL, _CATEGORICAL)).all():
        raise _Damaged("it has nodes of a kind that is not known")
    if not np.isin(arrays["cmp"][numeric], list(_COMPARISONS)).all():
        raise _Damaged("it has a comparison that is not known")
    _check_ranges("leaf_vector", arrays, nodes)
    if not np.isin(arrays["leaf_vector_end"] - arrays["leaf_vector_begin"], (0, leaf_size)).all():
        raise _Damaged(f"it has leaves of another size than the {leaf_size} of its header")
    if len(numeric) < len(inner):
        _check_ranges("category_list", arrays, nodes)
        if len(arrays["category_list_right_child"]) != nodes:
            raise _Damaged("its category_list_right_child has another length than its nodes")


def _check_ranges(name: str, arrays: dict[str, Array], nodes: int) -> None:
    """Check that each node has a part of a common array."""
    begin, end, length = arrays[f"{name}_begin"], arrays[f"{name}_end"], len(arrays[name])
    if len(begin) != nodes or len(end) != nodes or (end > length).any() or (begin > end).any():
        raise _Damaged(f"its {name} has wrong places")
