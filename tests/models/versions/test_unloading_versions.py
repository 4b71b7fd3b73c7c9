"""Counters of the whole server, whatever becomes of its versions, and the names of those that are busy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest

from edge_serve.messages.statistics import ModelStatistics
from edge_serve.models.versions.lineage import add_up
from edge_serve.models.versions.served import Served
from edge_serve.models.versions.unloading_versions import BusyVersion, UnloadingVersions, busy_versions, join_names
from edge_serve.observe.metrics.source import ModelSeries


@dataclass(eq=False)
class Version:
    """The part of a Served and of its runner that is used."""

    name: str = "m"
    requests: int = 0
    seconds: float | None = None
    references: int = 0
    version: str = "1"
    identity: str = "m"
    statistics: ModelStatistics = field(default_factory=ModelStatistics)
    has_stand_in: bool = False

    @property
    def runner(self) -> Version:
        return self

    def in_flight(self) -> int:
        return self.requests

    def oldest_batch_seconds(self) -> float | None:
        return self.seconds

    def answer(self, count: int) -> None:
        for _ in range(count):
            self.statistics.success.add(1000)


def served(version: Version) -> Served:
    return cast(Served, version)


def total(unloading: UnloadingVersions, *serving: Version) -> int:
    return add_up(unloading.counters(map(served, serving))).success.count


def test_a_version_counts_while_it_serves_while_it_drains_and_after_it_is_closed() -> None:
    unloading, first, second = UnloadingVersions(), Version(), Version()
    first.answer(3)
    assert total(unloading, first) == 3

    unloading.versions.add(served(first))
    first.answer(1)
    second.answer(2)
    assert total(unloading, second) == 6

    unloading.close(served(first))
    assert total(unloading, second) == 6
    assert total(unloading) == 4


def test_a_version_and_its_stand_in_count_once() -> None:
    unloading, first = UnloadingVersions(), Version()
    first.answer(3)
    first.has_stand_in = True
    stand_in = Version(statistics=first.statistics)
    unloading.versions.add(served(first))
    assert total(unloading, stand_in) == 3
    unloading.close(served(first))
    assert total(unloading, stand_in) == 3

    unloading.versions.add(served(stand_in))
    unloading.close(served(stand_in))
    assert total(unloading, Version()) == 3


def test_metrics_show_the_requests_of_a_replaced_load_with_its_successor() -> None:
    unloading = UnloadingVersions()
    for one in (Version(requests=2, seconds=9.0), Version(version="2", requests=5, seconds=99.0)):
        unloading.versions.add(served(one))
    series = ModelSeries("m", "1", {}, ModelStatistics(), served(Version()), in_flight=1, oldest_batch_seconds=0.5)
    unloading.add_to(series, served(Version()))

    assert (series.in_flight, series.oldest_batch_seconds) == (3, 9.0)


def found(*versions: Version) -> list[BusyVersion]:
    return busy_versions(map(served, versions))


def test_idle_versions_are_left_out_and_the_oldest_batch_is_first() -> None:
    busy = found(
        Version("idle"), Version("b", 2), Version("a", 1), Version("late", 3, 9.5), Version("read", references=2)
    )

    assert [(one.name, one.requests) for one in busy] == [("late", 3), ("a", 1), ("b", 2), ("read", 2)]


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (Version("a", 1), "a version 1 (1 request)"),
        (Version("a", 1, 0.4), "a version 1 (1 request)"),
        (Version("a", 1, 12.4), "a version 1 (1 request, its batch has been running for 12 s)"),
        (Version("a", 5, 12.4), "a version 1 (5 requests, its oldest batch has been running for 12 s)"),
        (Version("a\n", 5), "'a\\n' version 1 (5 requests)"),
    ],
)
def test_one_is_named_with_its_requests_and_for_how_long(version: Version, text: str) -> None:
    assert join_names(found(version)) == text


def test_many_are_counted() -> None:
    text = join_names(found(*(Version(name, 1) for name in "abcdef")))

    assert text == ", ".join(f"{name} version 1 (1 request)" for name in "abcd") + ", 2 more model versions"
