"""The front end's side of calls: slots, order, what ends a call, and workers that break the rules."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edge_serve.aio.bulk_copy import MOST_AT_ONCE
from edge_serve.backends.base import Reply
from edge_serve.backends.host import ModelCall
from edge_serve.errors import Cancelled, Unsupported
from edge_serve.messages.infer import InferResponse
from edge_serve.messages.tensors import DataType, InferTensor
from edge_serve.workers.child.calling import decode_response, encode_call, encode_rest, room_of
from edge_serve.workers.front.bls_broker import BlsBroker, Caller, Hooks, InboundCall
from edge_serve.workers.memory.arena import Arena, Budget
from edge_serve.workers.wire.frames import Frame, FrameError, FrameKind, Splitter, json_frame
from tests.stories import played
from tests.workers.harness import Recorder

SMALL = 100
LARGE = 200_000
HUGE = MOST_AT_ONCE


class Scene:
    """A broker with one caller, number 7, and what was sent to its worker."""

    def __init__(self, budget: int = 64 << 20) -> None:
        self.budget = Budget(budget)
        self.arena = Arena("asks", self.budget)
        self.sent: list[Frame] = []
        self.asked: list[InboundCall] = []
        self.hooks = Hooks(infer=self.asked.append)
        caller = Caller(self.arena, Recorder(), [])
        self.broker = BlsBroker(
            lambda data: self.sent.extend(Splitter().feed(data)),
            lambda number: caller if number == 7 else None,
            self.hooks,
            turning={"me"},
            awaited=set(),
        )

    def call(self, number: int = 1, token: int = 0) -> InboundCall:
        """A call comes in."""
        self.receive(encode_call(number, ModelCall("other", -1, [], ["Y"]), [], 7, token))
        return self.asked[-1]

    def receive(self, data: bytes) -> None:
        """A frame comes in."""
        (frame,) = Splitter().feed(data)
        assert self.broker.on_frame(frame)

    def free(self, token: int) -> None:
        """The worker releases a slot."""
        self.broker.on_frame(Frame(FrameKind.INFER_FREE, 0, token, b""))

    def response(self, index: int = -1) -> tuple[Reply, bool]:
        """Return the frames sent, read as the worker does."""
        frame = self.sent[index]
        room = room_of(frame)
        return decode_response(frame, self.arena.view[room.offset : room.offset + room.nbytes])


def values(elements: int) -> InferTensor:
    """An output of INT32."""
    array = np.arange(elements, dtype=np.int32)
    return InferTensor("Y", DataType.INT32, (elements,), array.tobytes())


def answer(elements: int, final: bool = True) -> InferResponse:
    """A response with one output."""
    return InferResponse("other", "1", outputs=[values(elements)], final=final)


@pytest.fixture
def scene() -> Iterator[Scene]:
    """Return a scene; no slot may be left in it."""
    made = Scene()
    yield made
    made.broker.release_slots()
    assert made.budget.used == 0
    made.arena.close()


def test_small_outputs_travel_in_the_frame(scene: Scene) -> None:
    scene.call().answer(answer(SMALL))
    reply, final = scene.response()
    assert final
    assert reply.outputs[0].array().tolist() == list(range(SMALL))
    assert scene.budget.used == 0


def test_large_outputs_stay_in_the_callers_arena_until_released(scene: Scene) -> None:
    scene.call().answer(answer(LARGE))
    reply, _ = scene.response()
    assert reply.outputs[0].array()[-1] == LARGE - 1
    assert scene.budget.used >= 4 * LARGE
    scene.free(room_of(scene.sent[-1]).token)
    assert scene.budget.used == 0


@pytest.mark.parametrize("is_from_slot", [False, True])
def test_the_memory_of_inputs_is_the_calls_until_its_runner_releases_it(scene: Scene, is_from_slot: bool) -> None:
    slot = scene.arena.allocate(LARGE)
    token = scene.broker.add_slot(slot, 7).token if is_from_slot else 0
    given = InferTensor("X", DataType.UINT8, (LARGE,), slot.view)
    scene.receive(encode_call(1, ModelCall("other", -1, [given], ["Y"]), [slot.offset], 7, token))
    (asked,) = scene.asked
    if not is_from_slot:
        slot.release()
    scene.broker.release_slots()
    assert scene.budget.used >= LARGE
    assert asked.lease is not None
    asked.lease.release()
    assert scene.budget.used == 0


@played
async def test_responses_keep_their_order_while_a_large_one_is_copied(scene: Scene) -> None:
    asked = scene.call()
    asked.answer(answer(HUGE, final=False))
    asked.answer(answer(SMALL, final=False))
    asked.answer(answer(HUGE))
    while len(scene.sent) < 3:
        await asyncio.sleep(0.001)
    replies = [scene.response(index) for index in range(3)]
    assert [(len(reply.outputs[0].array()), final) for reply, final in replies] == [
        (HUGE, False), (SMALL, False), (HUGE, True)
    ]  # fmt: skip


@played
async def test_a_caller_that_dies_while_its_answer_is_copied_leaves_nothing(scene: Scene) -> None:
    asked = scene.call()
    lease = scene.arena.allocate(100)
    response = answer(HUGE)
    response.lease = lease
    asked.answer(response)
    scene.broker.hang_up()
    scene.broker.release_slots()
    assert isinstance(scene.response()[0].error, Cancelled)
    while scene.budget.used:
        await asyncio.sleep(0.001)
    assert len(scene.sent) == 1


def test_no_memory_for_outputs_is_an_error() -> None:
    scene = Scene(budget=4096)
    scene.call().answer(answer(LARGE))
    error = scene.response()[0].error
    assert error is not None
    assert "no tensor memory" in error.message
    assert scene.budget.used == 0
    scene.arena.close()


def test_inputs_lie_in_a_slot_that_the_worker_asked_for_once(scene: Scene) -> None:
    scene.receive(json_frame(FrameKind.CALL, 3, {"do": "memory", "model": 7, "nbytes": 5000}))
    token = scene.sent[-1].json()["token"]
    scene.call(token=token)
    with pytest.raises(FrameError, match="was not given"):
        scene.call(2, token)


def test_a_call_is_cancelled_by_its_caller_once(scene: Scene) -> None:
    asked = scene.call()
    cancelled: list[int] = []
    asked.on_cancel = lambda: cancelled.append(1)
    for _ in range(2):
        scene.broker.on_frame(Frame(FrameKind.INFER_CANCEL, 0, 1, b""))
    scene.broker.on_frame(Frame(FrameKind.INFER_CANCEL, 0, 99, b""))
    assert cancelled == [1]
    assert scene.sent == [], "the answer is still due"


def test_calls_of_a_batch_are_cancelled_with_it(scene: Scene) -> None:
    first, second = scene.call(1), scene.call(2)
    first.batch, second.batch = 4, 5
    scene.broker.abandoned(4)
    assert (first.cancelled, second.cancelled) == (True, False)


def test_calls_are_refused_without_a_runner(scene: Scene) -> None:
    scene.hooks.infer = None
    scene.receive(encode_call(1, ModelCall("other", -1, [], ["Y"]), [], 7, 0))
    assert isinstance(scene.response()[0].error, Unsupported)


@pytest.mark.parametrize("loads", [True, False])
def test_a_question_says_whether_a_load_waits_for_it(scene: Scene, loads: bool) -> None:
    asked: list[tuple[Any, bool]] = []
    scene.hooks.control = lambda question, answer, loading: asked.append((question["model_name"], loading))
    scene.broker.awaited = {"me"} if loads else set()
    scene.receive(json_frame(FrameKind.CALL, 3, {"do": "load_model", "model_name": "other"}))
    assert asked == [("other", loads)]


def test_a_model_does_not_wait_for_itself(scene: Scene) -> None:
    scene.receive(json_frame(FrameKind.CALL, 3, {"do": "load_model", "model_name": "me"}))
    assert scene.sent[-1].kind == FrameKind.FAILED
    assert "by itself" in scene.sent[-1].json()["text"]


@pytest.mark.parametrize(
    "data",
    [
        json_frame(FrameKind.CALL, 1, {"do": "load_model", "model_name": ["a", "list"]}),
        json_frame(FrameKind.CALL, 1, {"do": "memory", "model": 7, "nbytes": -1}),
        json_frame(FrameKind.CALL, 1, {"do": "memory", "model": "7", "nbytes": 1}),
        encode_call(1, ModelCall("other", -1, [], ["Y"]), [], 7, 5),
    ],
)
def test_a_worker_that_breaks_the_rules_is_found_out(scene: Scene, data: bytes) -> None:
    with pytest.raises(FrameError):
        scene.receive(data)


def test_calls_of_a_model_that_is_being_closed_are_refused(scene: Scene) -> None:
    scene.receive(json_frame(FrameKind.CALL, 3, {"do": "memory", "model": 7, "nbytes": 5000}))
    token = scene.sent[-1].json()["token"]
    scene.broker.caller_of = lambda number: None
    scene.receive(json_frame(FrameKind.CALL, 4, {"do": "memory", "model": 7, "nbytes": 5000}))
    assert scene.sent[-1].kind == FrameKind.FAILED
    call = ModelCall("other", -1, [values(LARGE)], ["Y"])
    for number in (1, 2):  # once the model is closed, its slots are gone
        scene.receive(encode_call(number, call, [0], 7, token))
        assert isinstance(scene.response()[0].error, Cancelled)
        assert scene.budget.used == 0
    assert scene.asked == []


def test_a_call_may_not_come_twice(scene: Scene) -> None:
    scene.call(1)
    with pytest.raises(FrameError, match="twice"):
        scene.call(1)


def test_a_waiting_instance_is_reported_with_its_calls(scene: Scene) -> None:
    waits: list[list[InboundCall]] = []
    scene.hooks.report_idle = lambda calls: waits.append(list(calls))
    first, second = scene.call(1), scene.call(2)
    scene.receive(encode_rest([(1, 0), (2, 0)]))
    assert waits == [[first, second]]
    first.answer(answer(SMALL, final=False))
    scene.receive(encode_rest([(1, 1), (2, 0)]))
    assert waits == [[first, second]] * 2


@pytest.mark.parametrize("size", [SMALL, HUGE // 4 + LARGE])
@played
async def test_a_caller_whose_response_was_sent_does_not_wait(scene: Scene, size: int) -> None:
    waits: list[object] = []
    scene.hooks.report_idle = waits.append
    first, _ = scene.call(1), scene.call(2)
    first.answer(answer(size, final=False))
    scene.receive(encode_rest([(1, 0), (2, 0)]))
    while not scene.sent:
        await asyncio.sleep(0.001)
    scene.receive(encode_rest([(1, 0), (2, 0)]))
    first.answer(answer(SMALL))
    scene.receive(encode_rest([(1, 1), (2, 0)]))
    scene.receive(encode_rest([(2, 0), (3, 0)]))
    assert waits == []


@pytest.mark.parametrize("payload", [b"", bytes(15), bytes(17)])
def test_an_instance_waits_for_whole_calls(scene: Scene, payload: bytes) -> None:
    with pytest.raises(FrameError, match="another length"):
        scene.broker.on_frame(Frame(FrameKind.INFER_REST, 0, 0, payload))
