"""A forest in the library's memory: facts about it, and its scores for rows."""

from __future__ import annotations

from ctypes import byref, c_char_p, c_size_t, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from edge_serve.errors import InvalidArgument
from edge_serve.messages.tensors import Array

from .formats import CHECKPOINT, LIGHTGBM, XGBOOST, XGBOOST_JSON, XGBOOST_UBJ, Format, read_rounds, reason
from .library import BufferFrame, Treelite, TreeliteError
from .lightgbm_text import as_missing, check_complete, without_zeros
from .lightgbm_trees import problem_of_text
from .structure import problem_of_tree


class Task(IntEnum):
    """Purpose of a forest, as Treelite numbers it (include/treelite/enum/task_type.h)."""

    BINARY = 0
    REGRESSION = 1
    CLASSES = 2
    RANKING = 3
    ISOLATION = 4


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a model, from its file.

    Attributes:
        classes: scores for each target; 1 for a binary classifier and for a regressor.
        dtype: of the features, as the library computes: float32 or float64. Scores have the same type.
    """

    task: Task
    features: int
    trees: int
    targets: int
    classes: int
    dtype: np.dtype[Any]

    @property
    def is_classifier(self) -> bool:
        """Return whether its scores belong to classes."""
        return self.task in (Task.BINARY, Task.CLASSES)


class Forest:
    """A loaded model. Several threads may predict at once.

    Args:
        zeros: features in which 0 is a missing value; None = in none.

    Attributes:
        note: why its answers may not be as its author expects; "" = they are.
    """

    note = ""

    def __init__(self, library: Treelite, handle: c_void_p, zeros: Array | None = None) -> None:
        self._zeros = zeros
        #: arrays that the model uses in place
        self._lent: list[Array] = []
        self._library = library
        self._handle = handle
        self.facts = self._facts()
        self._type = self.facts.dtype.name.encode()
        self._predict = library.calls["TreeliteGTILPredict"]

    def predict(self, rows: Array, threads: int) -> Array:
        """Return the scores of rows, with the dimensions [row, target, class].

        Args:
            rows: [row, feature], of the model's own type, contiguous and aligned. The library does not check it.
            threads: at most so many compute.

        Raises:
            TreeliteError: the library failed.
        """
        facts = self.facts
        scores = np.empty((len(rows), facts.targets, facts.classes), facts.dtype)
        if not len(rows):
            return scores
        rows = self.as_asked(rows)
        how = self._library.configuration(threads)
        data, out = rows.ctypes.data, scores.ctypes.data
        if self._predict(self._handle, data, self._type, len(rows), out, how) != 0:
            raise TreeliteError(self._library.last_error())
        return scores

    def as_asked(self, rows: Array) -> Array:
        """Return rows as the splits of the model see them."""
        return rows if self._zeros is None else as_missing(rows, self._zeros)

    def field(self, name: str, tree: int = -1) -> Array:
        """Return a field of the model, or of one of its trees. Raises TreeliteError."""
        frame = BufferFrame()
        if tree < 0:
            self._library.call("TreeliteGetHeaderField", self._handle, name.encode(), byref(frame))
        else:
            self._library.call("TreeliteGetTreeField", self._handle, tree, name.encode(), byref(frame))
        return frame.array()

    def note_rounds(self, path: Path) -> None:
        """Note that the file has rounds after the best one: XGBoost's scikit-learn models do not sum them."""
        if (rounds := read_rounds(path)) is None:
            return
        best, trees = rounds
        sums = set(zip(self.field("target_id").tolist(), self.field("class_id").tolist(), strict=False))
        if (best + 1) * len(sums) * trees < self.facts.trees:
            self.note = (
                f"the file has rounds after best_iteration {best}, and all are summed, unlike in "
                "XGBClassifier.predict: save booster[:best_iteration + 1] (docs/trees.md)"
            )

    def start_with_base_scores(self) -> None:
        """Add the base score to the first tree of each target and class, instead of to the sum of the trees.

        XGBoost starts its sums in float32 with it. The other order gives other last bits: up to 2e-6 after 60 trees.
        A forest that has trees for all targets at once stays as it is.
        """
        bases = self.field("base_scores")
        targets, classes = self.field("target_id"), self.field("class_id")
        first = {(int(targets[tree]), int(classes[tree])): tree for tree in reversed(range(self.facts.trees))}
        shape = (self.facts.targets, self.facts.classes)
        if not bases.any() or set(first) != set(np.ndindex(shape)) or bases.size != len(first):
            return
        for place, tree in first.items():
            leaves = self.field("leaf_value", tree)
            base = bases.reshape(shape)[place].astype(leaves.dtype)
            self._set_field("leaf_value", leaves + base, tree)
        self._set_field("base_scores", np.zeros_like(bases))

    def check(self) -> None:
        """Check the trees, because `predict` believes them. Raises TreeliteError."""
        for tree in range(self.facts.trees):
            left, right, split = (self.field(name, tree) for name in ("cleft", "cright", "split_index"))
            if problem := problem_of_tree(left, right, split, self.facts.features):
                raise TreeliteError(f"tree {tree}: {problem}")

    def close(self) -> None:
        """Release the memory. No thread may predict any more."""
        handle, self._handle = self._handle, c_void_p()
        if handle:
            self._library.call("TreeliteFreeModel", handle)
        self._lent.clear()

    def _set_field(self, name: str, values: Array, tree: int = -1) -> None:
        """Replace a field by an array. The library copies nothing, so the array lives as long as the model."""
        self._lent.append(values)
        frame = BufferFrame.of(values)
        if tree < 0:
            self._library.call("TreeliteSetHeaderField", self._handle, name.encode(), frame)
        else:
            self._library.call("TreeliteSetTreeField", self._handle, tree, name.encode(), frame)

    def _facts(self) -> Facts:
        features, trees = c_size_t(), c_size_t()
        self._library.call("TreeliteQueryNumFeature", self._handle, byref(features))
        self._library.call("TreeliteQueryNumTree", self._handle, byref(trees))
        dtype = c_char_p()
        self._library.call("TreeliteGetInputType", self._handle, byref(dtype))
        classes = self.field("num_class")
        return Facts(
            Task(int(self.field("task_type")[0])), features.value, trees.value, int(self.field("num_target")[0]),
            int(classes.max()), np.dtype((dtype.value or b"float32").decode()),
        )  # fmt: skip


