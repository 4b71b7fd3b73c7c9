"""Tensors in other models' arenas, which the steps of an ensemble hand to each other without a copy in the front end.

A worker is given the descriptor of such an arena once, for reading only: a model can neither disturb another one's
tensors nor keep its memory. A lent tensor's place in an EXECUTE frame is its offset and, above it, the arena's number.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from edge_serve.errors import Internal
from edge_serve.tensors import Handle, Tensor
from edge_serve.workers.arena import Arena
from edge_serve.workers.frames import Kind, frame

#: bits of a place that are an offset; no arena is larger
OFFSET_BITS = 44
#: how long a worker waits for an arena that a batch names: its descriptor was sent before, on another channel
_WAIT_SECONDS = 10.0

Send = Callable[[bytes, Sequence[int]], None]


class Lending:
    """The front end's side: the arenas that one worker process knows.

    Attributes:
        lent: how many tensors have travelled so.
    """

    def __init__(self, send: Send) -> None:
        self.lent = 0
        self._send = send
        self._next_number = 1
        #: arena -> its number, and the descriptor that was sent
        self._known: dict[Arena, tuple[int, int]] = {}

    def lend(self, inputs: Sequence[Tensor], own: Arena) -> list[Tensor]:
        """The inputs of a request to a model with the arena `own`; handles have become places that the worker knows."""
        return [self._placed(tensor, own) if type(tensor) is Handle else tensor for tensor in inputs]

    def _placed(self, tensor: Handle, own: Arena) -> Tensor:
        arena, place = tensor.arena, tensor.place
        if arena is not own:
            number = self._number(arena) if isinstance(arena, Arena) else 0
            if not number:
                return tensor
            place |= number << OFFSET_BITS
        self.lent += 1
        return Tensor(tensor.name, tensor.datatype, tensor.shape, tensor.data, place)

    def _number(self, arena: Arena) -> int:
        """The arena's number for the worker; 0 = it cannot be lent."""
        known = self._known.get(arena)
        if known is not None:
            return known[0]
        try:
            fd = os.open(f"/proc/self/fd/{arena.fd}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # closed, or no descriptor is left
            return 0
        number, self._next_number = self._next_number, self._next_number + 1
        self._known[arena] = number, fd
        arena.on_close.append(self._forget)
        self._send(frame(Kind.ARENA, number), (fd,))
        return number

    def _forget(self, arena: Arena) -> None:
        """Nothing in it is read any more: the worker lets go of its memory too."""
        number, fd = self._known.pop(arena)
        self._send(frame(Kind.ARENA_GONE, number), ())
        os.close(fd)

    def close(self) -> None:
        """The worker is dead."""
        for arena, (_, fd) in self._known.items():
            arena.on_close.remove(self._forget)
            os.close(fd)
        self._known.clear()


class Borrowed:
    """The worker's side. Frames come on the control thread, any other asks for the memory."""

    def __init__(self) -> None:
        self._views: dict[int, memoryview] = {}
        self._changed = threading.Condition()

    def add(self, number: int, fd: int) -> None:
        """ARENA arrived, with its descriptor."""
        try:
            view = memoryview(mmap.mmap(fd, os.fstat(fd).st_size, access=mmap.ACCESS_READ))
        finally:
            os.close(fd)
        with self._changed:
            self._views[number] = view
            self._changed.notify_all()

    def remove(self, number: int) -> None:
        """ARENA_GONE arrived. The mapping goes when the last view of it does."""
        with suppress(KeyError):
            del self._views[number]

    def at(self, place: int, size: int) -> memoryview:
        """The bytes of a lent tensor, for reading.

        Raises:
            Internal: its arena has not come.
        """
        number, offset = place >> OFFSET_BITS, place & ((1 << OFFSET_BITS) - 1)
        view = self._views.get(number)
        if view is None:
            with self._changed:
                self._changed.wait_for(lambda: number in self._views, _WAIT_SECONDS)
            view = self._views.get(number)
            if view is None:
                raise Internal(f"the memory of an input did not arrive within {_WAIT_SECONDS:g} s")
        return view[offset : offset + size]
