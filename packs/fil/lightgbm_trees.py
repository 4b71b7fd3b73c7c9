"""Checks the trees in a text of LightGBM before Treelite reads them, which believes them. Without the library."""

from __future__ import annotations

import re

import numpy as np

from edge_serve.messages.tensors import Array

_FIELD = re.compile(rb"^(\w+)=(.*)$", re.MULTILINE)
#: fields of a tree with a number for each split
_OF_SPLITS = (b"split_feature", b"threshold", b"decision_type", b"left_child", b"right_child")
_CATEGORICAL = 1
#: a line that a model without an objective lacks
_NO_OBJECTIVE = re.compile(rb"^objective=?[ \t\r]*$", re.MULTILINE)


def problem_of_text(text: bytes) -> str:
    """Return what is wrong with the trees of a text; "" = nothing, or what Treelite itself notices."""
    head, *trees = re.split(rb"^Tree=\d+$", text, flags=re.MULTILINE)
    if _NO_OBJECTIVE.search(head):
        return "its objective has no name"
    try:
        features = int(dict(_FIELD.findall(head))[b"max_feature_idx"]) + 1
        for number, tree in enumerate(trees):
            if problem := _problem_of_tree(dict(_FIELD.findall(tree.partition(b"\nend of trees")[0])), features):
                return f"tree {number}: {problem}"
    except (KeyError, ValueError) as error:
        return f"it lacks a field, or has another value than a number: {error}"
    return ""


def _problem_of_tree(fields: dict[bytes, bytes], features: int) -> str:
    leaves = int(fields[b"num_leaves"])
    if leaves < 1 or len(fields[b"leaf_value"].split()) != leaves:
        return "it has another number of leaves than it says"
    if leaves == 1:
        return ""
    split, threshold, decision, left, right = (np.array(fields[name].split(), np.float64) for name in _OF_SPLITS)
    splits = leaves - 1
    if any(len(one) != splits for one in (split, threshold, decision, left, right)):
        return "it has another number of splits than it says"
    # children that are leaves are negative; each split but the first has one parent, and each leaf has one
    if sorted(np.concatenate([left, right])) != [*range(-leaves, 0), *range(1, splits)]:
        return "its splits make no tree"
    if split.min() < 0 or split.max() >= features:
        return f"it asks for another feature than the {features} that there are"
    return _problem_of_categories(fields, threshold[decision.astype(int) & _CATEGORICAL != 0])


def _problem_of_categories(fields: dict[bytes, bytes], used: Array) -> str:
    """Say whether the sets of categories that splits use are there."""
    count = int(fields[b"num_cat"])
    if not len(used) and not count:
        return ""
    places = [int(place) for place in fields[b"cat_boundaries"].split()]
    words = len(fields[b"cat_threshold"].split())
    if len(places) != count + 1 or places[0] != 0 or places != sorted(places) or places[-1] != words:
        return "its sets of categories have wrong places"
    if len(used) and not (used.min() >= 0 and used.max() < count):  # NaN is neither
        return "a split has a set of categories that is not there"
    return ""
