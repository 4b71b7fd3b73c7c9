"""Clients that send many tiny messages: how many are handled in one turn of the loop, and how much memory they take."""

from __future__ import annotations

import asyncio
import gc
import gzip
import struct
from collections.abc import Callable

import pytest

from edge_serve.protocol.grpc import reflection
from edge_serve.protocol.http2 import frames
from edge_serve.protocol.http2.frames import DATA, Http2Setting
from edge_serve.protocol.http2.stream import INITIAL_WINDOW
from edge_serve.protocol.http2.streams import PER_TURN
from edge_serve.transport.grpc.inflater import Inflater
from edge_serve.transport.grpc_service.stream import PAUSE_REQUESTS
from tests.protocol.http2_scene import data, headers
from tests.stories import played
from tests.transport.grpc_raw import Raw, RawScene, block, message, raw_scene
from tests.transport.grpc_scene import INFERENCE, GrpcFakeService, infer_request

STREAM = block(INFERENCE + "ModelStreamInfer")
EMPTY = message(b"")


async def open_wide(scene: RawScene, window: int = 2**31 - 1) -> Raw:
    """Connect with a window of that many bytes for each answer."""
    raw = await scene.connect(limit=1 << 26)
    raw.send(frames.build_settings([(Http2Setting.INITIAL_WINDOW_SIZE, window)]), frames.build_window_update(0, 2**30))
    return raw


async def largest_step(count: Callable[[], int], end: int) -> int:
    """Wait until `count` returns `end`; return by how much it grew in one turn of the loop."""
    before = largest = 0
    while before < end:
        await asyncio.sleep(0)
        now = count()
        before, largest = now, max(largest, now - before)
    return largest


async def settle(count: Callable[[], int]) -> int:
    """Return what `count` returns once it has stopped to grow."""
    before = -1
    while before != (now := count()):
        before = now
        await asyncio.sleep(0.05)
    return before


@pytest.mark.parametrize("per_frame", [1, 800])
@played
async def test_messages_of_one_frame_are_answered_over_many_turns(per_frame: int) -> None:
    async with raw_scene() as scene:
        raw = await open_wide(scene)
        raw.begin(1, STREAM)
        raw.send(data(1, EMPTY * per_frame) * (800 // per_frame), data(1, message(b"\n\0"), end=True))
        errors = scene.service.client_errors
        assert await largest_step(lambda: len(errors), 801) <= 2 * PER_TURN
        assert await raw.status(1) == (0, "")


@played
async def test_calls_of_one_segment_are_answered_over_many_turns() -> None:
    async with raw_scene() as scene:
        raw = await open_wide(scene)
        good = message(infer_request().SerializeToString())
        calls = range(1, 401, 2)
        raw.send(*[headers(number, block=block()) + data(number, good, end=True) for number in calls])
        requests = scene.service.requests
        assert await largest_step(lambda: len(requests), len(calls)) <= PER_TURN
        assert [await raw.status(number) for number in calls] == [(0, "")] * len(calls)


@pytest.mark.parametrize("per_frame", [1, 800])
@played
async def test_no_message_is_read_while_the_client_leaves_answers_unread(per_frame: int) -> None:
    """Its bytes wait as they are, and are answered in order afterwards."""

    async with raw_scene() as scene:
        raw = await open_wide(scene, 0)
        raw.begin(1, STREAM)
        raw.send(data(1, EMPTY * per_frame) * (4_800 // per_frame), data(1, message(b"\n\1x"), end=True))
        errors = scene.service.client_errors
        handled = await settle(lambda: len(errors))
        assert 1000 < handled < 4500
        scene.sweep_after(20)
        raw.send(frames.build_window_update(1, 2**30))
        assert await raw.status(1) == (0, "")
        assert len(errors) == 4_801
        assert errors[-1][0] == "x"


@played
async def test_a_reflection_question_is_answered_when_the_answer_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bytes] = []
    answer = reflection.answer

    def count(question: bytes) -> bytes:
        asked.append(question)
        return answer(question)

    monkeypatch.setattr(reflection, "answer", count)
    question = message(b"\x22\x1e" + b"inference.GRPCInferenceService")
    async with raw_scene() as scene:
        raw = await open_wide(scene, 0)
        raw.begin(1, block("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"))
        raw.send(data(1, question * 400), data(1, question * 100, end=True))
        assert await settle(lambda: len(asked)) == 1
        raw.send(frames.build_window_update(1, 2**30))
        assert await raw.status(1) == (0, "")
        assert len(asked) == 500


@played
async def test_messages_behind_one_that_a_thread_inflates_stay_bytes() -> None:
    async with raw_scene() as scene:
        raw = await open_wide(scene)
        raw.begin(1, block(INFERENCE + "ModelStreamInfer", grpc_encoding="gzip"))
        shared = scene.server._shared
        assert shared is not None
        async with shared.inflating:  # by another call
            raw.data(1, message(gzip.compress(infer_request(values=bytes(300_000)).SerializeToString()), 1))
            raw.data(1, EMPTY * 1000, end=True)
            await settle(lambda: len(scene.service.client_errors))
            (inflater,) = [one for one in gc.get_objects() if type(one) is Inflater and one.busy]
            assert len(inflater._steps or ()) == 32
        assert await raw.status(1) == (0, "")
        assert len(scene.service.client_errors) == 1000


@played
async def test_a_client_that_sends_on_gets_its_window_again_only_for_messages_that_were_read() -> None:
    async with raw_scene() as scene:
        raw = await open_wide(scene, 0)
        raw.begin(1, STREAM)
        raw.data(1, EMPTY * (INITIAL_WINDOW // len(EMPTY)))
        await settle(lambda: len(scene.service.client_errors))
        widened = 0
        while not widened:
            try:
                kind, _, stream, payload = await asyncio.wait_for(raw.frame(), 0.1)
            except asyncio.TimeoutError:
                break
            if kind == frames.WINDOW_UPDATE and stream == 1:
                widened += struct.unpack(">I", payload)[0]
            assert kind != DATA
        assert widened == 0


@played
async def test_answers_behind_an_open_request_are_bounded() -> None:
    async with raw_scene(GrpcFakeService(later=True)) as scene:
        raw = await open_wide(scene)
        raw.begin(1, STREAM)
        raw.data(1, message(infer_request().SerializeToString()) + EMPTY * 600, end=True)
        assert await settle(lambda: len(scene.service.client_errors)) == PAUSE_REQUESTS - 1
        for answer in scene.service.waiting:
            answer()
        assert await raw.status(1) == (0, "")
        assert len(scene.service.client_errors) == 600
