"""Responses of one stream: in order, counted in the bytes that they came as, and none after the end."""

from __future__ import annotations

import asyncio

import pytest

from edge_serve.errors import EdgeServeError, Internal, Unavailable
from edge_serve.in_process import responses
from edge_serve.in_process.responses import Responses
from edge_serve.messages.infer import InferResponse
from edge_serve.messages.tensors import DataType, InferTensor, join_bytes


def response(text: bytes = b"", final: bool = False, error: EdgeServeError | None = None) -> InferResponse:
    outputs = [] if error is not None else [InferTensor("TEXT", DataType.BYTES, (1,), join_bytes([text]))]
    return InferResponse("m", "1", outputs=outputs, error=error, final=final)


def test_taken_responses_do_not_count_as_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "MAX_UNREAD", 300)

    async def work() -> None:
        waiting = Responses()
        for number in range(20):
            waiting.take(response(b"%100d" % number))
            taken = await waiting.next()
            assert taken is not None
            assert int(taken["TEXT"][0]) == number
        waiting.take(InferResponse("m", "1", null=True))
        assert await waiting.next() is None

    asyncio.run(work())


def test_too_many_unread_responses_cancel_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "MAX_UNREAD", 300)
    cancelled: list[bool] = []

    async def work() -> None:
        waiting = Responses()
        waiting.cancel = lambda: cancelled.append(True)
        for _ in range(10):
            waiting.take(response(b"x" * 100))
        for _ in range(4):
            assert await waiting.next() is not None
        with pytest.raises(Unavailable, match="not taken in time"):
            await waiting.next()
        assert await waiting.next() is None

    asyncio.run(work())
    assert cancelled == [True]


def test_responses_of_any_size_reach_the_waiting_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "MAX_UNREAD", 300)

    async def work() -> None:
        waiting = Responses()
        reader = asyncio.create_task(waiting.next())
        await asyncio.sleep(0)
        for _ in range(3):  # in one turn of the loop
            waiting.take(response(b"x" * 500))
        assert await reader is not None
        for _ in range(2):
            assert await waiting.next() is not None

        waiting.take(response(b"x" * 500))  # while the reader is busy with the one before it
        assert await waiting.next() is not None
        waiting.take(InferResponse("m", "1", null=True))
        assert await waiting.next() is None

    asyncio.run(work())


def test_an_error_is_raised_in_its_place() -> None:
    async def work() -> None:
        waiting = Responses()
        waiting.take(response(b"a"))
        waiting.take(response(error=Internal("no"), final=True))
        assert await waiting.next() is not None
        with pytest.raises(Internal, match="no"):
            await waiting.next()
        assert await waiting.next() is None

    asyncio.run(work())
