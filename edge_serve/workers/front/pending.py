"""A batch in flight, and copies of its inputs where the worker sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from edge_serve.aio.bulk_copy import copy, work
from edge_serve.aio.pausable_deadline import PausableDeadline
from edge_serve.errors import EdgeServeError, Unavailable
from edge_serve.messages.infer import InferRequest
from edge_serve.messages.tensors import INLINE_BYTES, Buffer, InferTensor
from edge_serve.records import slotted
from edge_serve.workers.memory.arena import Arena, Slot
from edge_serve.workers.wire.layout import padded

#: targets in slots, and what is to be copied there
Moves = list[tuple[memoryview, Buffer]]


@slotted
class PendingBatch:
    """A batch in flight.

    Attributes:
        sent_ns: when it was sent.
        sent: position of each request of the frame in the batch; None when all were sent.
        copies: slots of inputs that came in ordinary memory, by the request's position in the batch.
        each: its requests are executed one after the other.
        gone: requests whose clients have gone.
        tokens: of the slots for outputs that the worker has asked for.
        preparing: its memory is being prepared in a thread; the worker does not know the batch yet.
    """

    count: int
    rows: int
    slot: Slot | None
    sent_ns: int
    sent: list[int] | None = None
    refused: dict[int, EdgeServeError] | None = None
    copies: dict[int, Slot] | None = None
    timer: PausableDeadline | None = None
    each: bool = False
    gone: set[int] | None = None
    tokens: tuple[int, ...] = ()
    preparing: bool = False

    def cancel(self, index: int) -> bool:
        """Note that the client of a request has disconnected. Return whether it was the last client of the batch."""
        self.gone = {index} if self.gone is None else self.gone | {index}
        return len(self.gone) == self.count

    def release(self) -> None:
        """Release the memory and the timer of the batch, except its output slot."""
        if self.timer is not None:
            self.timer.cancel()
        if self.copies is not None:
            for slot in self.copies.values():
                slot.release()


def move_inputs(
    requests: Sequence[InferRequest], pending: PendingBatch, arena: Arena
) -> tuple[list[InferRequest], Moves]:
    """Find slots for large inputs in ordinary memory (JSON, chunked bodies); one that finds no room is refused.

    Returns:
        The requests as they will be, and what has to be copied before they are, once the slots are ready.
    """
    sent: list[InferRequest] = []
    moves: Moves = []
    pending.copies, pending.refused, pending.sent = {}, {}, []
    for i, request in enumerate(requests):
        size = sum(padded(len(tensor.data)) for tensor in request.inputs if tensor.offset == -1)
        if size > INLINE_BYTES:
            try:
                slot = arena.allocate(size)
            except Unavailable as full:
                pending.refused[i] = full
                continue
            pending.copies[i] = slot
            request = replace(request, inputs=_place_inputs(request.inputs, slot, moves))
        sent.append(request)
        pending.sent.append(i)
    return sent, moves


def _place_inputs(inputs: list[InferTensor], slot: Slot, moves: Moves) -> list[InferTensor]:
    """Return the inputs with places in `slot`, except those that lie in the arena already."""
    placed: list[InferTensor] = []
    position = 0
    view = slot.view
    for tensor in inputs:
        if tensor.offset == -1:
            size = len(tensor.data)
            here = view[position : position + size]
            moves.append((here, tensor.data))
            placed.append(InferTensor(tensor.name, tensor.datatype, tensor.shape, here, slot.offset + position))
            position += padded(size)
        else:
            placed.append(tensor)
    return placed


def prepare(pending: PendingBatch, moves: Moves, done: Callable[[Exception | None], None]) -> None:
    """Wait until the slots of a batch are ready, then copy; call `done`, at once if there is little to do.

    A slot for outputs that finds no memory is released: the worker asks again once it has outputs.
    """
    copies = (pending.copies or {}).values()
    slots = [*copies, *([pending.slot] if pending.slot is not None else [])]
    waiting = len(slots)

    def ready() -> None:
        nonlocal waiting
        waiting -= 1
        if waiting:
            return
        if pending.slot is not None and pending.slot.error is not None:
            pending.slot.release()
            pending.slot = None
        error = next((slot.error for slot in copies if slot.error is not None), None)
        if error is not None:
            done(error)
        else:
            work(sum(len(source) for _, source in moves), partial(copy, moves), done)

    for slot in slots:
        slot.when_ready(ready)


def release_all(pending: PendingBatch) -> None:
    """Release what a batch held, its slot for outputs too."""
    pending.release()
    if pending.slot is not None:
        pending.slot.release()
