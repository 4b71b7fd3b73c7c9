"""Inputs of a model that keeps them beyond their batch, and of one that does not."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest

from edge_serve.messages.tensors import Array
from edge_serve.workers.child.memory.input_arena import InputArena

PAGE = mmap.PAGESIZE
START, SIZE = PAGE + 128, 2 * PAGE


class Scene:
    """An arena in which other requests write."""

    def __init__(self, *, writable: bool = True) -> None:
        fd = os.memfd_create("arena")
        os.ftruncate(fd, 8 * PAGE)
        self.arena, view = (memoryview(mmap.mmap(fd, 8 * PAGE)) for _ in range(2))
        os.close(fd)
        self.inputs = InputArena(view if writable else view.toreadonly(), self.arena)

    def write(self, value: int) -> None:
        """Write a value to each byte."""
        self.arena[:] = bytes([value]) * len(self.arena)

    def array(self) -> Array:
        """Return an input as a model gets it."""
        found: Array = np.ndarray((SIZE // 4,), np.int32, self.inputs[START : START + SIZE]).view(np.uint8)
        return found


def test_inputs_are_views_while_the_model_keeps_none() -> None:
    scene = Scene()
    for value in range(3):
        array = scene.array()
        scene.write(value)
        assert (array == value).all()
        array[:] = 9
        assert bytes(scene.arena[START : START + SIZE]) == b"\x09" * SIZE
        address = array.ctypes.data
        assert scene.inputs.place_of(address, SIZE) == START
        assert scene.inputs.place_of(address, 8 * PAGE) == -1
        del array
        scene.inputs.release_batch()


@pytest.mark.parametrize("writable", [True, False])
def test_an_input_that_the_model_keeps_does_not_change(writable: bool) -> None:
    scene = Scene(writable=writable)
    scene.write(1)
    kept = [scene.array()[5:8], scene.array()]
    address = kept[0].ctypes.data
    scene.inputs.release_batch()
    scene.write(2)
    assert [set(array.tolist()) for array in kept] == [{1}, {1}]
    assert scene.inputs.place_of(address, 3) == -1, "the arena has other bytes there"

    kept.append(scene.array())
    scene.inputs.release_batch()
    scene.write(3)
    assert [set(array.tolist()) for array in kept] == [{1}, {1}, {2}]
