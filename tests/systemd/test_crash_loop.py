"""Who is left out after how many deaths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_serve.systemd.crash_loop import DEATHS, Phase, Record, Suspects, as_text, from_text, next_record, stable

MODELS = ["a", "b", "c"]
BOOT = "this boot"

names = st.lists(st.sampled_from(MODELS), unique=True).map(tuple)
suspects = st.builds(Suspects, names, names)


def same(name: str) -> str:
    return f"print of {name}"


def after(deaths: Sequence[Suspects], record: Record | None = None) -> Record:
    """The record of the process that starts after these died."""
    record = record or Record(BOOT)
    for death in deaths:
        alive = next_record(record, BOOT, same, MODELS)
        record = replace(alive, now=death)
    return next_record(record, BOOT, same, MODELS)


def test_who_was_loading_each_time_is_left_out() -> None:
    deaths = [Suspects(("a", "b")), Suspects(("b", "c")), Suspects(("b",), ("a",))]
    assert not after(deaths[:2]).left_out
    record = after(deaths)
    assert record.left_out == {"b": "print of b"}
    assert record.reasons == {"b": "it was loading each time when the service died 3 times in a row"}
    assert record.deaths == ()


def test_or_who_was_at_work_each_time() -> None:
    assert set(after([Suspects((), ("c", "a")), Suspects((), ("c",)), Suspects(("b",), ("c",))]).left_out) == {"c"}


def test_or_all_for_want_of_anybody() -> None:
    record = after([Suspects(("a",)), Suspects(("b",)), Suspects()])
    assert set(record.left_out) == {"a", "b", "c"}
    assert "nothing says which model did it" in record.reasons["a"]


@given(st.lists(suspects, min_size=2 * DEATHS, max_size=2 * DEATHS))
def test_the_start_after_the_sixth_death_has_no_model_at_all(deaths: list[Suspects]) -> None:
    assert set(after(deaths).left_out) == set(MODELS)


def test_unless_the_service_served_for_a_while_between() -> None:
    first = stable(after([Suspects(("a",))] * DEATHS))
    assert set(after([Suspects(("b",))] * DEATHS, replace(first, phase=Phase.ENDED)).left_out) == {"a", "b"}


@pytest.mark.parametrize("phase", list(Phase))
def test_what_counts_as_a_death(phase: Phase) -> None:
    record = next_record(Record(BOOT, phase, Suspects(("a",))), BOOT, same, MODELS)
    assert len(record.deaths) == (phase is not Phase.ENDED)
    assert record.phase is Phase.ALIVE


def test_a_machine_that_went_down_is_no_crash_of_ours() -> None:
    record = Record("another boot", Phase.ALIVE, Suspects(("a",)), (Suspects(("a",)),) * 2, {"b": "print of b"})
    fresh = next_record(record, BOOT, same, MODELS)
    assert fresh.deaths == ()
    assert set(fresh.left_out) == {"b"}, "who was guilty before stays out"


def test_service_for_a_while_forgives_deaths_but_not_the_guilty() -> None:
    record = stable(Record(BOOT, Phase.ALIVE, Suspects(), (Suspects(("a",)),) * 2, {"b": "print of b"}))
    assert record.deaths == ()
    assert record.left_out


@pytest.mark.parametrize("now", ["changed", ""])
def test_a_model_whose_directory_changed_or_went_is_innocent(now: str) -> None:
    record = Record(BOOT, left_out={"a": "print of a", "b": "print of b"}, reasons={"a": "x", "b": "y"})
    fresh = next_record(record, BOOT, lambda name: now if name == "a" else same(name), MODELS)
    assert fresh.left_out == {"b": "print of b"}
    assert fresh.reasons == {"b": "y"}


@given(
    st.builds(
        Record,
        st.text(),
        st.sampled_from(Phase),
        suspects,
        st.lists(suspects).map(tuple),
        st.dictionaries(st.sampled_from(MODELS), st.text()),
    )
)
def test_a_record_survives_the_file(record: Record) -> None:
    full = replace(record, reasons=dict.fromkeys(record.left_out, "why"), helpless=True)
    assert from_text(as_text(full)) == full


@given(st.text() | st.sampled_from(["", "{}", "[]", '{"boot": 1}', "null", as_text(Record())[:-2], "[" * 100_000]))
def test_a_file_that_is_torn_holds_nothing(text: str) -> None:
    assert from_text(text) == Record()
