"""Texts of LightGBM that Treelite reads and computes wrong: cut ones, and those with `zero_as_missing=true`.

Treelite takes a cut text for a model with fewer trees. And it reads a split that takes 0 for a missing value as one
that never sees a missing value. So such splits are rewritten to the kind that takes NaN for missing, and zeros in these
features become NaN. LightGBM: src/boosting/gbdt_model_text.cpp, and NumericalDecision in include/LightGBM/tree.h.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_serve.errors import InvalidArgument, Unsupported
from edge_serve.messages.tensors import Array

#: LightGBM's kZeroThreshold
_ZERO = 1e-35
#: decision_type: bit 0 = categorical, bit 1 = default left, bits 2 and 3 = what is missing: nothing, zero, or NaN
_CATEGORICAL, _KIND, _IS_ZERO, _IS_NAN = 1, 0b1100, 0b0100, 0b1000
_TREE = re.compile(rb"^Tree=\d+$", re.MULTILINE)
_LINE = re.compile(rb"^(split_feature|decision_type)=(-?\d{1,9}(?: -?\d{1,9})*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A model's text with other splits, and the features in which 0 is a missing value."""

    text: bytes
    features: Array


def check_complete(path: Path, text: bytes) -> None:
    """Check that a text has as many trees as its header says, and its last line.

    Raises:
        InvalidArgument: it is cut.
    """
    sizes = re.search(rb"^tree_sizes=(.*)$", text, re.MULTILINE)
    if sizes is None:  # LightGBM 2.0 and older
        return
    wanted, found = len(sizes[1].split()), len(_TREE.findall(text))
    if found != wanted or b"\nend of trees" not in text:
        raise InvalidArgument(
            f"'{path}' is damaged: {found} of {wanted} trees, or without its end; copy the file again"
        )


def without_zeros(path: Path, text: bytes) -> Rewritten | None:
    """Return a model of LightGBM without splits that take 0 for missing; None if it has none.

    Raises:
        Unsupported: a feature has splits of both kinds.
    """
    lines = [(match[1], np.array(match[2].split(), np.int64)) for match in _LINE.finditer(text)]
    features = [values for name, values in lines if name == b"split_feature"]
    decisions = [values for name, values in lines if name == b"decision_type"]
    if [len(one) for one in features] != [len(one) for one in decisions] or not features:
        return None  # damaged, or not a model with splits: the library says so
    feature, decision = np.concatenate(features), np.concatenate(decisions)
    numeric = decision & _CATEGORICAL == 0
    is_zero = numeric & (decision & _KIND == _IS_ZERO)
    if not is_zero.any():
        return None
    zeros = np.unique(feature[is_zero])
    if mixed := sorted(set(zeros) & set(feature[numeric & ~is_zero])):
        raise Unsupported(f"'{path}' takes 0 for missing in some splits of feature {mixed[0]} only: train it anew")
    return Rewritten(_LINE.sub(_rewritten, text), zeros)


def as_missing(rows: Array, features: Array) -> Array:
    """Return rows in which the zeros of some features are NaN."""
    rows = rows.copy()
    part = rows[:, features]
    part[np.abs(part) <= _ZERO] = np.nan
    rows[:, features] = part
    return rows


def _rewritten(match: re.Match[bytes]) -> bytes:
    if match[1] != b"decision_type":
        return match[0]
    values = (int(text) for text in match[2].split())
    made = (one ^ _IS_ZERO | _IS_NAN if not one & _CATEGORICAL and one & _KIND == _IS_ZERO else one for one in values)
    return b"decision_type=" + " ".join(map(str, made)).encode()
