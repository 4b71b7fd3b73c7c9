"""A model's arena as its inputs see it: a second mapping, of which a model may keep tensors beyond their batch.

Inputs are views without a copy, and other requests get their memory once the batch has ended. If the model still refers
to one of them then, its pages are replaced by private ones at the same address, with the same content. A model that
keeps one input keeps others, so from then on all of its inputs are copies.
"""

from __future__ import annotations

import logging
import mmap
import struct
import weakref

import numpy as np

from edge_serve.messages.tensors import Array

log = logging.getLogger(__name__)

_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
_MAP_FAILED = (1 << 8 * struct.calcsize("P")) - 1


class InputArena:
    """Lends pieces of an arena to the batches of one instance.

    Args:
        view: a mapping of the arena that nothing else uses.
        arena: another mapping of it.
    """

    __slots__ = ("_arena", "_lent", "_start", "_view")

    def __init__(self, view: memoryview, arena: memoryview) -> None:
        self._view: memoryview | None = view
        self._arena = arena
        self._start = _address(view)
        #: of this batch: where each tensor starts, its bytes, and an object that lives as long as any view of it
        self._lent: list[tuple[int, int, weakref.ref[Array]]] = []

    def __getitem__(self, piece: slice) -> memoryview:
        """Return the bytes of a tensor: a view, or a copy once the model has kept one."""
        view = self._view
        start, size = piece.start, piece.stop - piece.start
        if view is None or not size:
            return memoryview(bytearray(self._arena[piece]))
        owner = np.frombuffer(view, np.uint8, size, start)
        self._lent.append((start, size, weakref.ref(owner)))
        return owner.data

    def place_of(self, address: int, size: int) -> int:
        """Return where bytes at an address lie in the arena; -1 = elsewhere."""
        view, where = self._view, address - self._start
        return where if view is not None and where >= 0 and where + size <= len(view) else -1

    def release_batch(self) -> None:
        """Release the tensors of a batch. Those that are still referred to become private: the model keeps them."""
        if not self._lent:
            return
        lent, self._lent = self._lent, []
        kept = [(start, size) for start, size, owner in lent if owner() is not None]
        if kept and (view := self._view) is not None:
            self._view = None
            try:
                for start, size in kept:
                    _make_private(view, start, size)
            except OSError as error:
                log.error("an input that the model keeps may change: %s; copy it in the model", error)


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def _make_private(view: memoryview, start: int, size: int) -> None:
    """Put private memory with the same content in place of the pages of a piece of a mapping, in one step.

    Raises:
        OSError: the system has no memory for it.
    """
    import ctypes  # few models need it

    first, end = start // mmap.PAGESIZE * mmap.PAGESIZE, -(-(start + size) // mmap.PAGESIZE) * mmap.PAGESIZE
    target, length = ctypes.c_void_p(_address(view) + first), ctypes.c_size_t(end - first)
    c = ctypes.CDLL(None, use_errno=True)
    c.mmap.restype = c.mremap.restype = ctypes.c_void_p
    rights, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    # not an object of the module mmap, which would unmap its old address in the end
    made = c.mmap(None, length, rights, kind, -1, ctypes.c_long(0))
    if made == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), "no memory")
    ctypes.memmove(made, target, end - first)
    if c.mremap(ctypes.c_void_p(made), length, length, _MREMAP_MAYMOVE | _MREMAP_FIXED, target) == _MAP_FAILED:
        number = ctypes.get_errno()
        c.munmap(ctypes.c_void_p(made), length)
        raise OSError(number, "mremap failed")
