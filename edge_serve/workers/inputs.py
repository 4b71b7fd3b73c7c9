"""Inputs that lie in ordinary memory: how much that is, and copies of them where the worker sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from edge_serve.errors import Unavailable
from edge_serve.messages.infer import InferRequest
from edge_serve.tensors import Tensor
from edge_serve.workers.arena import Arena, Slot
from edge_serve.workers.layout import INLINE, padded
from edge_serve.workers.link import Pending


def loose_bytes(inputs: list[Tensor]) -> int:
    """Bytes of the inputs that are in no place that a frame can name."""
    total = 0
    for tensor in inputs:
        if tensor.offset < 0:
            total += len(tensor.data)
    return total


def moved(requests: Sequence[InferRequest], pending: Pending, arena: Arena) -> list[InferRequest]:
    """Large inputs in ordinary memory (JSON, chunked bodies) go into a slot; one that finds no room is refused."""
    sent: list[InferRequest] = []
    pending.copies, pending.refused, pending.sent = [], {}, []
    for i, request in enumerate(requests):
        size = sum(padded(len(tensor.data)) for tensor in request.inputs if tensor.offset < 0)
        if size > INLINE:
            try:
                slot = arena.allocate(size)
            except Unavailable as full:
                pending.refused[i] = full
                continue
            pending.copies.append(slot)
            request = replace(request, inputs=_copied(request.inputs, slot))
        sent.append(request)
        pending.sent.append(i)
    return sent


def _copied(inputs: list[Tensor], slot: Slot) -> list[Tensor]:
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
