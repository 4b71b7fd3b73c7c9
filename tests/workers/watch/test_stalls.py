"""Ages of markers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_serve.workers.watch.stalls import Stalls


def test_a_marker_ages_until_it_changes_and_is_forgotten_when_it_goes() -> None:
    stalls: Stalls[str] = Stalls()
    assert stalls.look(0, {"a": 1, "b": 1}) == {"a": 0, "b": 0}
    assert stalls.look(2_000_000_000, {"a": 1, "b": 2}) == {"a": 2, "b": 0}
    assert stalls.look(3_000_000_000, {"b": 2}) == {"b": 1}
    assert stalls.look(4_000_000_000, {"a": 1}) == {"a": 0}


@given(st.lists(st.tuples(st.integers(0, 5), st.dictionaries(st.sampled_from("abc"), st.integers(0, 1)))))
def test_an_age_is_the_time_since_the_first_of_the_last_equal_looks(steps: list[tuple[int, dict[str, int]]]) -> None:
    stalls: Stalls[str] = Stalls()
    now, looks = 0, []
    for seconds, markers in steps:
        now += seconds
        looks.append((now, markers))
        for key, age in stalls.look(now * 10**9, markers).items():
            same = now
            for then, seen in reversed(looks):
                if key not in seen or seen[key] != markers[key]:
                    break
                same = then
            assert age == now - same
