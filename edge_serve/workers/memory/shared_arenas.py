"""Tensors in other models' arenas, which the steps of an ensemble hand to each other without a copy in the front end.

A worker is given the descriptor of such an arena once, for reading only: a model can neither disturb another one's
tensors nor keep its memory. A lent tensor's place in an EXECUTE frame is its offset and, above it, the arena's number.

Clients' shared memory regions travel in the same way and are numbered together with the arenas.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from edge_serve.errors import Internal
from edge_serve.messages.infer import RequestedOutput
from edge_serve.messages.shared_memory import Place
from edge_serve.messages.tensors import Handle, InferTensor, Shared
from edge_serve.workers.memory.arena import Arena
from edge_serve.workers.memory.client_region import ClientRegion
from edge_serve.workers.memory.regions import Region
from edge_serve.workers.wire.frames import FrameKind, frame, json_frame

#: bits of a place that are an offset; no arena is larger
OFFSET_BITS = 44
OFFSET_MASK = (1 << OFFSET_BITS) - 1
#: how long a worker waits for an arena that a batch names: its descriptor was sent before, on another channel
_WAIT_SECONDS = 10.0

Send = Callable[[bytes, Sequence[int]], None]


class ArenaExports:
    """The front end's side: the arenas that one worker process knows.

    Attributes:
        lent: how many tensors have travelled so.
    """

    def __init__(self, send: Send) -> None:
        self.lent = 0
        self._send = send
        self._next_number = 1
        self._known: dict[Arena, int] = {}
        #: region -> its number; the worker is told when nothing refers to a region any more, so no request waits there
        self._regions: weakref.WeakKeyDictionary[Region, int] = weakref.WeakKeyDictionary()
        self._endings: dict[int, weakref.finalize[..., Region]] = {}

    def lend(self, inputs: Sequence[InferTensor], own: Arena) -> list[InferTensor]:
        """The inputs of a request to a model with the arena `own`; handles have become places that the worker knows."""
        lent = [self._placed(tensor, own) if type(tensor) is Handle else tensor for tensor in inputs]
        return [self._shared(tensor) if type(tensor) is Shared else tensor for tensor in lent]

    def lend_places(self, outputs: list[RequestedOutput]) -> list[RequestedOutput]:
        """The outputs that a request asks for; those that go to a client's memory have places that the worker knows."""
        return [output if output.place is None else self._output(output, output.place) for output in outputs]

    def _output(self, output: RequestedOutput, place: Place) -> RequestedOutput:
        return replace(output, place=replace(place, offset=self._in_region(place.region, place.offset)))

    def _shared(self, tensor: Shared) -> InferTensor:
        place = self._in_region(tensor.region, tensor.place)
        return InferTensor(tensor.name, tensor.datatype, tensor.shape, tensor.data, place)

    def _in_region(self, region: object, offset: int) -> int:
        """The place of an offset in a region's file."""
        assert isinstance(region, Region), "a name that nobody has looked up"
        number = self._regions.get(region)
        if number is None:
            number, self._next_number = self._next_number, self._next_number + 1
            self._regions[region] = number
            ending = self._endings[number] = weakref.finalize(region, self._end_region, number)
            ending.atexit = False
            self._send(json_frame(FrameKind.REGION, number, region.value()), (region.fd,))
        return number << OFFSET_BITS | offset

    def _end_region(self, number: int) -> None:
        del self._endings[number]
        self._send(frame(FrameKind.ARENA_GONE, number), ())

    def _placed(self, tensor: Handle, own: Arena) -> InferTensor:
        arena, place = tensor.arena, tensor.place
        if arena is not own:
            number = self._number(arena) if isinstance(arena, Arena) else 0
            if not number:
                return tensor
            place |= number << OFFSET_BITS
        self.lent += 1
        return InferTensor(tensor.name, tensor.datatype, tensor.shape, tensor.data, place)

    def _number(self, arena: Arena) -> int:
        """The arena's number for the worker; 0 = it cannot be lent."""
        known = self._known.get(arena)
        if known is not None:
            return known
        try:
            fd = os.open(f"/proc/self/fd/{arena.fd}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # closed, or no descriptor is left
            return 0
        number, self._next_number = self._next_number, self._next_number + 1
        self._known[arena] = number
        arena.on_close.append(self._forget)
        try:
            self._send(frame(FrameKind.ARENA, number), (fd,))
        finally:
            os.close(fd)
        return number

    def _forget(self, arena: Arena) -> None:
        """Nothing in it is read any more: the worker lets go of its memory too."""
        self._send(frame(FrameKind.ARENA_GONE, self._known.pop(arena)), ())

    def close(self) -> None:
        """The worker is dead."""
        for arena in self._known:
            arena.on_close.remove(self._forget)
        self._known.clear()
        for ending in self._endings.values():
            ending.detach()
        self._endings.clear()
        self._send = _discard  # a reference cycle would keep the process's objects until a garbage collection


def _discard(data: bytes, fds: Sequence[int]) -> None:
    """For `ArenaExports`, once its worker is dead."""


class ArenaImports:
    """The worker's side. Frames come on the control thread, any other asks for the memory."""

    def __init__(self) -> None:
        self._views: dict[int, memoryview] = {}
        self._regions: dict[int, ClientRegion] = {}
        #: arenas that cannot be had, and why; or that have not come in time
        self._failed: dict[int, str] = {}
        self._changed = threading.Condition()

    def add(self, number: int, fd: int) -> None:
        """ARENA arrived, with its descriptor. One that cannot be mapped costs the requests that lie in it."""
        view, failed = None, ""
        try:
            view = memoryview(mmap.mmap(fd, os.fstat(fd).st_size, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            failed = f"cannot be mapped: {error}"
        finally:
            os.close(fd)
        with self._changed:
            if view is not None:
                self._views[number] = view
                self._failed.pop(number, None)
            else:
                self._failed[number] = failed
            self._changed.notify_all()

    def add_region(self, number: int, value: dict[str, Any], fd: int) -> None:
        """REGION arrived, with its descriptor."""
        with self._changed:
            self._regions[number] = ClientRegion(value["name"], value["offset"], value["byte_size"], fd)
            self._changed.notify_all()

    def remove(self, number: int) -> None:
        """ARENA_GONE arrived. The mapping goes when the last view of it does."""
        with suppress(KeyError):
            del self._views[number]
        self._regions.pop(number, None)
        self._failed.pop(number, None)

    def region(self, place: int) -> ClientRegion | None:
        """The client's memory that a place is in; None when it is in an arena."""
        number = place >> OFFSET_BITS
        found = self._regions.get(number)
        if found is None and number and number not in self._views:
            with self._changed:
                self._changed.wait_for(
                    lambda: number in self._regions or number in self._views or number in self._failed, _WAIT_SECONDS
                )
            found = self._regions.get(number)
        return found

    def at(self, place: int, size: int) -> memoryview:
        """The bytes of a lent tensor, for reading.

        Raises:
            Internal: its arena has not come, or cannot be mapped.
        """
        number, offset = place >> OFFSET_BITS, place & OFFSET_MASK
        view = self._views.get(number)
        if view is None:
            with self._changed:
                self._changed.wait_for(lambda: number in self._views or number in self._failed, _WAIT_SECONDS)
            view = self._views.get(number)
            if view is None:  # the next request need not wait as long
                reason = self._failed.setdefault(number, f"did not arrive within {_WAIT_SECONDS:g} s")
                raise Internal(f"the memory of an input {reason}")
        return view[offset : offset + size]
