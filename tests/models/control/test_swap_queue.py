"""Requests between two versions."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from types import SimpleNamespace
from typing import Any, cast

from edge_serve.errors import Cancelled, Unavailable
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.signature import Signature
from edge_serve.models.control.swap_queue import SwapQueue
from edge_serve.models.versions.served import Served


class Target:
    """A runner that remembers, and answers at once."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.cancelled = 0
        self.held = False

    def submit(
        self, request: InferRequest, rows: int, key: Hashable, on_response: Callable[[InferResponse], None]
    ) -> Target:
        assert (rows, key) == (1, "key")
        self.ids.append(request.id)
        on_response(InferResponse("m", "2", request.id))
        return self

    def cancel(self) -> None:
        self.cancelled += 1

    def set_paused(self, paused: bool) -> bool:
        self.held = paused
        return True

    def jobs(self) -> tuple[()]:
        return ()


def served(target: Target, signature: Any) -> Served:
    return cast(Served, SimpleNamespace(runner=target, cache=None, signature=signature, key_of=lambda _: "new key"))


def request(id: str) -> InferRequest:
    return InferRequest("m", id=id, validated=cast(Signature, SimpleNamespace(inputs={})))


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
    assert not first.set_paused(True)  # nothing comes that could be held
    queue.submit_all(served(target, SimpleNamespace(inputs={})))
    queue.submit(request("4"), 1, "key", answers.append)
    assert first.set_paused(True)
    assert target.held
    first.cancel()

    assert target.ids == ["1", "4"]
    assert target.cancelled == 1
    assert [one.id for one in answers[2:]] == ["1", "4"]
    assert queue.in_flight() == 0


def test_close_answers_every_waiting_request() -> None:
    answers: list[InferResponse] = []
    idle: list[bool] = []
    queue = SwapQueue("m", 5)
    queue.submit(request("1"), 1, "key", answers.append)

    queue.stop(lambda: idle.append(True))
    queue.submit(request("2"), 1, "key", answers.append)

    assert [(one.id, type(one.error)) for one in answers] == [("1", Unavailable), ("2", Unavailable)]
    assert idle == [True]
