"""How often a tensor of 602 KB is copied between the model's arena and the device, and within the arena."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_serve.backends.base import ArenaMemory, BackendRequest, Timing
from edge_serve.backends.cuda.device_data import address_of
from edge_serve.backends.cuda.registered_arena import RegisteredArena
from edge_serve.errors import Internal
from edge_serve.messages.tensors import DataType, InferTensor
from edge_serve.workers.child.memory.output_room import OutputRoom
from edge_serve.workers.front.frames.batch import decode_answers
from edge_serve.workers.wire.frames import HEADER_SIZE, REPLY_HEAD
from edge_serve.workers.wire.layout import TensorLayout
from tests.backends.cuda.counting import Copied
from tests.backends.cuda.host import HostCuda
from tests.backends.tensorrt.test_instance import host as host
from tests.backends.tensorrt.test_instance import opened, request, spec
from tests.stand_ins.plans import OPERATIONS, plan, tensor
from tests.workers.harness import reply_frame

COLUMNS = 150_528
NBYTES = 4 * COLUMNS
#: where the slots of a batch's two inputs, and of its reply, start
FIRST, SECOND, REPLY = 4096, 1 << 20, 2 << 20


class Slot:
    """The reply's slot, as the front end knows it."""

    def __init__(self, arena: memoryview) -> None:
        self.offset, self.view = REPLY, arena[REPLY:]


@pytest.fixture
def copies(host: HostCuda, monkeypatch: pytest.MonkeyPatch) -> list[Copied]:
    """Return the copies that the device makes from here on."""
    found: list[Copied] = []
    copy = host.memcpy_async

    def note(target: int, source: int, nbytes: int, stream: int) -> None:
        found.append(Copied(target, source, nbytes, stream))
        copy(target, source, nbytes, stream)

    monkeypatch.setattr(host, "memcpy_async", note)
    return found


class Scene:
    """A model whose arena is registered as a whole, and a batch of two requests that lie in it."""

    def __init__(self, host: HostCuda, folder: Path, second: int, op: str = "identity", **config: Any) -> None:
        both = [tensor("INPUT0", "INPUT", "FLOAT", (-1, COLUMNS)), tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, COLUMNS))]
        profiles = [{"INPUT0": ((1, COLUMNS), (2, COLUMNS), (4, COLUMNS))}]
        model = spec(folder, plan(op, both, profiles), **config)
        memory = memoryview(bytearray(8 << 20))
        aligned = -address_of(memory) % 4096
        self.arena = memory[aligned : aligned + (6 << 20)]
        model.arena = ArenaMemory(self.arena, lambda nbytes: nbytes)
        _, self.instance = opened(host, model)
        self.layout = TensorLayout(model.config)
        self.start = address_of(self.arena)
        self.arrays = [np.random.default_rng(n).random((1, COLUMNS), np.float32) for n in (1, 2)]
        self.requests = [self._request(*one) for one in zip(self.arrays, (FIRST, second), strict=True)]
        registered = model.arena.registered
        assert isinstance(registered, RegisteredArena)
        registered.covers(self.start, len(self.arena))
        if (grower := registered._grower) is not None:
            grower.join(20)
        assert registered.nbytes == len(self.arena)

    def _request(self, array: Any, where: int) -> BackendRequest:
        self.arena[where : where + NBYTES] = array.tobytes()
        made = request(array)
        made.inputs[0] = InferTensor("INPUT0", DataType.FP32, (1, COLUMNS), self.arena[where : where + NBYTES], where)
        return made

    def run(self) -> None:
        """Run the batch, and check its replies as the front end reads them."""
        room = OutputRoom(self.arena, REPLY, len(self.arena) - REPLY, lambda batch, nbytes, unused: (0, 0, 0))
        replies = self.instance.finish(self.instance.begin(self.requests, room, Timing()))
        free = room.offset
        sent = reply_frame(self.layout, 1, replies, room)
        assert room.offset == free, "nothing is copied within the arena"
        *_, meta = REPLY_HEAD.unpack_from(sent, HEADER_SIZE)
        slot: Any = Slot(self.arena)
        found, in_slot = decode_answers(self.layout, sent, HEADER_SIZE + REPLY_HEAD.size, meta, 2, slot)
        assert in_slot
        assert all((one.outputs[0].array() == array).all() for one, array in zip(found, self.arrays, strict=True))
        self.instance.close()


def test_each_input_and_the_outputs_of_a_batch_are_copied_once(
    host: HostCuda, tmp_path: Path, copies: list[Copied]
) -> None:
    """With the copy from the socket to the arena, an input is copied twice. The socket sends from the reply's slot."""
    one = Scene(host, tmp_path, SECOND)
    copies.clear()

    one.run()

    assert [(copy.source, copy.nbytes) for copy in copies[:2]] == [
        (one.start + FIRST, NBYTES),
        (one.start + SECOND, NBYTES),
    ]
    assert [(copy.target, copy.nbytes) for copy in copies[2:]] == [(one.start + REPLY, 2 * NBYTES)]


@pytest.fixture
def integrated(host: HostCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "is_integrated", lambda device: True)


@pytest.mark.usefixtures("integrated")
def test_integrated_device_reads_and_writes_the_slots_themselves(
    host: HostCuda, tmp_path: Path, copies: list[Copied]
) -> None:
    one = Scene(host, tmp_path, FIRST + NBYTES)
    copies.clear()

    one.run()

    assert copies == []


@pytest.mark.usefixtures("integrated")
def test_integrated_device_writes_nothing_behind_a_slot(
    host: HostCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An output of more rows than the batch, for which the slot has no room, is refused before the run."""
    monkeypatch.setitem(OPERATIONS, "twice", lambda inputs: {"OUTPUT0": np.repeat(inputs["INPUT0"], 2, axis=0)})
    one = Scene(host, tmp_path, FIRST + NBYTES, op="twice")
    before = bytes(one.arena)

    with pytest.raises(Internal, match="expected batch size of 2 in model output, got 4"):
        one.run()

    assert bytes(one.arena) == before
    one.instance.close()


@pytest.mark.usefixtures("integrated")
def test_inputs_that_do_not_follow_each_other_are_copied_for_an_integrated_device_too(
    host: HostCuda, tmp_path: Path, copies: list[Copied]
) -> None:
    one = Scene(host, tmp_path, SECOND)
    copies.clear()

    one.run()

    assert [copy.source for copy in copies] == [one.start + FIRST, one.start + SECOND]


@pytest.mark.usefixtures("integrated")
def test_cuda_graph_has_its_own_buffers_on_an_integrated_device_too(
    host: HostCuda, tmp_path: Path, copies: list[Copied]
) -> None:
    graph = {"batch_size": 2, "input": {"INPUT0": {"dim": [str(COLUMNS)]}}}
    one = Scene(host, tmp_path, FIRST + NBYTES, optimization={"cuda": {"graphs": True, "graph_spec": [graph]}})
    copies.clear()

    one.run()

    assert len(copies) == 3
