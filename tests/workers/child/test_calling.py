"""When an instance says that it waits for its calls, and when it must not."""

from __future__ import annotations

import mmap
import threading
from queue import SimpleQueue

import pytest

from edge_serve.backends.base import Reply
from edge_serve.backends.host import ModelCall
from edge_serve.messages.infer import InferResponse
from edge_serve.messages.tensors import DataType, InferTensor
from edge_serve.workers.child.calling import CallerArena, Calling
from edge_serve.workers.child.memory.input_arena import InputArena
from edge_serve.workers.child.remote import Remote
from edge_serve.workers.front.frames.calls import decode_call, decode_rest, encode_response
from edge_serve.workers.wire.calls import OutputSlot
from edge_serve.workers.wire.frames import Frame, FrameKind, Splitter

#: too large for a frame
SIZE = 128 << 10


class Wire:
    """Records frames, and the calls that they wait for."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def send(self, data: bytes) -> None:
        self.frames += Splitter().feed(data)

    @property
    def waits(self) -> list[list[tuple[int, int]]]:
        return [decode_rest(one) for one in self.frames if one.kind == FrameKind.INFER_REST]


def no_memory(model: int, nbytes: int) -> tuple[int, int]:
    raise AssertionError(f"nothing here is large: {nbytes} bytes for {model}")


def respond(calling: Calling, number: int, *, final: bool) -> None:
    (frame,) = Splitter().feed(encode_response(number, InferResponse("m", "1", final=final), [], OutputSlot()))
    calling.on_response(frame)


def nobody(reply: Reply, final: bool) -> None:
    """Does not care."""


CALL = ModelCall("m", -1, [], [])


def test_open_calls_are_reported_with_their_responses() -> None:
    wire = Wire()
    calling = Calling(wire.send, no_memory)
    calling.rest(lambda: True)
    assert wire.waits == []
    for _ in range(2):
        calling.start(CALL, nobody)
    calling.rest(lambda: True)
    respond(calling, 1, final=False)
    calling.rest(lambda: True)
    respond(calling, 1, final=True)
    calling.rest(lambda: True)
    assert wire.waits == [[(1, 0), (2, 0)], [(1, 1), (2, 0)], [(2, 0)]]


def test_a_response_counts_only_once_the_model_was_woken() -> None:
    wire = Wire()
    calling = Calling(wire.send, no_memory)
    calling.start(CALL, lambda reply, final: calling.rest(lambda: True))
    respond(calling, 1, final=True)
    assert wire.waits == [[(1, 0)]]


def test_nothing_is_reported_when_the_model_was_woken_meanwhile() -> None:
    wire = Wire()
    calling = Calling(wire.send, no_memory)
    calling.start(CALL, nobody)
    calling.rest(lambda: False)
    assert wire.waits == []


@pytest.mark.parametrize("is_decoupled", [False, True])
def test_an_input_is_named_by_its_place_only_while_its_request_waits(is_decoupled: bool) -> None:
    """Otherwise the memory may be another client's before the front end has read the call."""
    memory, wire = mmap.mmap(-1, 4 * SIZE), Wire()
    arena = memoryview(memory)
    view = arena if is_decoupled else memoryview(mmap.mmap(-1, 4 * SIZE))
    inputs = view if is_decoupled else InputArena(view, arena)
    view[SIZE : 2 * SIZE] = b"x" * SIZE
    calling = Calling(wire.send, lambda model, nbytes: (5, 3 * SIZE))
    calling.home = CallerArena(7, arena, inputs)
    given = InferTensor("X", DataType.UINT8, (SIZE,), inputs[SIZE : 2 * SIZE])

    def asked(*, blocking: bool) -> tuple[int, int]:
        calling.start(ModelCall("m", -1, [given], [], blocking=blocking), nobody)
        found = decode_call(wire.frames[-1], lambda model: arena)
        return found.token, found.call.inputs[0].offset

    assert asked(blocking=True) == (0, SIZE)
    assert asked(blocking=False) == (5, 3 * SIZE)
    assert bytes(arena[3 * SIZE :]) == b"x" * SIZE


@pytest.mark.parametrize("size", [1, SIZE])
def test_a_call_that_cannot_be_encoded_releases_its_memory(size: int) -> None:
    wire, sent = Wire(), threading.Event()

    def send(data: bytes) -> None:
        wire.send(data)
        sent.set()

    calling = Calling(send, lambda model, nbytes: (5, 0))
    arena = memoryview(mmap.mmap(-1, SIZE))
    calling.home = CallerArena(7, arena, arena)
    given = InferTensor("X", DataType.UINT8, (size,), bytearray(size))
    with pytest.raises(TypeError):
        calling.start(ModelCall("m", -1, [given], [], parameters={"n": object()}), nobody)  # type: ignore[dict-item]
    assert sent.wait(0.1) is (size == SIZE)
    assert [one.kind for one in wire.frames] == [FrameKind.INFER_FREE] * (size == SIZE)


def test_a_call_whose_inputs_cannot_be_copied_releases_its_memory() -> None:
    frees: SimpleQueue[bytes] = SimpleQueue()
    arena = memoryview(mmap.mmap(-1, SIZE))
    calling = Calling(frees.put, lambda model, nbytes: (5, SIZE // 2))
    calling.home = CallerArena(7, arena, arena)
    given = InferTensor("X", DataType.UINT8, (SIZE,), bytearray(SIZE))
    with pytest.raises(ValueError, match="different structures"):
        calling.start(ModelCall("m", -1, [given], []), nobody)
    (free,) = Splitter().feed(frees.get(timeout=1))
    assert (free.kind, free.id) == (FrameKind.INFER_FREE, 5)


@pytest.mark.parametrize("name", ["the model's", "calls", "control"])
def test_a_models_own_thread_may_wake_its_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    every, others = threading.enumerate, set(threading.enumerate())  # pools of other tests
    monkeypatch.setattr(threading, "enumerate", lambda: [one for one in every() if one not in others])
    wire, stop = Wire(), threading.Event()
    remote = Remote(wire.send)
    remote.infer(CALL, nobody)
    thread = threading.Thread(target=stop.wait, name=name)
    thread.start()
    try:
        assert not remote.report_idle(lambda: True)
    finally:
        stop.set()
        thread.join()
    assert wire.waits == []
    assert remote.report_idle(lambda: True)
    assert wire.waits == [[(1, 0)]]
