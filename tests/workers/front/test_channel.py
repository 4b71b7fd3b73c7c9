"""The front end's end of a data channel, with the test as the worker."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from edge_serve.backends.base import Reply
from edge_serve.errors import Internal, Unavailable
from edge_serve.messages.infer import NULL_SEQUENCE_SLOT, InferRequest
from edge_serve.messages.tensors import DataType, InferTensor, zero_tensor
from edge_serve.workers.child.batch import Batch, decode_execute, encode_partial
from edge_serve.workers.child.instance import Receiver
from edge_serve.workers.child.memory.output_room import OutputRoom
from edge_serve.workers.front.channel import Channel
from edge_serve.workers.front.link import Link
from edge_serve.workers.memory.arena import Arena, Budget
from edge_serve.workers.memory.arena_exports import ArenaExports
from edge_serve.workers.wire.frames import CANCELLATION, HEADER_SIZE, NEED, PARTIAL_HEAD, SLOT, FrameKind, frame
from edge_serve.workers.wire.layout import TensorLayout, padded
from tests.stories import played
from tests.workers.harness import Recorder, config, reply_frame, request, values


class Peer:
    """A channel and the worker's end of it."""

    def __init__(self, model_config: dict[str, Any], budget: int) -> None:
        self.theirs, ours = socket.socketpair()
        self.layout = TensorLayout(model_config)
        self.budget = Budget(budget)
        self.arena = Arena("m", self.budget, 64 << 20)
        self.listener = Recorder()
        self.link = Link("m", self.layout, self.arena, self.listener)
        self.control: list[bytes] = []
        self.broken: list[str] = []
        self.channel = Channel(
            asyncio.get_running_loop(),
            ours,
            4,
            0,
            self.link,
            self.control.append,
            lambda why, _: self.broken.append(why),
            ArenaExports(lambda data, fds: self.control.append(data)),
        )
        self.receiver = Receiver(self.theirs)

    async def receive(self) -> Batch:
        """The next batch."""
        received = await asyncio.to_thread(self.receiver.receive)
        assert received is not None
        return decode_execute(self.layout, received, self.arena.view, set())

    def reply(
        self, batch: Batch, replies: list[Reply], need: Callable[[int, int, bool], tuple[int, int, int]] | None = None
    ) -> bytes:
        """A REPLY frame in the batch's slot, or one that `need` gives."""
        room = OutputRoom(self.arena.view, batch.slot_offset, batch.slot_capacity, need or (lambda b, n, u: (0, 0, 0)))
        return reply_frame(self.layout, batch.id, replies, room)

    async def until_broken(self) -> str:
        """Why the channel was given up."""
        while not self.broken:
            await asyncio.sleep(0.001)
        return self.broken[0]


@asynccontextmanager
async def peer(model_config: dict[str, Any] | None = None, budget: int = 64 << 20) -> AsyncIterator[Peer]:
    """A channel; at the end nothing is held."""
    made = Peer(model_config or config(), budget)
    try:
        yield made
    finally:
        made.channel.close()
        made.theirs.close()
    assert made.budget.used == 0
    made.arena.close()


