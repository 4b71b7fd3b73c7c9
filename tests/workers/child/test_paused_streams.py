"""Streams that are paused: who waits, and what ends it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

import pytest

from edge_serve.workers.child.paused_streams import PausedStreams
from edge_serve.workers.front.workers import ProcessLimits
from tests.stories import played
from tests.workers.harness import PATIENCE, Served, config, request, run, serving, survives


class Waiter:
    """A sender in a thread of its own."""

    def __init__(self, streams: PausedStreams, key: int) -> None:
        self.told: bool | None = None
        self._thread = threading.Thread(target=self._wait, args=(streams, key), daemon=True)
        self._thread.start()

    def _wait(self, streams: PausedStreams, key: int) -> None:
        self.told = streams.wait(key, False)

    def ended(self) -> bool | None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "it waits for ever"
        return self.told


def test_a_stream_that_is_not_paused_delays_no_sender() -> None:
    streams = PausedStreams()
    streams.pause(1)

    assert streams.wait(2, False)
    streams.resume(1)
    assert streams.wait(1, False)
    assert not streams.paused


@pytest.mark.parametrize("end", ["resume", "close"])
def test_all_senders_of_a_paused_stream_wait_until_it_resumes_or_ends(end: str) -> None:
    streams = PausedStreams()
    streams.pause(7)
    streams.pause(7)
    waiters = [Waiter(streams, 7) for _ in range(3)]
    assert [waiter.told for waiter in waiters] == [None] * 3

    if end == "resume":
        streams.resume(7)
    else:
        streams.close()

    assert [waiter.ended() for waiter in waiters] == [end == "resume"] * 3


def test_the_last_response_does_not_wait() -> None:
    streams = PausedStreams()
    streams.pause(1)

    assert streams.wait(1, True)


def test_responses_paused_at_the_close_are_never_sent() -> None:
    streams = PausedStreams()
    streams.pause(1)
    streams.close()
    streams.pause(2)

    assert not streams.wait(1, False)
    assert not streams.wait(1, True)  # the end of what has a gap would look like a good one
    assert streams.wait(2, False)


def test_a_stream_that_is_held_again_at_once_waits_again() -> None:
    streams = PausedStreams()
    for _ in range(200):
        streams.pause(1)
        waiter = Waiter(streams, 1)
        streams.resume(1)
        streams.pause(1)
        streams.resume(1)
        assert waiter.ended() is True


# ---- in a worker ------------------------------------------------------------------------------------------------


async def paused(served: Served, row: range = range(16)) -> int:
    """A request of three responses whose stream is paused before the first of them; its batch."""
    served.model.set_paused(0, 1, 0, True)
    assert not await served.model.refusal(PATIENCE)  # it was read after that
    batch = served.send(request(row, do="partials", times=3))
    assert not await served.model.refusal(PATIENCE)
    assert served.listener.idle()
    return batch


@pytest.mark.parametrize("row", [range(16), range(20_000)])
@played
async def test_a_paused_stream_sends_nothing_until_it_resumes(tmp_path: Path, row: range) -> None:
    async with serving(tmp_path, config(dims=-1, decoupled=True)) as served:
        batch = await paused(served, row)
        served.model.set_paused(0, batch, 0, False)
        for number in range(3):
            kind, _, (batch_id, _, reply, _, lease) = await served.listener.next()
            assert (kind, batch_id, reply.parameters) == ("partial", batch, {"number": number})
            if lease is not None:
                lease.release()
        await served.listener.reply()


@played
async def test_other_instances_and_streams_go_on_meanwhile(tmp_path: Path) -> None:
    async with serving(tmp_path, config(dims=-1, decoupled=True), instances=2) as served:
        batch = await paused(served)
        other = served.send(request(do="partials", times=2), instance=1)
        assert [(await served.listener.next())[2][0] for _ in range(2)] == [other, other]
        await served.listener.reply(1)
        assert served.listener.idle()
        served.model.set_paused(0, batch, 0, False)
        assert [(await served.listener.next())[2][3] for _ in range(3)] == [False, False, True]
        await served.listener.reply()


def test_a_model_is_closed_while_a_stream_of_it_is_held(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`serving` closes it, which is limited by more than `run` is."""

    async def work() -> None:
        async with serving(tmp_path, config(decoupled=True), limits=ProcessLimits(close=3 * PATIENCE)) as served:
            await paused(served)
            listener = served.listener
        while not listener.idle():  # a response that is the last would end the stream as if it were whole
            assert (await listener.next())[0] == "reply"

    run(work())
    assert "was killed" not in caplog.text


@played
async def test_a_worker_dies_while_a_stream_of_it_is_held(tmp_path: Path) -> None:
    async with serving(tmp_path, config(decoupled=True)) as served:
        await paused(served)
        os.kill(served.model.pids()[0], signal.SIGKILL)
        await served.listener.lost()
        served.model.set_paused(0, 1, 0, False)  # nobody is there to be told
        await survives(served)


@played
async def test_a_batch_whose_stream_is_held_is_not_out_of_time(tmp_path: Path) -> None:
    async with serving(tmp_path, config(decoupled=True, execution_timeout_ms="300")) as served:
        batch = await paused(served)
        await asyncio.sleep(0.5)
        served.model.set_paused(0, batch, 0, False)
        assert [(await served.listener.next())[0] for _ in range(4)] == [*["partial"] * 3, "reply"]