def load_forest(library: Treelite, path: Path, form: Format, allow_unknown_field: bool) -> Forest:
    """Load a file.

    Raises:
        InvalidArgument, Unsupported: the library cannot read it.
    """
    arguments: tuple[bytes, ...] = (bytes(path),)
    loader, zeros = form.loader, None
    if form is LIGHTGBM:
        read = path.read_bytes()
        text = read.replace(b"\r\n", b"\n")  # of a copy through Windows
        check_complete(path, text)
        if problem := problem_of_text(text):
            raise InvalidArgument(f"'{path}' is damaged: {problem}; copy the file again, or save it anew")
        if (rewritten := without_zeros(path, text)) is not None:
            text, zeros = rewritten.text, rewritten.features
        if text != read:
            loader, arguments = f"{loader}FromString", (text,)
    if form is not CHECKPOINT:
        arguments += (b'{"allow_unknown_field": %s}' % str(allow_unknown_field).lower().encode(),)
    handle = c_void_p()
    try:
        library.call(loader, *arguments, byref(handle))
        forest = Forest(library, handle, zeros)
        try:
            forest.check()
            if form in (XGBOOST_JSON, XGBOOST_UBJ):
                forest.note_rounds(path)
            if form in (XGBOOST, XGBOOST_JSON, XGBOOST_UBJ):
                forest.start_with_base_scores()
            # its own checks fail here, not later
            forest.predict(np.zeros((1, forest.facts.features), forest.facts.dtype), 1)
        except BaseException:
            forest.close()
            raise
        return forest
    except (TreeliteError, ValueError) as error:
        why = reason(form, str(error), allow_unknown_field)
        raise InvalidArgument(f"'{path}' cannot be read as {form.words}: {why}") from error
