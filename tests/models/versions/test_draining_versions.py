"""Replaced versions with open sequences: which version gets a request of a sequence."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import cast

from edge_serve.messages.infer import SEQUENCE_END, SEQUENCE_START, InferRequest
from edge_serve.models.run.runner import OnResponse, Runner, Ticket
from edge_serve.models.versions.draining_versions import DrainingVersions
from edge_serve.models.versions.served import Served


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


def version(*ids: int, number: str = "1") -> Served:
    return cast(Served, Version(Sequences(*ids), number))


def test_only_a_version_with_open_sequences_is_added() -> None:
    draining = DrainingVersions()
    assert not draining.add(version())
    assert not draining
    old = version(7)
    assert draining.add(old)
    assert draining.add(old), "adding it again changes nothing"
    assert draining
    draining.remove(old)
    assert not draining


def test_a_request_goes_to_the_version_that_started_its_sequence() -> None:
    draining, old, now = DrainingVersions(), version(7), version(8)
    draining.add(old)
    assert draining.find("m", "", 7, 0, now) is old
    assert draining.find("m", "", 7, SEQUENCE_END, now) is old
    assert draining.find("m", "1", 7, 0, now) is old
    assert draining.find("m", "2", 7, 0, now) is None, "the request names another version"
    assert draining.find("m", "", 8, 0, now) is None, "the version that serves has it"
    assert draining.find("m", "", 9, 0, now) is None
    assert draining.find("other", "", 7, 0, now) is None


def test_of_two_replaced_versions_with_one_id_the_last_one_gets_the_request() -> None:
    draining, older, old = DrainingVersions(), version(7), version(7, 8)
    draining.add(older)
    draining.add(old)
    assert draining.find("m", "", 7, 0, version()) is old
    assert draining.of_version("m", "1") is old
    assert draining.of_version("m", "2") is None


def test_a_start_goes_to_the_version_that_serves_and_ends_the_old_sequence() -> None:
    draining, old, now = DrainingVersions(), version(7, 8), version()
    draining.add(old)
    assert draining.find("m", "", 7, SEQUENCE_START, now) is None
    assert not old.runner.has_sequence(7)
    assert old.runner.has_sequence(8)


def test_an_unloaded_model_does_not_wait_for_its_sequences() -> None:
    draining, old = DrainingVersions(), version(7)
    draining.add(old)
    draining.remove_all("m")
    assert cast(Sequences, old.runner).ignored
    assert not draining
