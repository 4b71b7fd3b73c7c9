"""The memory for the large outputs of one frame: a slot of the model's arena, from whose start their places count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from edge_serve.backends.base import Reply
from edge_serve.backends.cuda.device_data import address_of, is_on_device
from edge_serve.errors import Unavailable
from edge_serve.messages.tensors import INLINE_BYTES
from edge_serve.workers.wire.layout import padded

#: bytes that are copied while this thread holds the interpreter's lock: about 0.3 ms. NumPy releases it
_MOST_LOCKED = 1 << 20


class OutputRoom:
    """The slot for large outputs of one frame: the one that came with the batch, or one that the worker asks for.
    Implements `OutputMemory`.

    Args:
        batch_id: of the batch; 0 = of a decoupled model's response.
        need: asks the front end for a larger slot: batch id, bytes, and whether this one is given back unused; returns
            token, offset, and capacity.

    Attributes:
        offset, capacity: the part of the slot that is free.
    """

    __slots__ = ("_allocated", "_arena", "_batch_id", "_has_copies", "_need", "_start", "capacity", "offset", "token")

    inline = INLINE_BYTES

    def __init__(
        self,
        arena: memoryview,
        offset: int,
        capacity: int,
        need: Callable[[int, int, bool], tuple[int, int, int]],
        batch_id: int = 0,
    ) -> None:
        self._arena = arena
        self._need = need
        self._batch_id = batch_id
        self.token = 0
        self._start = offset
        self.offset = offset
        self.capacity = capacity
        #: `put` has copied data into this slot
        self._has_copies = False
        #: addresses of the part of this slot that `allocate` has returned
        self._allocated: range | None = None

    def allocate(self, nbytes: int) -> memoryview:
        """See `OutputMemory`."""
        if nbytes > self.capacity:
            self._replace(nbytes)
        view = self._arena[self.offset : self.offset + nbytes]
        start = address_of(view) if nbytes else 0
        first = self._allocated.start if self._allocated else start
        self._advance(nbytes)
        self._allocated = range(first, start + nbytes)
        return view

    def reserve(self, replies: Sequence[Reply], wanted: Sequence[Sequence[str] | None]) -> None:
        """Make sure that the large outputs fit.

        Raises:
            Unavailable: the front end has no memory for them.
        """
        if large_bytes(replies, wanted, self) > self.capacity:
            self._replace(large_bytes(replies, wanted))

    def put(self, data: Any) -> int:
        """Copy `data` in, unless it lies there. Return its place in the slot."""
        if self.has(data):
            return address_of(data) - address_of(self._arena) - self._start
        start = self.offset
        self._has_copies = True
        size = len(data)
        if is_on_device(data):
            data.copy_into(self._arena[start : start + size])
        else:
            _copy(self._arena[start : start + size], data)
        self._advance(size)
        return start - self._start

    def has(self, data: Any) -> bool:
        """Return whether `data` lies in memory of `allocate`."""
        allocated = self._allocated
        return allocated is not None and address_of(data) in allocated

    def _replace(self, nbytes: int) -> None:
        """Ask for a slot with so much room. One that nothing lies in is given back first: both may not fit. What `put`
        has copied keeps its place."""
        start, used = self._start, self.offset - self._start if self._has_copies else 0
        unused = not used and self._allocated is None
        if unused:
            self.capacity = 0
        self.token, self._start, capacity = self._ask(used, nbytes, unused)
        self.offset, self.capacity = self._start + used, capacity - used
        if used:
            _copy(self._arena[self._start : self.offset], self._arena[start : start + used])
        self._allocated = None

    def _ask(self, used: int, nbytes: int, unused: bool) -> tuple[int, int, int]:
        """Ask for twice the room of the data that move, so that they seldom move again; without it, for what is needed.

        Raises:
            Unavailable: the front end has no memory for `nbytes` more.
        """
        if used > nbytes:
            with suppress(Unavailable):
                return self._need(self._batch_id, 2 * used, unused)
        return self._need(self._batch_id, used + nbytes, unused)

    def _advance(self, nbytes: int) -> None:
        step = padded(nbytes)
        self.offset += step
        self.capacity -= step


def _copy(target: memoryview, data: Any) -> None:
    if len(target) > _MOST_LOCKED:
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(data, np.uint8))
    else:
        target[:] = data


def large_bytes(
    replies: Sequence[Reply], wanted: Sequence[Sequence[str] | None], room: OutputRoom | None = None
) -> int:
    """Return the room that the replies above INLINE_BYTES need in a slot, without the data that lie in `room`."""
    total = 0
    for reply, names in zip(replies, wanted, strict=True):
        outputs = [tensor for tensor in reply.outputs if names is None or tensor.name in names]
        if sum(len(tensor.data) for tensor in outputs) > INLINE_BYTES:
            total += sum(padded(len(tensor.data)) for tensor in outputs if room is None or not room.has(tensor.data))
    return total
