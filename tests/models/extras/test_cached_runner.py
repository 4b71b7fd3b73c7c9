"""A version with a response cache: what is a hit, what is counted, and what must never be answered from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any

import pytest

from edge_serve.errors import Cancelled, EdgeServeError, InvalidArgument, Unavailable
from edge_serve.messages.infer import InferRequest, InferResponse, Parameter, RequestedOutput
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.tensors import Buffer, DataType, InferTensor, Shape, Unseen
from edge_serve.models.extras.cached_runner import MOST_INPUT_BYTES, CachedRunner
from edge_serve.models.extras.response_cache import ResponseCache
from edge_serve.models.run.runner import OnResponse, Runner
from edge_serve.models.run.statistics import new_statistics
from tests.leases import Slot

SIGNATURE = Signature(
    "m", "1", "", 0, {"IN": TensorSpec("IN", DataType.INT32, (-1,))},
    {name: TensorSpec(name, DataType.INT32, (-1,)) for name in ("A", "B")},
)  # fmt: skip


class Ticks:
    """A clock that moves by 10 ns at each look."""

    now = 0

    def now_ns(self) -> int:
        self.now += 10
        return self.now


class Model(Runner):
    """A runner that answers when the test says so, each time with a new number."""

    def __init__(self) -> None:
        self.asked: list[tuple[InferRequest, OnResponse]] = []
        self.runs = 0
        self.cancelled = 0

    def submit(self, request: InferRequest, rows: int, shape_key: Hashable, on_response: OnResponse) -> Model:
        self.asked.append((request, on_response))
        return self

    def cancel(self) -> None:
        self.cancelled += 1

    def set_paused(self, paused: bool) -> bool:
        return False

    def jobs(self) -> tuple[()]:
        return ()

    def stop(self, on_idle: Callable[[], None], *, sequences: bool = False) -> None:
        raise NotImplementedError

    def in_flight(self) -> int:
        return len(self.asked)

    def answer(
        self,
        position: int = 0,
        error: EdgeServeError | None = None,
        parameters: dict[str, Parameter] | None = None,
        personal: bool = False,
    ) -> bytearray:
        """Answer one request; the memory of its outputs, which the model then uses for something else."""
        request, on_response = self.asked.pop(position)
        self.runs += 1
        memory = bytearray(self.runs.to_bytes(4, "little"))
        wanted = [output.name for output in request.outputs] or ["A", "B"]
        outputs = (
            [InferTensor(name, DataType.INT32, (1,), memoryview(memory)) for name in wanted] if error is None else []
        )
        on_response(
            InferResponse("m", "1", request.id, outputs, parameters or {}, error, lease=Slot(), personal=personal)
        )
        return memory


class World:
    """A cached model and what its clients got."""

    def __init__(self, size: int = 1 << 20, **options: Any) -> None:
        self.cache = ResponseCache(size)
        self.model = Model()
        self.statistics = new_statistics(summaries=True)
        self.got: list[InferResponse] = []
        self.runner = self.loaded(**options)

    def loaded(self, personal: bool = False, **options: Any) -> CachedRunner:
        """The same model loaded once more."""
        return CachedRunner(
            self.model, SIGNATURE, self.statistics, self.cache, Ticks(), personal=personal, **options
        )  # fmt: skip

    def ask(self, *values: int, shape: Shape = (), wanted: tuple[str, ...] = (), **fields: Any) -> Any:
        data = b"".join(value.to_bytes(4, "little") for value in values)
        request = InferRequest("m", inputs=[InferTensor("IN", DataType.INT32, shape or (len(values),), data)], **fields)
        request.outputs = [RequestedOutput(name) for name in wanted]
        return self.runner.submit(request, 1, None, self.got.append)

    def run(self, *values: int, personal: bool = False, **fields: Any) -> int:
        """Ask, let the model answer where it must, and tell which of its runs the answer is from."""
        self.ask(*values, **fields)
        memory = self.model.answer(personal=personal) if self.model.asked else bytearray(4)
        number = int.from_bytes(bytes(self.got[-1].outputs[0].data), "little")
        memory[:] = b"used"
        return number

    @property
    def counts(self) -> tuple[int, int]:
        """Hits and misses."""
        return self.statistics.cache_hit.count, self.statistics.cache_miss.count


def test_an_equal_request_is_answered_without_the_model() -> None:
    world = World()
    world.ask(7, id="first")
    world.model.answer()[:] = b"used"
    world.ask(7, id="second")

    assert not world.model.asked
    assert (world.got[1].id, world.got[1].model_name, world.got[1].model_version) == ("second", "m", "1")
    assert [(one.name, bytes(one.data)) for one in world.got[1].outputs] == [
        ("A", b"\1\0\0\0"),
        ("B", b"\1\0\0\0"),
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"values": (1,)}, {"values": (2,)}),
        ({"values": (1, 2)}, {"values": (1, 2), "shape": (2, 1)}),
        ({"values": (1, 2)}, {"values": (1, 2), "shape": (1, 2)}),
        ({"values": (1,), "wanted": ("A",)}, {"values": (1,), "wanted": ("B",)}),
        ({"values": (1,), "wanted": ("A",)}, {"values": (1,)}),
    ],
)
def test_requests_that_differ_are_both_run(first: dict[str, Any], second: dict[str, Any]) -> None:
    world = World()
    runs = [world.run(*ask.pop("values"), **ask) for ask in (dict(first), dict(second), dict(first), dict(second))]

    assert runs == [1, 2, 1, 2]


def test_types_and_names_of_inputs_count_as_well_as_their_bytes() -> None:
    world = World()
    variants = [("IN", DataType.INT32), ("IN", DataType.UINT32), ("IN", DataType.FP32), ("OTHER", DataType.INT32)]
    for _ in range(2):
        for name, datatype in variants:
            request = InferRequest("m", inputs=[InferTensor(name, datatype, (1,), b"\0\0\0\0")])
            world.runner.submit(request, 1, None, world.got.append)
            if world.model.asked:
                world.model.answer()

    assert world.model.runs == len(variants)


def test_the_order_of_inputs_counts_and_bytes_never_slip_from_one_to_the_next() -> None:
    world = World()

    def ask(*inputs: tuple[str, bytes]) -> None:
        tensors = [InferTensor(name, DataType.BYTES, (1,), data) for name, data in inputs]
        world.runner.submit(InferRequest("m", inputs=tensors), 1, None, world.got.append)
        if world.model.asked:
            world.model.answer()

    ask(("X", b"a"), ("Y", b"bc"))
    ask(("Y", b"bc"), ("X", b"a"))  # `inputs()[0]` of a Python model is another tensor
    ask(("X", b"ab"), ("Y", b"c"))
    ask(("XY", b"abc"))
    assert world.model.runs == 4
    ask(("Y", b"bc"), ("X", b"a"))
    assert world.model.runs == 4


def test_an_answer_with_all_outputs_serves_requests_for_some_and_gives_no_more() -> None:
    world = World()
    world.run(1)
    world.ask(1, wanted=("B",))
    world.ask(1, wanted=("B", "A"))

    assert not world.model.asked
    assert [[one.name for one in response.outputs] for response in world.got[1:]] == [["B"], ["A", "B"]]


def test_parameters_count_from_the_time_that_the_model_looks_at_them() -> None:
    world = World()
    assert world.run(1, parameters={"a": 1}) == world.run(1, parameters={"a": 2}) == 1
    assert world.run(2, parameters={"a": 1}, personal=True) == 2
    assert world.run(2, parameters={"a": 2}, personal=True) == 3
    assert world.run(2, parameters={"a": 1}) == 2
    assert world.run(2, parameters={"a": True}, personal=True) == 4
    assert world.run(2, correlation_id=5, parameters={"a": 1}, personal=True) == 5
    assert world.run(1, parameters={"a": 3}) == 1  # for this input it did not look


def test_parameters_count_where_the_model_does_not_say_whether_it_read_them() -> None:
    world = World(personal=True)

    assert [world.run(1, parameters={"a": a}) for a in (1, 2, 1)] == [1, 2, 1]


def test_priority_timeout_and_id_do_not_count() -> None:
    world = World(personal=True)

    assert [world.run(1), world.run(1, priority=3), world.run(1, timeout_us=9), world.run(1, id="x")] == [1] * 4


@pytest.mark.parametrize(
    ("error", "counted"), [(InvalidArgument("no"), 1), (Unavailable("later"), 0), (Cancelled(""), 0)]
)
def test_errors_are_not_kept(error: EdgeServeError, counted: int) -> None:
    world = World()
    world.ask(1)
    world.model.answer(error=error)

    assert world.counts == (0, counted)
    assert world.run(1) == 2


def test_answers_to_a_client_that_disconnected_are_not_cached() -> None:
    world = World()
    world.ask(1).cancel()
    world.model.answer()

    assert (world.model.cancelled, len(world.cache)) == (1, 0)


def test_a_version_that_is_loaded_again_starts_with_nothing_and_leaves_nothing() -> None:
    world = World()
    world.run(1)
    before, world.runner = world.runner, world.loaded()

    assert world.run(1) == 2
    before.close()
    world.runner.close()
    assert world.cache.used == 0


def test_a_hit_gives_the_requests_memory_back() -> None:
    world, slot = World(), Slot()
    world.run(1)
    world.ask(1, lease=slot)

    assert slot.released == 1


def test_a_caller_may_change_its_response() -> None:
    world = World()
    world.run(1)
    world.ask(1)
    world.got[-1].outputs[0].shape = (1, 1)
    world.got[-1].parameters["mine"] = 1
    world.ask(1)

    assert list(world.got[-1].outputs[0].shape) == [1]
    assert not world.got[-1].parameters


@pytest.mark.parametrize(("keep", "expected"), [(True, {"p": 1}), (False, {})])
def test_parameters_of_a_models_answer_are_cached_but_not_an_ensembles(keep: bool, expected: object) -> None:
    world = World(keep_parameters=keep)
    world.ask(1)
    world.model.answer(parameters={"p": 1})
    world.ask(1)

    assert world.got[-1].parameters == expected


def test_hits_and_misses_are_counted_as_triton_does() -> None:
    world = World()
    world.run(1)
    world.run(1)
    statistics = world.statistics

    assert world.counts == (1, 1)
    assert (statistics.success.count, statistics.queue.count) == (1, 1)  # of the hit; the driver counts the other
    assert (statistics.inference_count, statistics.execution_count, statistics.last_inference_ms) == (0, 0, 0)
    assert statistics.success.ns == statistics.cache_hit.ns + statistics.cache_miss.ns
    assert [len(recent or ()) for recent in (statistics.recent_hits, statistics.recent_misses)] == [1, 1]


def test_an_equal_request_that_ran_beside_the_first_is_neither_hit_nor_miss() -> None:
    world = World()
    world.ask(1)
    world.ask(1)
    world.model.answer()
    world.model.answer()

    assert world.counts == (0, 1)


def test_answers_keep_their_order_where_that_is_asked_for() -> None:
    world = World(ordered=True)
    world.run(1)
    world.ask(2, id="slow")
    world.ask(1, id="hit")
    assert len(world.got) == 1
    world.model.answer()

    assert [response.id for response in world.got[1:]] == ["slow", "hit"]


@pytest.mark.parametrize(("data", "shared"), [(bytes(MOST_INPUT_BYTES + 1), False), (Unseen.buffer(1), True)])
def test_very_large_requests_and_a_clients_memory_bypass_the_cache(data: Buffer, shared: bool) -> None:
    world = World()
    for _ in range(2):
        request = InferRequest("m", inputs=[InferTensor("IN", DataType.UINT8, (1,), data)], shared=shared)
        world.runner.submit(request, 1, None, world.got.append)
        world.model.answer()

    assert (world.model.runs, world.counts) == (2, (0, 0))


def test_an_answer_larger_than_the_cache_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World(size=10)

    assert [world.run(1), world.run(1)] == [1, 2]
    assert len(caplog.records) == 1
    assert "takes more than 10 bytes" in caplog.text


def test_a_version_with_many_responses_is_closed_in_turns_of_the_event_loop() -> None:
    world = World(4 << 20)
    for number in range(2500):
        world.run(number)

    async def close() -> list[int]:
        left = []
        world.runner.close()
        while len(world.cache):
            left.append(len(world.cache))
            await asyncio.sleep(0)
        return left

    assert asyncio.run(close()) == [1500, 500]
    assert world.cache.used == 0
