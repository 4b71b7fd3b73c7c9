"""The shape of a tree: no child outside of it, no circle, and no feature that is not there. Without the library."""

from __future__ import annotations

import numpy as np

from edge_serve.messages.tensors import Array

#: the left child of a leaf
LEAF = -1


def problem_of_tree(left: Array, right: Array, split: Array, features: int) -> str:
    """Return what would make the library read outside of its memory, or go on for ever; "" = nothing.

    Args:
        left, right, split: children, and the feature that is asked for, of each node.
    """
    inner = np.flatnonzero(left != LEAF)
    if not len(inner):
        return ""
    children = np.concatenate([left[inner], right[inner]])
    # with one parent for each node and none for the root, no path comes back to a node
    if children.min() < 1 or children.max() >= len(left) or np.bincount(children).max() > 1:
        return "its nodes make no tree"
    if split[inner].min() < 0 or split[inner].max() >= features:
        return f"it asks for another feature than the {features} that there are"
    return ""
