"""Calls of other models under way: who waits, who is woken, and when a call is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edge_serve.backends import host
from edge_serve.backends.base import Reply
from edge_serve.backends.host import Cancel, ModelCall, OnReply
from edge_serve.backends.python.api.calls import ResponseIterator, ask, ask_async
from edge_serve.backends.python.api.request import InferenceRequest
from edge_serve.backends.python.api.response import InferenceResponse
from edge_serve.backends.python.api.tensor import Tensor
from edge_serve.errors import Unavailable
from tests.backends.hosting import installed, number

CALL = ModelCall("other", -1, [], ["Y"])
STREAM = ModelCall("other", -1, [], ["Y"], decoupled=True)


class Front(host.Alone):
    """A front end that answers when the test calls it, from another thread, and counts cancellations."""

    def __init__(self) -> None:
        self.asked: list[tuple[ModelCall, OnReply]] = []
        self.cancelled = 0

    def infer(self, call: ModelCall, on_reply: OnReply) -> Cancel:
        self.asked.append((call, on_reply))
        return self.cancel

    def cancel(self) -> None:
        self.cancelled += 1

    def reply(self, value: int | None, final: bool) -> None:
        """The next response of the last call; None has no outputs."""
        reply = Reply() if value is None else Reply([number(value)])
        thread = threading.Thread(target=self.asked[-1][1], args=(reply, final))
        thread.start()
        thread.join()


@pytest.fixture
def front() -> Iterator[Front]:
    """The host inside the test."""
    one = Front()
    with installed(one):
        yield one


def value(response: InferenceResponse) -> int | None:
    """The only number in a response."""
    tensors = response.output_tensors()
    return int(tensors[0].as_numpy()[0]) if tensors else None


def test_exec_waits_for_an_answer_from_another_thread(front: Front) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(ask(CALL)))
    thread.start()
    while not front.asked:
        pass
    front.reply(7, True)
    thread.join(5)
    assert [value(one) for one in found] == [7]
    assert front.cancelled == 0


def stream(front: Front, *replies: tuple[int | None, bool]) -> ResponseIterator:
    """A decoupled call that has been answered like that."""

    class Answering(Front):
        def infer(self, call: ModelCall, on_reply: OnReply) -> Cancel:
            super().infer(call, on_reply)
            for one, final in replies:
                self.reply(one, final)
            return front.cancel

    with installed(Answering()):
        found = ask(STREAM)
    assert isinstance(found, ResponseIterator)
    return found


def test_an_iterator_ends_and_starts_again(front: Front) -> None:
    found = stream(front, (1, False), (2, False), (None, True))
    assert value(next(found)) == 1
    assert [value(one) for one in found] == [2, None], "it goes on where it was"
    assert [value(one) for one in found] == [1, 2, None]
    with pytest.raises(StopIteration, match="Iteration is done"):
        next(found)
    found.cancel()
    del found
    assert front.cancelled == 0, "nothing was left to cancel"


def test_an_iterator_that_is_dropped_cancels_its_call(front: Front) -> None:
    found = stream(front, (1, False))
    found.cancel()
    assert front.cancelled == 1
    del found
    assert front.cancelled == 2


def test_awaited_calls_run_side_by_side(front: Front) -> None:
    async def work() -> list[int | None]:
        first, second = ask_async(CALL), ask_async(STREAM)
        assert len(front.asked) == 2, "they ask before anybody awaits them"
        front.asked[0][1](Reply([number(1)]), True)
        front.asked[1][1](Reply([number(2)]), False)
        front.asked[1][1](Reply([number(3)]), True)
        one, many = await asyncio.gather(first, second)
        assert isinstance(one, InferenceResponse)
        assert isinstance(many, ResponseIterator)
        return [value(one), *(value(each) for each in many)]

    assert asyncio.run(work()) == [1, 2, 3]
    assert front.cancelled == 0


def test_cancelling_what_is_awaited_cancels_the_call(front: Front) -> None:
    async def work() -> None:
        call = ask_async(CALL)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(call, 0.01)
        front.reply(1, True)  # too late, and no harm
        await asyncio.sleep(0)

    asyncio.run(work())
    assert front.cancelled == 1


def test_an_answer_after_the_end_of_the_loop_does_no_harm(front: Front) -> None:
    async def work() -> None:
        ask_async(CALL)

    asyncio.run(work())
    front.reply(1, True)


def test_no_memory_for_a_call_is_an_error_response() -> None:
    class Full(host.Alone):
        def infer(self, call: ModelCall, on_reply: OnReply) -> Cancel:
            raise Unavailable("no tensor memory")

    with installed(Full()):
        response = ask(CALL)
        many = ask(STREAM)
    assert isinstance(response, InferenceResponse)
    error = response.error()
    assert error is not None
    assert error.message() == "no tensor memory"
    assert isinstance(many, ResponseIterator)
    assert [one.has_error() for one in many] == [True]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("model_name", 5), ("request_id", 5), ("requested_output_names", [5]), ("inputs", [5]), ("model_version", "1"),
        ("correlation_id", None), ("correlation_id", -1), ("correlation_id", 1 << 64), ("flags", -1),
        ("flags", 1 << 32), ("flags", "1"),
        ("timeout", -1), ("timeout", 1.5),
    ],
)  # fmt: skip
def test_a_request_with_a_wrong_value_is_refused_where_it_is_made(name: str, wrong: object) -> None:
    right: dict[str, Any] = {
        "model_name": "other", "requested_output_names": ["Y"], "inputs": [Tensor("X", np.zeros(1))]
    }  # fmt: skip
    InferenceRequest(**right)
    with pytest.raises(TypeError):
        InferenceRequest(**{**right, name: wrong})


def test_names_may_be_elements_of_a_string_tensor(front: Front) -> None:
    names = np.array([b"other", "Ÿ".encode()], object)
    request = InferenceRequest(model_name=names[0], requested_output_names=[names[1]], inputs=[])
    assert (request.model_name(), request.requested_output_names()) == ("other", {"Ÿ"})
    with pytest.raises(TypeError):
        InferenceRequest(model_name=b"\xff", requested_output_names=[], inputs=[])  # type: ignore[arg-type]  # the test


def test_flags_are_checked_when_set() -> None:
    request = InferenceRequest(model_name="other", requested_output_names=["Y"], inputs=[])
    request.set_flags(3)
    assert request.flags() == 3
    with pytest.raises(TypeError):
        request.set_flags(-1)
