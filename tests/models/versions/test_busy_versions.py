"""Naming the versions that have something to answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from edge_serve.models.versions.busy_versions import BusyVersion, busy_versions, listed
from edge_serve.models.versions.served import Served


@dataclass(frozen=True)
class Version:
    """What is asked of a Served and of its runner."""

    name: str
    requests: int = 0
    seconds: float | None = None
    references: int = 0
    version: str = "1"

    @property
    def runner(self) -> Version:
        return self

    def in_flight(self) -> int:
        return self.requests

    def oldest_batch_seconds(self) -> float | None:
        return self.seconds


def found(*versions: Version) -> list[BusyVersion]:
    return busy_versions(cast(Served, version) for version in versions)


def test_those_that_are_idle_are_left_out_and_the_oldest_batch_is_first() -> None:
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
    assert listed(found(version)) == text


def test_many_are_counted() -> None:
    text = listed(found(*(Version(name, 1) for name in "abcdef")))

    assert text == ", ".join(f"{name} version 1 (1 request)" for name in "abcd") + ", 2 more model versions"
