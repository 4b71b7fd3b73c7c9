"""Which connections a full door may close for a newcomer."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from edge_serve.transport.door.eviction import candidates


@dataclass(eq=False)
class Fake:
    """A connection."""

    address: str
    idle_since_ns: int | None

    def close_if_idle(self) -> bool:
        raise AssertionError("choosing closes nothing")


def chosen(newcomer: str, *connections: tuple[str, int | None]) -> list[tuple[str, int | None]]:
    fakes = [Fake(*one) for one in connections]
    return [(one.address, one.idle_since_ns) for one in candidates({one: one.address for one in fakes}, newcomer)]


def test_the_address_with_the_most_connections_loses_its_longest_idle_first() -> None:
    assert chosen("new", ("b", 1), ("a", 9), ("a", 3), ("a", 7)) == [("a", 3), ("a", 7), ("a", 9)]


def test_connections_that_owe_an_answer_stay() -> None:
    assert chosen("new", ("a", None), ("a", 3), ("a", None)) == [("a", 3)]
    assert chosen("new", ("a", None), ("a", None), ("b", 5)) == [("b", 5)]
    assert chosen("new", ("a", None)) == []


@pytest.mark.parametrize("flood", [5, 2000])
def test_an_address_with_many_takes_from_itself_alone(flood: int) -> None:
    everybody = [("flood", 100 + index) for index in range(flood)] + [("other", 1), ("other", 2)]
    assert {address for address, _ in chosen("flood", *everybody)} == {"flood"}
    busy = [("flood", None)] * flood + [("other", 1), ("other", 2)]
    assert chosen("flood", *busy) == []


def test_addresses_with_as_few_as_the_newcomer_lose_nothing_to_it() -> None:
    assert chosen("a", ("a", None), ("b", 1)) == []
    assert chosen("a", ("a", None), ("b", 1), ("b", 2)) == [("b", 1), ("b", 2)]


def test_of_very_many_the_oldest_are_looked_at() -> None:
    assert len(chosen("new", *(("a", index) for index in range(5000)))) == 1024
