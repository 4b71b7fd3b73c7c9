"""A served version and its stand-in, and which version gets a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest

from edge_serve.config.model.model_config_pb2 import ModelConfig
from edge_serve.errors import NotFound
from edge_serve.messages.infer import SEQUENCE_END, SEQUENCE_START, InferRequest, InferResponse
from edge_serve.messages.signature import Signature
from edge_serve.messages.statistics import ComputeTimes
from edge_serve.messages.trace import Trace
from edge_serve.models.control.swap_queue import SwapQueue
from edge_serve.models.repository.override import KeptFiles
from edge_serve.models.run.runner import ANSWERED, OnResponse, Runner, Ticket
from edge_serve.models.run.statistics import new_statistics
from edge_serve.models.versions.served import Served, ServedVersions
from tests.observe.tracing.recorder import Collected


def test_a_stand_in_closes_nothing_of_the_version_that_it_stands_for() -> None:
    closed: list[str] = []
    signature = Signature("m", "1", "", 0, {}, {})
    runner, statistics = SwapQueue("m", 1), new_statistics()
    served = Served("m", "1", ModelConfig(name="m"), signature, runner, statistics)
    served.on_close.callback(closed.append, "m")
    stand_in = served.stand_in(SwapQueue("m", 1))
    for version in (served, stand_in):
        asyncio.run(version.on_close.aclose())
    assert closed == ["m"]


def test_the_files_of_a_load_request_stay_for_another_load_of_the_version(tmp_path: Path) -> None:
    signature = Signature("m", "1", "", 0, {}, {})
    served = Served("m", "1", ModelConfig(), signature, Counted(), new_statistics())
    with TemporaryDirectory(dir=tmp_path) as files:
        served.kept = KeptFiles(TemporaryDirectory(dir=files))
        stand_in = served.stand_in(Counted())
        assert served.kept is None
        assert stand_in.kept is not None
        stand_in.kept.cleanup()


class Counted(Runner):
    """A runner, or a cache, that counts the requests that it gets."""

    def __init__(self) -> None:
        self.requests = 0
        self.asked: list[tuple[InferRequest, OnResponse]] = []

    def submit(self, request: InferRequest, rows: int, shape_key: Hashable, on_response: OnResponse) -> Ticket:
        self.requests += 1
        self.asked.append((request, on_response))
        return ANSWERED

    def stop(self, on_idle: Callable[[], None], *, sequences: bool = False) -> None:
        raise NotImplementedError

    def in_flight(self) -> int:
        return 0


def test_the_cache_gets_requests_until_the_version_leaves_or_is_swapped() -> None:
    runner, cache, waiting = Counted(), Counted(), Counted()
    signature = Signature("m", "1", "", 0, {}, {})
    served = Served("m", "1", ModelConfig(name="m"), signature, runner, new_statistics())
    served.cache = cache
    served.submit(InferRequest("m"), lambda response: None)
    stand_in = served.stand_in(waiting)
    stand_in.submit(InferRequest("m"), lambda response: None)
    served.leaving = True
    served.submit(InferRequest("m"), lambda response: None)
    assert (cache.requests, waiting.requests, runner.requests) == (1, 1, 1)
    assert stand_in.series().cache_enabled


def test_a_request_is_a_part_of_a_trace_until_its_last_answer() -> None:
    recorder, runner, heard = Collected(), Counted(), list[InferResponse]()
    trace = Trace(1, recorder, timestamps=True, tensors=False)
    signature = Signature("step", "3", "", 0, {}, {})
    served = Served("step", "3", ModelConfig(), signature, runner, new_statistics())
    request = InferRequest("step", id="r", compute=ComputeTimes())

    assert served.submit_part(request, heard.append, trace) is ANSWERED
    trace.release()
    ((asked, tell),) = runner.asked
    tell(InferResponse("step", "3", final=False))
    assert recorder.traces == []
    tell(InferResponse("step", "3"))

    assert asked is request
    assert len(heard) == 2
    assert recorder.traces == [trace]
    part = trace.group[1]
    assert (part.parent_id, part.model_name, part.model_version, part.request_id) == (1, "step", "3", "r")
    assert [name for name, _ in part.timestamps or ()] == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]


class Sequences(Runner):
    """A runner with these open sequences."""

    def __init__(self, *ids: int) -> None:
        self.ids = set(ids)
        self.ignored = False

    def submit(self, request: InferRequest, rows: int, shape_key: Hashable, on_response: OnResponse) -> Ticket:
        raise NotImplementedError

    def stop(self, on_idle: Callable[[], None], *, sequences: bool = False) -> None:
        raise NotImplementedError

    def in_flight(self) -> int:
        return 0

    def has_sequence(self, correlation_id: int | str) -> bool:
        return correlation_id in self.ids

    def open_sequences(self) -> int:
        return len(self.ids)

    def end_sequence(self, correlation_id: int | str) -> None:
        self.ids.discard(cast(int, correlation_id))

    def ignore_sequences(self) -> None:
        self.ignored = True


@dataclass(eq=False)
class Version:
    runner: Sequences
    version: str = "1"
    identity: str = field(default="m")


def version(*ids: int, number: str = "1", identity: str = "m") -> Served:
    return cast(Served, Version(Sequences(*ids), number, identity))


def table() -> ServedVersions:
    def find(name: str, version: str) -> Served:
        raise NotFound(name)

    return ServedVersions(find)


def test_the_highest_version_is_looked_up_and_any_other_is_asked_for() -> None:
    others = {("m", "1"): version(), ("ns::m", ""): version()}
    serving, highest = ServedVersions(lambda *asked: others[asked]), version(number="2")
    serving.highest["m"] = highest
    assert serving.lookup("m", "") is highest
    assert serving.lookup("m", "1") is others["m", "1"]
    assert serving.lookup("ns::m", "") is others["ns::m", ""]
    with pytest.raises(NotFound):
        table().lookup("m", "")


def test_only_a_version_with_open_sequences_drains() -> None:
    serving, now = table(), version()
    assert not serving.drain(version())
    old = version(7)
    assert serving.drain(old)
    assert serving.drain(old), "adding it again changes nothing"
    serving.remove(old)
    assert serving.sequence_version(now, "", 7, 0) is now


def test_a_request_reaches_the_version_that_started_its_sequence() -> None:
    serving, old, now, other = table(), version(7), version(8), version(identity="other")
    serving.highest["m"] = now
    serving.drain(old)
    assert serving.lookup("m", "", 7) is old
    assert serving.sequence_version(now, "", 7, 0) is old
    assert serving.sequence_version(now, "", 7, SEQUENCE_END) is old
    assert serving.sequence_version(now, "1", 7, 0) is old
    assert serving.sequence_version(now, "2", 7, 0) is now, "the request names another version"
    assert serving.sequence_version(now, "", 8, 0) is now, "the version that serves has it"
    assert serving.sequence_version(now, "", 9, 0) is now
    assert serving.sequence_version(other, "", 7, 0) is other


def test_of_two_replaced_versions_with_one_id_the_last_one_gets_the_request() -> None:
    serving, older, old = table(), version(7), version(7, 8)
    serving.drain(older)
    serving.drain(old)
    assert serving.sequence_version(version(), "", 7, 0) is old
    assert serving.draining("m", "1") is old
    assert serving.draining("m", "2") is None
    serving.remove(old)
    assert serving.sequence_version(version(), "", 7, 0) is older


def test_a_start_reaches_the_serving_version_and_ends_the_old_sequence() -> None:
    serving, old, now = table(), version(7, 8), version()
    serving.drain(old)
    assert serving.sequence_version(now, "", 7, SEQUENCE_START) is now
    assert not old.runner.has_sequence(7)
    assert old.runner.has_sequence(8)


def test_an_unloaded_model_does_not_wait_for_its_sequences() -> None:
    serving, old, now = table(), version(7), version()
    serving.drain(old)
    serving.remove_all("m")
    assert cast(Sequences, old.runner).ignored
    assert serving.sequence_version(now, "", 7, 0) is now
