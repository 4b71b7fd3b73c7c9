"""Lends a worker process the arenas of other models and clients' shared memory regions, without a copy.

The worker receives the descriptor of such an arena once, and maps it for reading only: a model can neither disturb
another model's tensors nor keep its memory. The arena of a model that writes to its inputs is lent to its own worker in
the same way, for tensors that other requests may read. The place of such a tensor in an EXECUTE frame is its offset
and, above it, the arena's number. Regions travel in the same way and are numbered together with the arenas.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace

from edge_serve.messages.infer import RequestedOutput
from edge_serve.messages.shared_memory import Place
from edge_serve.messages.tensors import Handle, InferTensor, Shared
from edge_serve.workers.memory.arena import Arena
from edge_serve.workers.memory.cuda_regions import CudaRegion
from edge_serve.workers.memory.regions import Region
from edge_serve.workers.wire.frames import FrameKind, frame, json_frame
from edge_serve.workers.wire.layout import OFFSET_BITS, OFFSET_MASK

Send = Callable[[bytes, Sequence[int]], None]

#: a place has 64 bits
_HIGHEST_NUMBER = (1 << (64 - OFFSET_BITS)) - 1


class ArenaExports:
    """The front end's side: the arenas that one worker process knows."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._next_number = 1
        self._known: dict[Arena, int] = {}
        #: region -> its number; the worker is notified when the last reference to a region is gone
        self._regions: weakref.WeakKeyDictionary[Region | CudaRegion, int] = weakref.WeakKeyDictionary()
        self._endings: dict[int, weakref.finalize[..., Region | CudaRegion]] = {}

    def export(self, inputs: Sequence[InferTensor], own: Arena | None) -> list[InferTensor]:
        """Return the inputs of a request; handles have become places that the worker knows.

        Args:
            own: the arena that the worker has writable; None = the model may write to its inputs, so they are lent for
                reading only wherever they lie.
        """
        exported = [self._place(tensor, own) if type(tensor) is Handle else tensor for tensor in inputs]
        return [self._shared(tensor) if type(tensor) is Shared else tensor for tensor in exported]

    def export_places(self, outputs: list[RequestedOutput]) -> list[RequestedOutput]:
        """Return the outputs that a request asks for; those for a client's memory have places that the worker knows."""
        return [output if output.place is None else self._output(output, output.place) for output in outputs]

    def _output(self, output: RequestedOutput, place: Place) -> RequestedOutput:
        return replace(output, place=replace(place, offset=self._in_region(place.region, place.offset)))

    def _shared(self, tensor: Shared) -> InferTensor:
        place = self._in_region(tensor.region, tensor.place)
        return InferTensor(tensor.name, tensor.datatype, tensor.shape, tensor.data, place)

    def _in_region(self, region: object, offset: int) -> int:
        """Return the place of an offset in a region, and send the region if the worker does not know it."""
        assert isinstance(region, Region | CudaRegion), "a region by its name, expected a Region"
        assert offset <= OFFSET_MASK, "a place in another region"
        number = self._regions.get(region)
        if number is None:
            number = self._take_number()
            self._regions[region] = number
            ending = self._endings[number] = weakref.finalize(region, self._remove_region, number)
            ending.atexit = False
            self._send(json_frame(region.kind, number, region.value()), region.fds)
        return number << OFFSET_BITS | offset

    def _take_number(self) -> int:
        """Return a number that names neither an arena nor a region now. A number is used again as late as possible."""
        while True:
            number = self._next_number
            self._next_number = number % _HIGHEST_NUMBER + 1
            if number not in self._endings and number not in self._known.values():
                return number

    def _remove_region(self, number: int) -> None:
        del self._endings[number]
        self._send(frame(FrameKind.ARENA_GONE, number), ())

    def _place(self, tensor: Handle, own: Arena | None) -> InferTensor:
        arena, place = tensor.arena, tensor.place
        if arena is not own:
            number = self._number(arena) if isinstance(arena, Arena) else 0
            if not number:
                return tensor
            place |= number << OFFSET_BITS
        return InferTensor(tensor.name, tensor.datatype, tensor.shape, tensor.data, place)

    def _number(self, arena: Arena) -> int:
        """Return the arena's number for the worker, and send the arena first; 0 = it cannot be exported."""
        known = self._known.get(arena)
        if known is not None:
            return known
        try:
            fd = os.open(f"/proc/self/fd/{arena.fd}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # closed, or no descriptor is left
            return 0
        number = self._take_number()
        self._known[arena] = number
        arena.on_close.append(self._remove)
        try:
            self._send(frame(FrameKind.ARENA, number), (fd,))
        finally:
            os.close(fd)
        return number

    def _remove(self, arena: Arena) -> None:
        """Let the worker unmap an arena whose tensors are not read any more."""
        self._send(frame(FrameKind.ARENA_GONE, self._known.pop(arena)), ())

    def close(self) -> None:
        """Remove the arenas and regions of a dead worker."""
        for arena in self._known:
            arena.on_close.remove(self._remove)
        self._known.clear()
        for ending in self._endings.values():
            ending.detach()
        self._endings.clear()
        self._send = _discard  # a reference cycle would keep the process's objects until a garbage collection


def _discard(data: bytes, fds: Sequence[int]) -> None:
    """Do nothing: `ArenaExports` sends nothing once its worker is dead."""
