"""ResponseOrder: nothing leaves before what came first."""

from __future__ import annotations

from random import Random

import pytest

from edge_serve.scheduling.ordering import ResponseOrder


def test_early_responses_wait() -> None:
    order: ResponseOrder[str] = ResponseOrder()
    a, b, c = order.enter(), order.enter(), order.enter()

    assert order.ready(c, "c") == []
    assert order.ready(b, "b") == []
    assert order.ready(a, "a") == ["a", "b", "c"]
    assert order.ready(order.enter(), "d") == ["d"]


def test_the_first_request_streams_and_the_others_follow_whole() -> None:
    order: ResponseOrder[str] = ResponseOrder()
    a, b, c = order.enter(), order.enter(), order.enter()

    assert order.ready(a, "a1", final=False) == ["a1"]
    assert order.ready(b, "b1", final=False) == []
    assert order.ready(b, "b2", final=False) == []
    assert order.ready(c, "c1") == []
    assert order.ready(a, "a2") == ["a2", "b1", "b2"]
    assert order.ready(b, "b3", final=False) == ["b3"]
    assert order.ready(b, "b4") == ["b4", "c1"]


@pytest.mark.parametrize("seed", range(10))
def test_any_order_of_completion(seed: int) -> None:
    random = Random(seed)
    order: ResponseOrder[tuple[int, int]] = ResponseOrder()
    open_places: dict[int, int] = {}
    left: list[tuple[int, int]] = []
    made: list[tuple[int, int]] = []
    for _ in range(500):
        if random.random() < 0.4:
            open_places[order.enter()] = 0
        elif open_places:
            place = random.choice(sorted(open_places))
            number = open_places[place] = open_places[place] + 1
            end = random.random() < 0.7
            made.append((place, number))
            left += order.ready(place, (place, number), final=end)
            if end:
                del open_places[place]
    for place in sorted(open_places, reverse=True):
        made.append((place, 1000))
        left += order.ready(place, (place, 1000))

    assert left == sorted(made)
