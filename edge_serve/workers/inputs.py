"""Inputs that lie in ordinary memory: how much that is, and copies of them where the worker sees them."""

from __future__ import annotations

from typing import Any

from edge_serve.tensors import Tensor
from edge_serve.workers.arena import Slot
from edge_serve.workers.layout import padded


def loose_bytes(inputs: list[Tensor]) -> int:
    """Bytes of the inputs that are in no place that a frame can name."""
    total = 0
    for tensor in inputs:
        if tensor.offset < 0:
            total += len(tensor.data)
    return total


def copied(inputs: list[Tensor], slot: Slot) -> list[Tensor]:
    """Copies whose data lies in `slot`; those that are in the arena already stay."""
    copies: list[Tensor] = []
    position = 0
    view: Any = slot.view
    for tensor in inputs:
        if tensor.offset < 0:
            size = len(tensor.data)
            view[position : position + size] = tensor.data
            here = view[position : position + size]
            copies.append(Tensor(tensor.name, tensor.datatype, tensor.shape, here, slot.offset + position))
            position += padded(size)
        else:
            copies.append(tensor)
    return copies
