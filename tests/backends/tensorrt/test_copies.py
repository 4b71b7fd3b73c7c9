"""How often a tensor of 602 KB is copied between the model's arena and the device, and within the arena."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge_serve.backends.base import ArenaMemory, Timing
from edge_serve.backends.cuda.device_data import address_of
from edge_serve.backends.cuda.registered_arena import RegisteredArena
from edge_serve.messages.tensors import DataType, InferTensor
from edge_serve.workers.child.batch import encode_reply
from edge_serve.workers.child.memory.output_room import OutputRoom
from edge_serve.workers.front.frames.batch import decode_answers
from edge_serve.workers.wire.frames import HEADER_SIZE, REPLY_HEAD
from edge_serve.workers.wire.layout import TensorLayout
from tests.backends.cuda.counting import Copied
from tests.backends.cuda.host import HostCuda
from tests.backends.tensorrt.test_instance import host as host
from tests.backends.tensorrt.test_instance import opened, request, spec
from tests.stand_ins.plans import plan, tensor

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


def test_each_input_and_the_outputs_of_a_batch_are_copied_once(
    host: HostCuda, tmp_path: Path, copies: list[Copied]
) -> None:
    """With the copy from the socket to the arena, an input is copied twice. The socket sends from the reply's slot."""
    both = [tensor("INPUT0", "INPUT", "FLOAT", (-1, COLUMNS)), tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, COLUMNS))]
    model = spec(tmp_path, plan("identity", both, [{"INPUT0": ((1, COLUMNS), (2, COLUMNS), (4, COLUMNS))}]))
    arena = memoryview(bytearray(8 << 20))  # as a mapped one: the registration needs no page boundary here
    aligned = -address_of(arena) % 4096
    arena = arena[aligned : aligned + (6 << 20)]
    model.arena = ArenaMemory(arena, lambda nbytes: nbytes)
    _, instance = opened(host, model)
    arrays = [np.random.default_rng(n).random((1, COLUMNS), np.float32) for n in (1, 2)]
    requests = []
    for array, where in zip(arrays, (FIRST, SECOND), strict=True):
        one = request(array)
        arena[where : where + NBYTES] = array.tobytes()
        one.inputs[0] = InferTensor("INPUT0", DataType.FP32, (1, COLUMNS), arena[where : where + NBYTES], where)
        requests.append(one)
    registered = model.arena.registered
    assert isinstance(registered, RegisteredArena)
    registered.covers(address_of(arena), len(arena))
    if (grower := registered._grower) is not None:
        grower.join(20)
    assert registered.nbytes == len(arena)
    copies.clear()

    layout = TensorLayout(model.config)
    room = OutputRoom(arena, REPLY, len(arena) - REPLY, lambda batch, nbytes: (0, 0, 0))
    replies = instance.finish(instance.begin(requests, room, Timing()))
    free = room.offset
    sent = encode_reply(layout, 1, replies, [None, None], room, (1, 2, 3), lambda: 4)

    assert [(one.source, one.nbytes) for one in copies[:2]] == [
        (address_of(arena) + FIRST, NBYTES),
        (address_of(arena) + SECOND, NBYTES),
    ]
    assert [(one.target, one.nbytes) for one in copies[2:]] == [(address_of(arena) + REPLY, 2 * NBYTES)]
    assert room.offset == free, "nothing is copied within the arena"
    *_, meta = REPLY_HEAD.unpack_from(sent, HEADER_SIZE)
    found, in_slot = decode_answers(layout, sent, HEADER_SIZE + REPLY_HEAD.size, meta, 2, Slot(arena))  # type: ignore[arg-type]
    assert in_slot
    assert all((one.outputs[0].array() == array).all() for one, array in zip(found, arrays, strict=True))
    instance.close()
