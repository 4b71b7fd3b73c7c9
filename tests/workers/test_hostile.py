"""Frames of every kind from a hostile worker: they cost that worker its life, or nothing. Seeded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from edge_serve.errors import EdgeServeError, NotFound
from edge_serve.messages.infer import InferRequest
from edge_serve.models.extras.calls import ModelCalls
from edge_serve.models.versions.served import Served
from edge_serve.observe.metrics.custom import CustomMetrics
from edge_serve.workers.front.bls_broker import BlsBroker, Caller
from edge_serve.workers.front.workers import Hooks, ProcessLimits
from edge_serve.workers.wire.calls import CALL_HEAD
from edge_serve.workers.wire.frames import (
    ANSWER,
    FINAL,
    HEADER,
    LONGEST,
    NEED,
    NULL,
    PARTIAL_HEAD,
    REPLY_HEAD,
    VERSION,
    Frame,
    FrameError,
    FrameKind,
    frame,
)
from edge_serve.workers.wire.layout import TENSOR
from tests.examples import seeds
from tests.stories import played
from tests.workers.front.test_channel import peer
from tests.workers.harness import config, request, run, serving
from tests.workers.hostile import Plan, Said, run_hostile_processes

#: of the tests that start no process
MANY = 3000
LIMITS = ProcessLimits(hello=5, load=1, close=0.5)
EXECUTE = FrameKind.EXECUTE.value
DATA = (FrameKind.REPLY, FrameKind.REPLY, FrameKind.PARTIAL, FrameKind.PARTIAL, FrameKind.NEED_OUTPUT)
CONTROL = (
    FrameKind.OPENED, FrameKind.FAILED, FrameKind.CLOSED, FrameKind.HEALTH_REPLY, FrameKind.LOG,
    FrameKind.METRIC, FrameKind.CALL, FrameKind.INFER, FrameKind.INFER,
    FrameKind.INFER_CANCEL, FrameKind.INFER_FREE, FrameKind.INFER_REST,
)  # fmt: skip
NUMBERS = (0, 1, 2, 7, 255, 4096, 65535, 1 << 20, (1 << 31) - 1, (1 << 32) - 1)
LARGE = (*NUMBERS, 1 << 40, (1 << 63) - 1)
TEXTS = ("", "m", "echo", "memory", "load_model", "unload_model", "is_model_ready", "\ud800", "\0", "x" * 5000, "\n")
NAMES = (
    "do", "model", "nbytes", "model_name", "config", "files", "version", "unload_dependents", "level", "text",
    "name", "description", "kind", "labels", "operation", "value", "bounds", "code", "ready", "outputs", "id",
    "correlation_id", "flags", "timeout_us", "parameters", "names", "trace", "personal", "stored", "seats",
)  # fmt: skip


class Dice(random.Random):
    """Makes frames that a worker must not send, and some that it may."""

    def value(self, depth: int = 0) -> Any:
        """Anything that JSON can say."""
        match self.randrange(9 if depth < 3 else 7):
            case 0:
                return self.choice((None, True, False))
            case 1:
                return self.choice((-1, *LARGE, -(1 << 63), 10**30))
            case 2:
                return self.choice((0.5, -1e300, float("nan"), float("inf")))
            case 7:
                return [self.value(depth + 1) for _ in range(self.randrange(4))]
            case 8:
                return self.object(depth + 1)
            case _:
                return self.choice(TEXTS)

    def object(self, depth: int = 0) -> dict[str, Any]:
        names = [*self.sample(NAMES, self.randrange(8)), *(("do", "name", "model_name") if self.random() < 0.3 else ())]
        return {name: self.value(depth) for name in names}

    def blocks(self) -> bytes:
        """Descriptions of tensors."""
        made = b""
        for _ in range(self.randrange(3)):
            rank = self.choice((0, 1, 2, 3, 255))
            dims = [self.choice((0, 1, 16, -1, 1 << 40)) for _ in range(rank)]
            numbers = (self.randrange(17), self.choice((0, 1, 2, 0xFFFF)), self.randrange(3))
            made += TENSOR[rank].pack(rank, *numbers, self.choice(LARGE), self.choice((0, 64, *LARGE)), *dims)
        right = TENSOR[2].pack(2, 8, 0, 0, 0, 64, 1, 16)
        return made if self.random() < 0.2 else right

    def answers(self, count: int) -> bytes:
        made = b""
        for _ in range(count):
            extra = self.choice((b"", b"", b"no", json.dumps(self.object()).encode(), _extra(self), _extra(self)))
            block = self.blocks()
            failed = self.choice((0, 0, 0, 0, 0, 0, 1, 2, 0x101, 0x200, 0xFFFFFFFF))
            sizes = (len(extra), len(block)) if self.random() < 0.95 else (self.choice(NUMBERS), self.choice(NUMBERS))
            made += ANSWER.pack(failed, *sizes, 0 if self.random() < 0.9 else self.choice(NUMBERS)) + extra + block
        return made

    def payload(self, kind: int) -> bytes:
        if self.random() < 0.15:
            return self.randbytes(self.choice((0, 1, 15, 16, 100, 5000)))
        if kind == FrameKind.REPLY:
            marks = [self.choice((0, 1, -1, (1 << 63) - 1, -(1 << 63))) for _ in range(4)]
            body = self.answers(2)
            meta = len(body) if self.random() < 0.95 else self.choice(NUMBERS)
            return REPLY_HEAD.pack(*marks, self.choice((0, 0, 0, 1)), meta) + body + bytes(64)
        if kind == FrameKind.PARTIAL:
            body, flags = self.answers(1), self.choice((0, FINAL, NULL, FINAL | NULL, 0xFF))
            return PARTIAL_HEAD.pack(self.choice((0, 1, *NUMBERS)), flags, self.choice((0, 1)), len(body)) + body
        if kind == FrameKind.NEED_OUTPUT:
            return NEED.pack(self.choice(LARGE), self.choice(NUMBERS), self.choice((False, True)))
        if kind == FrameKind.INFER:
            text, block = json.dumps(self.call()).encode(), self.blocks()
            sizes = (len(text), len(block)) if self.random() < 0.8 else (self.choice(NUMBERS), self.choice(NUMBERS))
            return CALL_HEAD.pack(self.choice((0, 1, 9)), self.choice((0, 1)), self.randrange(4), *sizes) + text + block
        if kind == FrameKind.INFER_REST:
            return b"".join(struct.pack("<QQ", self.choice((0, 1)), self.choice((0, 1))) for _ in range(3))
        return json.dumps(self.object() if self.random() < 0.9 else self.value()).encode()

    def call(self) -> dict[str, Any]:
        right = {
            "model": "m", "version": -1, "outputs": [], "id": "", "correlation_id": 0, "flags": 0, "timeout_us": 0,
            "parameters": {}, "names": [],
        }  # fmt: skip
        return {**right, **{name: self.value() for name in self.sample(sorted(right), self.randrange(3))}}

    def said(self, moment: int) -> Said:
        usual = DATA if moment == EXECUTE else CONTROL
        kind = int(self.choice(usual if self.random() < 0.8 else (*FrameKind, 0, 13, 43, 255)))
        data = self.payload(kind)
        match self.randrange(8):
            case 0:  # a header that is none
                return HEADER.pack(self.choice(NUMBERS), self.choice((0, VERSION, 9)), kind, 0, 0)
            case 1:
                return HEADER.pack(LONGEST + 1, VERSION, kind, 0, 0)
            case 2:  # cut off, and what follows is read as the rest
                return frame(kind, 1, data)[: -self.randrange(1, 9)]
            case 3 | 4:
                return frame(kind, self.choice((-1, 0, 1, 2, 3, *LARGE)), data, self.choice((0, 1, 2, 65535)))
            case _:
                return kind, data

    def plan(self) -> Plan:
        moments = [EXECUTE, EXECUTE, EXECUTE, 0, FrameKind.OPEN, FrameKind.HEALTH, FrameKind.CLOSE]
        return {moment: [self.said(moment) for _ in range(self.randrange(1, 4))] for moment in self.sample(moments, 2)}


def _extra(dice: Dice) -> bytes:
    stored = [[0, "OUTPUT0", 8, [1, 16], dice.choice((64, *LARGE, 1 << 70))]]
    parameters = {"p": dice.value()}
    told = {"parameters": parameters, "names": ["a", "b"], "personal": False, "stored": stored}
    return json.dumps({**told, **dice.choice(({}, {"names": 5}, {"stored": dice.value()}))}).encode()


class Nothing:
    """A repository that holds nothing."""

    def load_model(self, name: str, parameters: Any, done: Any, *, nested: bool) -> None:
        done(NotFound(f"no model '{name}'"))

    def start_unload(self, name: str, unload_dependents: bool, done: Any) -> None:
        done(NotFound(f"no model '{name}'"))

    def model_ready(self, name: str, version: str) -> bool:
        raise NotFound(f"no model '{name}'")


def _lookup(name: str, version: str, correlation_id: int | str = 0, flags: int = 0) -> Served:
    raise NotFound(f"no model '{name}'")


@pytest.mark.parametrize("decoupled", [False, True])
@seeds(8, 25)
def test_frames_of_a_hostile_worker_cost_that_worker_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, seed: int, decoupled: bool
) -> None:
    run_hostile_processes(monkeypatch, tmp_path, Dice(seed).plan(), {})
    custom = CustomMetrics()

    @played
    async def work() -> None:
        calls = ModelCalls(_lookup, Nothing())
        hooks = Hooks(custom.apply, custom.gone, calls.control, calls.infer, calls.report_idle)
        try:
            async with serving(tmp_path, config(decoupled=decoupled), limits=LIMITS, hooks=hooks) as served:
                await served.model.refusal(0.2)
                served.send(*[InferRequest("echo", inputs=request().inputs)] * 2)
                await asyncio.sleep(0.05)
                while not served.listener.idle():
                    _release(*await served.listener.next())
        except EdgeServeError:  # it did not open
            pass

    with caplog.at_level(logging.INFO):
        work()
    assert [record for record in caplog.records if record.exc_info] == []
    for line in caplog.messages:
        line.encode()
    for family in custom.families():
        repr(family).encode()


@pytest.mark.parametrize("seats", [None, [], [2, 2], ["2"], [0], [True], {"0": 2}])
@played
async def test_worker_that_answers_with_other_seats_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seats: object
) -> None:
    answer = json.dumps({"seats": seats}).encode()
    run_hostile_processes(monkeypatch, tmp_path, {FrameKind.OPEN: [(FrameKind.OPENED, answer)]})
    with pytest.raises(EdgeServeError, match="broke the protocol: found other seats than a number for each"):
        async with serving(tmp_path, limits=LIMITS):
            pass


def _release(kind: str, _: int, event: Any) -> None:
    """Do as a driver does: what has a reply can be read and written, and its memory is given back."""
    lease = event.lease if kind == "reply" else event[4] if kind == "partial" else None
    replies = event.replies if kind == "reply" else [event[2]] if kind == "partial" and event[2] is not None else []
    for reply in replies:
        for tensor in reply.outputs:
            assert len(tensor.data) < 1 << 45
        for value in reply.parameters.values():
            assert isinstance(value, (str, int, float))
    if kind == "reply":
        marks = (event.compute_start_ns, event.input_end_ns, event.output_start_ns, event.end_ns)
        assert 0 < marks[0] <= marks[1] <= marks[2] <= marks[3]
    if lease is not None:
        lease.release()


@pytest.mark.parametrize("count", [1000, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("decoupled", [False, True])
@played
async def test_a_data_channel_reads_a_reply_or_closes(decoupled: bool, count: int) -> None:
    replies = 0
    for seed in range(count):
        dice = Dice(seed)
        async with peer(config(decoupled=decoupled)) as made:
            made.channel.execute(1, [InferRequest("echo", inputs=request().inputs)] * 2)
            for _ in range(3):
                said = dice.said(EXECUTE)
                made.theirs.send(said if isinstance(said, bytes) else frame(said[0], 1, said[1], 2))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            while not made.listener.idle():
                event = await made.listener.next()
                replies += event[0] == "reply"
                _release(*event)
    assert replies > count // 100, "the frames are not all nonsense"


def test_a_broker_takes_a_control_frame_or_raises_a_frame_error() -> None:
    custom, sent = CustomMetrics(), list[bytes]()

    async def work() -> None:
        calls = ModelCalls(_lookup, Nothing())
        hooks = Hooks(custom.apply, custom.gone, calls.control, calls.infer, calls.report_idle)
        async with peer(config()) as made:
            caller = Caller(made.arena, made.listener, [made.channel])
            for seed in range(MANY):
                dice = Dice(seed)
                broker = BlsBroker(sent.append, {1: caller}.get, hooks, set(), set())
                for _ in range(3):
                    kind = int(dice.choice(CONTROL))
                    received = Frame(kind, dice.choice((0, 1, 2)), dice.choice((1, 2, *LARGE)), dice.payload(kind))
                    with contextlib.suppress(FrameError):
                        if kind == FrameKind.METRIC:
                            custom.apply(received.json())
                        else:
                            broker.on_frame(received)
                broker.hang_up()
                broker.release_slots()

    run(work())
    assert len(sent) > MANY // 20, "the frames are not all nonsense"
    for family in custom.families():
        repr(family).encode()
