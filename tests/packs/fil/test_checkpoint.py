"""Checkpoints of Treelite that contradict themselves, written here byte by byte. Needs neither Treelite nor a model."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from edge_serve.errors import InvalidArgument
from packs.fil.checkpoint import check_checkpoint

#: of a tree with one split and two leaves, in the order of the file: type, and values
TREE: dict[str, tuple[str, Sequence[float]]] = {
    "node_type": ("i1", (1, 0, 0)),
    "cleft": ("<i4", (1, -1, -1)),
    "cright": ("<i4", (2, -1, -1)),
    "split_index": ("<i4", (0, -1, -1)),
    "default_left": ("u1", (0, 0, 0)),
    "leaf_value": ("<f4", (0, 1, 2)),
    "threshold": ("<f4", (0.5, 0, 0)),
    "cmp": ("i1", (2, 0, 0)),
    "category_list_right_child": ("u1", (0, 0, 0)),
    "leaf_vector": ("<f4", ()),
    "leaf_vector_begin": ("<u8", (0, 0, 0)),
    "leaf_vector_end": ("<u8", (0, 0, 0)),
    "category_list": ("<u4", ()),
    "category_list_begin": ("<u8", (0, 0, 0)),
    "category_list_end": ("<u8", (0, 0, 0)),
    "data_count": ("<u8", ()),
    "data_count_present": ("u1", ()),
    "sum_hess": ("<f8", ()),
    "sum_hess_present": ("u1", ()),
    "gain": ("<f8", ()),
    "gain_present": ("u1", ()),
}


def array(kind: str, values: Sequence[float]) -> bytes:
    return struct.pack("<Q", len(values)) + np.array(values, kind).tobytes()


def checkpoint(changed: Mapping[str, Sequence[float]], classes: int = 1) -> bytes:
    """Return a file with one tree whose arrays have these values in place of their own."""
    head = struct.pack("<iiiBBQiBB", 4, 7, 0, 2, 2, 1, 1, 2 if classes > 1 else 1, 0)
    header = struct.pack("<i", 1) + array("<i4", [classes]) + array("<i4", [1, classes])
    header += array("<i4", [0]) + array("<i4", [-1 if classes > 1 else 0])
    header += array("u1", list(b"softmax")) + struct.pack("<ff", 1, 1)
    header += array("<f8", [0] * classes) + array("u1", list(b"{}"))
    tree = b"".join(array(kind, changed.get(name, values)) for name, (kind, values) in TREE.items())
    return head + header + struct.pack("<i", 0) + struct.pack("<iB", 3, 0) + tree + struct.pack("<ii", 0, 0)


def vectors(size: int) -> dict[str, Sequence[float]]:
    """Return leaves with a vector of this size each."""
    return {
        "leaf_vector": [1] * 2 * size,
        "leaf_vector_begin": [0, 0, size],
        "leaf_vector_end": [0, size, 2 * size],
    }


def check(folder: Path, content: bytes) -> None:
    path = folder / "checkpoint.tl"
    path.write_bytes(content)
    check_checkpoint(path)


def test_whole_checkpoints(tmp_path: Path) -> None:
    check(tmp_path, checkpoint({}))
    check(tmp_path, checkpoint(vectors(3), classes=3))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (checkpoint({"leaf_vector_begin": (), "leaf_vector_end": ()}), "its leaf_vector has wrong places"),
        (checkpoint(vectors(1), classes=3), "it has leaves of another size than the 3 of its header"),
        (checkpoint(vectors(3)), "it has leaves of another size than the 1 of its header"),
        (
            checkpoint({"node_type": (2, 0, 0), "category_list_begin": (), "category_list_end": ()}),
            "its category_list has wrong places",
        ),
        (
            checkpoint({"node_type": (2, 0, 0), "category_list_right_child": ()}),
            "its category_list_right_child has another length than its nodes",
        ),
    ],
)
def test_contradictions_that_the_library_does_not_notice(tmp_path: Path, content: bytes, text: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(f"is damaged: tree 0: {text}; copy the file again")):
        check(tmp_path, content)