def large(size: int) -> InferRequest:
    """Two inputs of `size` bytes each in ordinary memory."""
    return request(np.arange(size // 4))


def output(size: int) -> Reply:
    """One output of `size` bytes."""
    return Reply([InferTensor("OUTPUT0", DataType.INT32, (1, size // 4), bytes(size))])


@played
async def test_two_replies_at_once() -> None:
    async with peer() as made:
        made.channel.execute(1, [request()])
        made.channel.execute(2, [request()])
        first, second = await made.receive(), await made.receive()
        made.theirs.sendall(made.reply(second, [output(64)]) + made.reply(first, [output(64)]))
        assert [(await made.listener.reply()).batch_id for _ in range(2)] == [2, 1]


@played
async def test_large_inputs_are_moved_into_the_arena_and_the_request_is_left_alone() -> None:
    async with peer() as made:
        sent = large(100_000)
        made.channel.execute(1, [request(), sent])
        batch = await made.receive()
        first, second = batch.requests[1].inputs
        assert [first.offset % 64, second.offset % 64, batch.requests[0].inputs[0].offset] == [0, 0, -1]
        assert (first.array() + 1 == second.array()).all()
        assert sent.inputs[0].offset == -1
        assert made.budget.used > 200_000
        made.theirs.sendall(made.reply(batch, [output(64)] * 2))
        await made.listener.reply()
        assert made.budget.used == 0


@played
async def test_a_request_without_room_is_refused_alone() -> None:
    async with peer(budget=4096) as made:
        made.channel.execute(1, [request(), large(100_000), request([5] * 16)])
        batch = await made.receive()
        assert len(batch.requests) == 2
        made.channel.cancel(1, 2)
        assert made.control[0][HEADER_SIZE:] == frame(0, 0, bytes([4, 0, 0, 0, 1, 0, 0, 0]))[HEADER_SIZE:]
        made.theirs.sendall(made.reply(batch, [output(64), output(128)]))
        reply = await made.listener.reply()
        replies = reply.replies
        assert isinstance(replies[1].error, Unavailable)
        assert list(reply.unsent) == [1]
        assert [len(values(replies[0])), len(values(replies[2]))] == [16, 32]
        made.channel.execute(2, [large(100_000)])
        assert isinstance((await made.listener.reply()).replies[0].error, Unavailable)


@played
async def test_a_request_of_an_iterative_model_without_room_is_refused_alone() -> None:
    sequences = {"oldest": {"max_candidate_sequences": 4}, "iterative_sequence": True}
    async with peer({**config(), "sequence_batching": sequences}, budget=4096) as made:
        made.channel.execute(1, [large(100_000), request()])
        batch = await made.receive()
        assert len(batch.requests) == 1
        made.theirs.sendall(made.reply(batch, [Reply(rescheduled=True)]))
        reply = await made.listener.reply()
        assert [isinstance(reply.replies[0].error, Unavailable), reply.replies[1].rescheduled] == [True, True]
        assert list(reply.unsent) == [0]
        made.channel.cancel(1, 0)
        assert made.control[0][HEADER_SIZE:] == CANCELLATION.pack(4, 0)


@played
async def test_a_batch_in_place_is_refused_whole_because_a_row_is_a_sequence() -> None:
    async with peer({**config(), "sequence_batching": {"direct": {}}}, budget=4096) as made:
        made.channel.execute(1, [large(100_000), request()])
        reply = await made.listener.reply()
        assert all(isinstance(one.error, Unavailable) for one in reply.replies)
        assert list(reply.unsent) == [0, 1]


@played
async def test_null_rows_take_no_tensor_memory() -> None:
    async with peer(config(25_000), budget=409_600) as made:  # for the inputs and the outputs of one row
        zeros = [zero_tensor(name, DataType.INT32, (1, 25_000)) for name in ("INPUT0", "INPUT1")]
        null = InferRequest("m", inputs=zeros, sequence_slot=NULL_SEQUENCE_SLOT)
        real = large(100_000)
        real.sequence_slot = 3
        made.channel.execute(1, [null, null, null, real])
        batch = await made.receive()
        assert [one.inputs[1].array().any() for one in batch.requests] == [False, False, False, True]
        assert all(one.inputs[0].array().shape == (1, 25_000) for one in batch.requests)
        assert batch.slot_capacity == 200_128
        made.theirs.sendall(made.reply(batch, [Reply()] * 3 + [output(64)]))
        assert len(values((await made.listener.reply()).replies[3])) == 16


@played
async def test_a_request_that_cannot_be_encoded_is_answered() -> None:
    async with peer() as made:
        wrong = request()
        wrong.priority = -1
        made.channel.execute(1, [wrong, request()])
        assert made.listener.idle(), "never before execute has returned"
        replies = (await made.listener.reply()).replies
        assert [type(reply.error) for reply in replies] == [Internal, Internal]


@played
async def test_fixed_outputs_get_a_slot_with_the_batch() -> None:
    async with peer(config(dims=20_000)) as made:
        made.channel.execute(1, [request(), request()])
        batch = await made.receive()
        assert batch.slot_capacity >= 2 * 2 * 80_000
        made.theirs.sendall(made.reply(batch, [output(80_000)] * 2))
        reply = await made.listener.reply()
        assert reply.lease is not None
        assert made.budget.used >= 320_000, "held for the receiver"
        reply.lease.release()


@played
async def test_a_slot_that_was_not_needed_is_free_again() -> None:
    async with peer(config(dims=20_000)) as made:
        made.channel.execute(1, [request()])
        made.theirs.sendall(made.reply(await made.receive(), [Reply(error=Internal("no"))]))
        assert (await made.listener.reply()).lease is None
        assert made.budget.used == 0


@played
async def test_room_is_asked_for_and_expected_afterwards() -> None:
    """The first demand says that outputs are large, and the second how large those of a row are."""
    rows, row_bytes = 8, padded(100_000)

    async def ask_for_room(made: Peer, batch_id: int) -> None:
        made.channel.execute(batch_id, [request()] * rows)
        batch = await made.receive()
        assert batch.slot_capacity == 0
        made.theirs.sendall(frame(FrameKind.NEED_OUTPUT, batch_id, NEED.pack(rows * row_bytes, 9, False)))
        while not made.control:
            await asyncio.sleep(0.001)
        number, token, offset, capacity = _slot(made.control.pop())
        assert (number, token, capacity) == (4, 9, rows * row_bytes)
        replies = [output(100_000) for _ in range(rows)]
        made.theirs.sendall(made.reply(batch, replies, lambda b, n, u: (token, offset, capacity)))
        reply = await made.listener.reply()
        assert reply.lease is not None
        reply.lease.release()

    async with peer(config(dims=-1)) as made:
        await ask_for_room(made, 1)
        await ask_for_room(made, 2)
        made.channel.execute(3, [request()] * rows)
        batch = await made.receive()
        assert batch.slot_capacity == rows * row_bytes
        made.theirs.sendall(made.reply(batch, [output(64)] * rows))
        await made.listener.reply()


@pytest.mark.parametrize("unused", [True, False])
@played
async def test_outputs_that_grow_need_no_room_beside_the_room_that_was_expected(unused: bool) -> None:
    async with peer(config(dims=-1), budget=200_000) as made:
        made.link.learn(90_000, 1)
        made.channel.execute(1, [request()])
        batch = await made.receive()
        assert batch.slot_capacity >= 90_000
        made.theirs.sendall(frame(FrameKind.NEED_OUTPUT, 1, NEED.pack(150_000, 9, unused)))
        while not made.control:
            await asyncio.sleep(0.001)
        _, token, offset, capacity = _slot(made.control[0])
        if unused:
            assert capacity >= 150_000
            made.theirs.sendall(made.reply(batch, [output(150_000)], lambda b, n, u: (token, offset, capacity)))
            lease = (await made.listener.reply()).lease
            assert lease is not None
            lease.release()
        else:  # outputs of a GPU lie in the first slot
            assert capacity == 0
            made.theirs.sendall(made.reply(batch, [Reply(error=Internal("no room"))]))
            await made.listener.reply()
        made.channel.execute(2, [request()])
        assert (await made.receive()).slot_capacity >= 150_000


@played
async def test_room_is_refused_with_the_reason() -> None:
    async with peer(config(dims=-1), budget=4096) as made:
        made.channel.execute(1, [request()])
        batch = await made.receive()
        made.theirs.sendall(frame(FrameKind.NEED_OUTPUT, 1, NEED.pack(1 << 40, 9, False)))
        while not made.control:
            await asyncio.sleep(0.001)
        assert SLOT.unpack_from(made.control[0], HEADER_SIZE) == (4, 9, 0, 0)
        assert b"0 of 4096 bytes are in use" in made.control[0]
        made.theirs.sendall(made.reply(batch, [Reply()]))
        await made.listener.reply()


@played
async def test_batch_keeps_the_slot_that_it_asked_for_when_the_one_before_it_is_answered() -> None:
    async with peer(config(dims=-1)) as made:
        made.channel.execute(1, [request()])
        made.channel.execute(2, [request()])
        first, second = await made.receive(), await made.receive()
        for batch_id, token in ((2, 8), (1, 9)):
            made.theirs.sendall(frame(FrameKind.NEED_OUTPUT, batch_id, NEED.pack(100_000, token, False)))
        while len(made.control) < 2:
            await asyncio.sleep(0.001)
        slots = {token: (token, offset, capacity) for _, token, offset, capacity in map(_slot, made.control)}
        made.theirs.sendall(made.reply(first, [Reply(error=Internal("no"))]))  # it has not used its slot
        await made.listener.reply()
        assert 100_000 <= made.budget.used < 200_000, "the slot of the second"
        made.theirs.sendall(made.reply(second, [output(100_000)], lambda b, n, u: slots[8]))
        reply = await made.listener.reply()
        assert reply.lease is not None
        reply.lease.release()


def _slot(control: bytes) -> tuple[int, int, int, int]:
    number, token, offset, capacity = SLOT.unpack_from(control, HEADER_SIZE)
    return number, token, offset, capacity


@played
async def test_reply_that_names_the_slot_of_another_batch_is_reported() -> None:
    async with peer(config(dims=-1)) as made:
        made.channel.execute(1, [request()])
        made.channel.execute(2, [request()])
        first = await made.receive()
        made.theirs.sendall(frame(FrameKind.NEED_OUTPUT, 2, NEED.pack(100_000, 8, False)))
        while not made.control:
            await asyncio.sleep(0.001)
        _, token, offset, capacity = _slot(made.control[0])
        made.theirs.sendall(made.reply(first, [output(100_000)], lambda b, n, u: (token, offset, capacity)))
        assert "broke the protocol" in await made.until_broken()


@played
async def test_time_limit_of_a_batch_starts_when_the_one_before_it_is_answered() -> None:
    async with peer() as made:
        made.link.timeout = 60.0
        made.channel.execute(1, [request()])
        made.channel.execute(2, [request()])
        first, second = made.channel._pending.values()
        assert first.timer is not None
        assert second.timer is None, "it does not run yet"
        assert made.channel.running() == 1
        made.theirs.sendall(made.reply(await made.receive(), [output(64)]))
        await made.listener.reply()
        assert second.timer is not None
        assert made.channel.running() == 2, "its time without progress counts from now"


@played
async def test_time_limit_of_a_batch_does_not_run_while_one_of_its_streams_is_paused() -> None:
    async with peer(config(decoupled=True)) as made:
        made.link.timeout = 0.05
        made.channel.set_paused(1, 0, True)  # before it is sent: it waits for the rate limiter
        made.channel.set_paused(1, 1, True)
        made.channel.execute(1, [request(), request()])
        made.channel.set_paused(1, 0, False)
        await asyncio.sleep(0.1)
        assert not made.broken
        made.theirs.sendall(made.reply(await made.receive(), [Reply(), Reply()]))
        assert 0.04 < (await made.listener.reply()).left <= 0.05
        made.channel.set_paused(1, 1, False)
        assert not made.channel.paused


@played
async def test_frames_that_no_worker_sends_are_reported() -> None:
    for wrong in (
        b"\xff" * 16,
        frame(FrameKind.REPLY, 2, bytes(100), 1),
        frame(FrameKind.REPLY, 1, bytes(100), 2),
        frame(FrameKind.REPLY, 1, b"", 1),
        frame(FrameKind.REPLY, 1, b"\xff" * 100, 1),
        frame(FrameKind.NEED_OUTPUT, 1, b""),
        frame(FrameKind.NEED_OUTPUT, 1, NEED.pack(10, 0, False)),
        frame(FrameKind.NEED_OUTPUT, 2, NEED.pack(10, 9, False)),
        frame(FrameKind.PARTIAL, 1, bytes(100), 1),
        frame(FrameKind.HELLO),
    ):
        async with peer() as made:
            made.channel.execute(1, [request()])
            made.theirs.sendall(wrong)
            assert "broke the protocol" in await made.until_broken(), wrong
            assert made.listener.idle()


@played
async def test_a_broken_response_does_not_keep_the_slot_that_it_asked_for() -> None:
    async with peer(config(decoupled=True)) as made:
        made.channel.execute(1, [request()])
        made.theirs.sendall(frame(FrameKind.NEED_OUTPUT, 0, NEED.pack(100_000, 7, False)))
        made.theirs.sendall(frame(FrameKind.PARTIAL, 1, PARTIAL_HEAD.pack(0, 0, 7, 4) + b"\xff" * 20, 1))
        assert "broke the protocol: replies cannot be read" in await made.until_broken()
        assert made.budget.used > 0  # the worker may still write there


@played
async def test_the_end_of_the_channel_is_reported() -> None:
    async with peer() as made:
        made.theirs.close()
        assert await made.until_broken() == "it closed its channel"
        made.channel.execute(1, [request()])


@played
async def test_partial_replies_of_a_decoupled_model() -> None:
    async with peer(config(decoupled=True)) as made:
        made.channel.execute(1, [request()])
        batch = await made.receive()
        room = OutputRoom(made.arena.view, 0, 0, lambda b, n, u: (0, 0, 0))
        for i in range(3):
            made.theirs.sendall(encode_partial(made.layout, 1, 0, output(64), i == 2, None, room))
        made.theirs.sendall(made.reply(batch, [Reply()]))
        finals = [(await made.listener.next())[2][3] for _ in range(3)]
        assert finals == [False, False, True]
        await made.listener.reply()


@played
async def test_a_refused_batch_of_a_worker_that_dies_meanwhile_is_not_answered_twice() -> None:
    async with peer() as made:
        made.channel.execute(1, [])
        made.channel.drain()
        made.channel.close()  # as when the worker has died; `on_lost` follows
        await asyncio.sleep(0)
        assert made.listener.idle()


@played
async def test_the_last_replies_of_a_dead_worker_say_that_its_instance_is_not_idle() -> None:
    async with peer() as made:
        made.channel.execute(1, [request()])
        batch = await made.receive()
        made.theirs.sendall(made.reply(batch, [output(64)]))
        made.theirs.close()
        made.channel.drain()
        assert (await made.listener.reply()).last


@played
async def test_times_that_cannot_be_are_put_in_order() -> None:
    async with peer() as made:
        made.channel.execute(1, [request()])
        batch = await made.receive()
        room = OutputRoom(made.arena.view, 0, 0, lambda b, n, u: (0, 0, 0))
        marks = (1 << 62, -5, 1 << 61)
        made.theirs.sendall(reply_frame(made.layout, batch.id, [output(64)], room, marks=marks))
        reply = await made.listener.reply()
        found = [reply.compute_start_ns, reply.input_end_ns, reply.output_start_ns, reply.end_ns]
        assert found == sorted(found)
        assert found[-1] <= time.monotonic_ns()
        assert found[0] > 0
