"""Requests between two versions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import cast

import pytest

from edge_serve.config.model.text import parse_model_config
from edge_serve.config.signature import signature_of
from edge_serve.errors import Cancelled, Unavailable, Unsupported
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.tensors import DataType, InferTensor
from edge_serve.models.control.swap_queue import SwapQueue
from edge_serve.models.run.runner import Runner
from edge_serve.models.run.statistics import new_statistics
from edge_serve.models.versions.served import Served
from edge_serve.protocol.inference.validate import validate

FLAT = (
    'name: "m" input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] } output { name: "Y" data_type: TYPE_FP32 dims: 4 }'
)
SQUARE = FLAT.replace("dims: [ 4 ]", "dims: [ 4 ] reshape { shape: [ 2, 2 ] }")
SQUARE_ANSWERS = FLAT.replace("dims: 4", "dims: [ 2, 2 ] reshape { shape: 4 }")
LARGER = SQUARE + ' input { name: "Z" data_type: TYPE_FP32 dims: 1 optional: true }'
STREAM = FLAT + " model_transaction_policy { decoupled: true }"


class Target:
    """A runner that remembers, and answers at once."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.shapes: list[tuple[int, ...]] = []
        self.cancelled = 0
        self.held = False

    def submit(
        self, request: InferRequest, rows: int, key: Hashable, on_response: Callable[[InferResponse], None]
    ) -> Target:
        self.ids.append(request.id)
        self.shapes.append(request.inputs[0].shape)
        on_response(InferResponse("m", "2", request.id, outputs=[InferTensor("Y", DataType.FP32, (4,), bytes(16))]))
        return self

    def cancel(self) -> None:
        self.cancelled += 1

    def set_paused(self, paused: bool) -> bool:
        self.held = paused
        return True

    def jobs(self) -> tuple[()]:
        return ()


def served(runner: Target | SwapQueue, text: str = FLAT) -> Served:
    config = parse_model_config(text)
    signature = signature_of(config, "m", 1, {})
    return Served("m", "1", config, signature, cast(Runner, runner), new_statistics())


def request(id: str) -> InferRequest:
    return InferRequest("m", id=id, inputs=[InferTensor("X", DataType.FP32, (4,), bytes(16))])


@pytest.mark.parametrize(("old", "new", "shape"), [
    (FLAT, SQUARE, (2, 2)), (SQUARE, FLAT, (4,)), (SQUARE, SQUARE, (2, 2)), (SQUARE, LARGER, (2, 2)),
])  # fmt: skip
def test_a_waiting_request_gets_the_shapes_of_the_new_version(old: str, new: str, shape: tuple[int, ...]) -> None:
    answers: list[InferResponse] = []
    queue, target = SwapQueue("m", 2), Target()
    stand_in, waiting = served(Target(), old).stand_in(queue), request("1")
    validate(waiting, stand_in.signature)
    stand_in.submit(waiting, answers.append)
    queue.submit_all(served(target, new))
    assert [one.error for one in answers] == [None]
    assert target.shapes == [shape]


@pytest.mark.parametrize(("old", "new", "error"), [
    (FLAT, STREAM, Unsupported), (STREAM, STREAM, None), (STREAM, FLAT, None),
])  # fmt: skip
def test_a_request_for_one_response_is_refused_by_a_version_that_became_decoupled(
    old: str, new: str, error: type[Unsupported] | None
) -> None:
    answers: list[InferResponse] = []
    queue, target, waiting = SwapQueue("m", 2), Target(), request("1")
    stand_in = served(Target(), old).stand_in(queue)
    validate(waiting, stand_in.signature)
    stand_in.submit(waiting, answers.append)
    queue.submit_all(served(target, new))
    assert [one.error and type(one.error) for one in answers] == [error]
    assert target.ids == ([] if error else ["1"])


@pytest.mark.parametrize(("old", "new", "shape"), [(FLAT, SQUARE_ANSWERS, (2, 2)), (SQUARE_ANSWERS, FLAT, (4,))])
def test_its_answer_has_the_shapes_of_the_new_version(old: str, new: str, shape: tuple[int, ...]) -> None:
    answers: list[InferResponse] = []
    queue = SwapQueue("m", 2)
    served(Target(), old).stand_in(queue).submit(request("1"), answers.append)
    queue.submit_all(served(Target(), new))
    assert [one.outputs[0].shape for one in answers] == [shape]


def test_waiting_requests_run_in_order_before_later_ones() -> None:
    answers: list[InferResponse] = []
    queue, target = SwapQueue("m", 2), Target()
    first = queue.submit(request("1"), 1, "key", answers.append)
    second = queue.submit(request("2"), 1, "key", answers.append)
    assert queue.in_flight() == 2
    queue.submit(request("3"), 1, "key", answers.append)
    assert [(one.id, type(one.error)) for one in answers] == [("3", Unavailable)]

    second.cancel()
    assert [(one.id, type(one.error)) for one in answers[1:]] == [("2", Cancelled)]
    queue.submit_all(served(target))
    queue.submit(request("4"), 1, "key", answers.append)
    assert first.set_paused(True)
    assert target.held
    first.cancel()

    assert target.ids == ["1", "4"]
    assert target.cancelled == 1
    assert [one.id for one in answers[2:]] == ["1", "4"]
    assert queue.in_flight() == 0


@pytest.mark.parametrize("resumed", [False, True])
def test_the_new_version_learns_that_the_stream_of_a_waiting_request_is_paused(resumed: bool) -> None:
    queue, target, waiting = SwapQueue("m", 2), Target(), request("1")
    ticket = queue.submit(waiting, 1, "key", list[InferResponse]().append)
    assert ticket.set_paused(True), "no response comes meanwhile"
    if resumed:
        ticket.set_paused(False)
    queue.submit_all(served(target, STREAM))
    assert waiting.paused is not resumed


def test_close_answers_every_waiting_request() -> None:
    answers: list[InferResponse] = []
    idle: list[bool] = []
    queue = SwapQueue("m", 5)
    queue.submit(request("1"), 1, "key", answers.append)

    queue.stop(lambda: idle.append(True))
    queue.submit(request("2"), 1, "key", answers.append)

    assert [(one.id, type(one.error)) for one in answers] == [("1", Unavailable), ("2", Unavailable)]
    assert idle == [True]


def test_a_waiting_request_is_refused_at_its_deadline_and_no_other_one() -> None:
    answers: list[InferResponse] = []

    async def wait() -> None:
        queue, target = SwapQueue("m", 5), Target()
        waiting = [request(str(number)) for number in range(4)]
        for one in waiting[1:]:
            one.deadline_ns = time.monotonic_ns() + 10_000_000
        tickets = [queue.submit(one, 1, "key", answers.append) for one in waiting]
        tickets[2].cancel()
        while len(answers) < 3:
            await asyncio.sleep(0.001)
        assert queue.in_flight() == 1
        waiting[3].deadline_ns = time.monotonic_ns() + 1_000_000
        queue.submit(waiting[3], 1, "key", answers.append)
        queue.submit_all(served(target))
        await asyncio.sleep(0.005)

    asyncio.run(wait())
    assert [(one.id, type(one.error)) for one in answers] == [
        ("2", Cancelled), ("1", Unavailable), ("3", Unavailable), ("0", type(None)), ("3", type(None)),
    ]  # fmt: skip
    assert "Request deadline expired" in str(answers[1].error)
