"""Which batches count as hung."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from edge_serve.workers.front.hangs import Hang, HangWatch, Stalls
from edge_serve.workers.front.placement import ModelPlacement

LIMIT, LOAD = 10.0, 600.0


@dataclass
class FakeChannel:
    """The part of a channel that is watched."""

    batch: int = 1
    partials: int = 0
    paused: int = 0
    instance: int = 0

    def running(self) -> int:
        return self.batch


@dataclass
class Scene:
    """One placement with one instance, looked at once a second."""

    hang: float = 0.0
    tests: bool = False
    limit: float = LIMIT
    channel: FakeChannel = field(default_factory=FakeChannel)
    calls: set[int] = field(default_factory=set)
    watch: HangWatch = field(default_factory=HangWatch)
    now: int = 0

    def look(self, seconds: int) -> Hang | None:
        """The last of `seconds` looks."""
        placement = cast(
            ModelPlacement,
            SimpleNamespace(
                number=7,
                channels=lambda: [self.channel],
                link=SimpleNamespace(hang=self.hang, tests=self.tests),
                spec=SimpleNamespace(name="m"),
            ),
        )
        found = None
        for _ in range(seconds):
            found = self.watch.find(self.now * 10**9, [placement], self.limit, LOAD, self.calls)
            self.now += 1
        return found


def test_a_batch_that_does_not_move_for_longer_than_the_limit() -> None:
    scene = Scene()
    assert scene.look(11) is None
    assert scene.look(1) == Hang("m", 11.0, LIMIT)
    assert Hang("m", 11.0, LIMIT).overdue == 1.0


def test_the_model_s_own_limit_and_none_at_all() -> None:
    assert Scene(hang=2.0).look(4) is not None
    assert Scene(hang=100.0).look(50) is None
    assert Scene(limit=0.0).look(500) is None
    assert Scene(limit=0.0, hang=2.0).look(4) is not None


def test_another_batch_or_another_response_is_a_sign_of_life() -> None:
    scene = Scene()
    for _ in range(5):
        assert scene.look(9) is None
        scene.channel.batch += 1
    for _ in range(5):
        assert scene.look(9) is None
        scene.channel.partials += 1


def test_an_idle_instance_a_held_stream_and_a_call_of_another_model_are_waited_for() -> None:
    assert Scene(channel=FakeChannel(batch=0)).look(100) is None
    assert Scene(channel=FakeChannel(paused=1)).look(100) is None
    scene = Scene(calls={7})
    assert scene.look(100) is None
    scene.calls.clear()  # the other model has answered: the time begins now
    assert scene.look(10) is None
    assert scene.look(2) is not None


def test_warm_up_is_a_part_of_loading() -> None:
    scene = Scene(limit=0.0, channel=FakeChannel(batch=-1))
    assert scene.look(600) is None
    found = scene.look(2)
    assert found is not None
    assert (found.limit, found.warms_up) == (LOAD, True)


def test_so_is_the_golden_test() -> None:
    scene = Scene(tests=True)
    assert scene.look(600) is None
    assert scene.look(2) == Hang("m", 601.0, LOAD, tests=True)


def test_a_marker_ages_until_it_changes_and_is_removed_at_the_end() -> None:
    stalls: Stalls[str] = Stalls()
    assert stalls.compare(0, {"a": 1, "b": 1}) == {"a": 0, "b": 0}
    assert stalls.compare(2_000_000_000, {"a": 1, "b": 2}) == {"a": 2, "b": 0}
    assert stalls.compare(3_000_000_000, {"b": 2}) == {"b": 1}
    assert stalls.compare(4_000_000_000, {"a": 1}) == {"a": 0}


@given(st.lists(st.tuples(st.integers(0, 5), st.dictionaries(st.sampled_from("abc"), st.integers(0, 1)))))
def test_an_age_is_the_time_since_the_first_of_the_last_equal_looks(steps: list[tuple[int, dict[str, int]]]) -> None:
    stalls: Stalls[str] = Stalls()
    now, looks = 0, []
    for seconds, markers in steps:
        now += seconds
        looks.append((now, markers))
        for key, age in stalls.compare(now * 10**9, markers).items():
            same = now
            for then, seen in reversed(looks):
                if key not in seen or seen[key] != markers[key]:
                    break
                same = then
            assert age == now - same
