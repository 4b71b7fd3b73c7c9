"""Models that are left out after a number of deaths."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_serve.supervision.crash_loop import (
    DEATHS,
    RETRY_BESIDE_OTHERS,
    RETRY_FIRST,
    RETRY_LATER,
    LeftOut,
    Record,
    StartPhase,
    Suspects,
    as_text,
    from_text,
    next_record,
    retry_ns,
    stable,
    try_again,
)

MODELS = ["a", "b", "c"]
BOOT = "this boot"

names = st.lists(st.sampled_from(MODELS), unique=True).map(tuple)
suspects = st.builds(Suspects, names, st.none() | names)


def same(name: str) -> str:
    return f"print of {name}"


def after(deaths: Sequence[Suspects], record: Record | None = None) -> Record:
    """The record of the process that starts after these died."""
    record = record or Record(BOOT)
    for death in deaths:
        alive = next_record(record, BOOT, same, MODELS)
        record = replace(alive, now=death)
    return next_record(record, BOOT, same, MODELS)


def test_models_that_loaded_at_each_crash_are_left_out() -> None:
    deaths = [Suspects(("a", "b")), Suspects(("b", "c")), Suspects(("b",), ("a",))]
    assert not after(deaths[:2]).left_out
    record = after(deaths)
    reason = "it was loading each time when the service died 3 times in a row"
    assert record.left_out == {"b": LeftOut("print of b", reason)}
    assert record.deaths == ()


def test_the_count_of_deaths_says_since_when() -> None:
    deaths = [Suspects(("b",))] * 3
    assert after(deaths[:1]).count_deaths() == "the service died once"
    assert after(deaths[:2]).count_deaths() == "the service died 2 times in a row"
    assert after(deaths).count_deaths() == ""
    assert after([], after(deaths)).count_deaths() == "the service died once since models were left out"


def test_models_that_executed_at_each_crash_are_left_out() -> None:
    assert set(after([Suspects((), ("c", "a")), Suspects((), ("c",)), Suspects(("b",), ("c",))]).left_out) == {"c"}


@pytest.mark.parametrize(
    ("busy", "left_out"),
    [
        ([None, ("a", "b"), ("b",)], {"b"}),
        ([None, ("a",), ("b",)], {"a", "b", "c"}),
        ([(), ("a",), ("a",)], {"a", "b", "c"}),
        ([None, None, ("a",)], {"a", "b", "c"}),  # it may have been there by chance
        ([None, None, None], {"a", "b", "c"}),
    ],
)
def test_a_death_at_which_work_was_not_observed_acquits_no_model(
    busy: list[tuple[str, ...] | None], left_out: set[str]
) -> None:
    assert set(after([Suspects((), one) for one in busy]).left_out) == left_out


def test_all_suspects_are_left_out_if_no_model_was_there_each_time() -> None:
    record = after([Suspects(("a",)), Suspects(("b",)), Suspects()])
    assert set(record.left_out) == {"a", "b", "c"}
    assert "nothing says which model did it" in record.left_out["a"].reason


@given(st.lists(suspects, min_size=2 * DEATHS, max_size=2 * DEATHS))
def test_the_start_after_the_sixth_death_has_no_model_at_all(deaths: list[Suspects]) -> None:
    assert set(after(deaths).left_out) == set(MODELS)


def test_unless_the_service_served_for_a_while_between() -> None:
    first = stable(after([Suspects(("a",))] * DEATHS))
    assert set(after([Suspects(("b",))] * DEATHS, replace(first, phase=StartPhase.ENDED)).left_out) == {"a", "b"}


@pytest.mark.parametrize("phase", list(StartPhase))
def test_ends_that_count_as_a_death(phase: StartPhase) -> None:
    record = next_record(Record(BOOT, phase, Suspects(("a",))), BOOT, same, MODELS)
    assert len(record.deaths) == (phase is not StartPhase.ENDED)
    assert record.phase is StartPhase.ALIVE


def test_a_clean_end_clears_the_deaths_before_it() -> None:
    record = Record(BOOT)
    for _ in range(2 * DEATHS):
        record = next_record(replace(record, phase=StartPhase.ALIVE), BOOT, same, MODELS)
        record = next_record(replace(record, phase=StartPhase.ENDED), BOOT, same, MODELS)
    assert record.deaths == ()
    assert not record.left_out


def test_a_machine_that_went_down_is_no_crash_of_the_service() -> None:
    record = Record("another boot", StartPhase.ALIVE, Suspects(("a",)), (Suspects(("a",)),) * 2)
    assert next_record(record, BOOT, same, MODELS).deaths == ()


#: all models are out, and nothing says which one it was
ALL_OUT = Record(BOOT, left_out={name: LeftOut(same(name), "why") for name in MODELS})
SECOND = 10**9


def test_models_left_out_are_retried_at_the_next_boot_until_one_death() -> None:
    tried = next_record(ALL_OUT, "the next boot", same, MODELS)
    assert tried.trying
    assert set(tried.left_out) == set(MODELS), "remembered, not left out"
    assert next_record(replace(tried, phase=StartPhase.ENDED), "the next boot", same, MODELS).trying, "the try goes on"

    for boot in ("the next boot", "one more boot"):  # a model that takes the machine down does not do so at every boot
        dead = next_record(tried, boot, same, MODELS, 7)
        assert not dead.trying
        assert (dead.left_out, dead.since_ns) == (ALL_OUT.left_out, 7)
    assert next_record(dead, "yet another boot", same, MODELS).trying


def test_a_try_that_serves_for_a_while_clears_the_record() -> None:
    assert stable(try_again(ALL_OUT)) == Record(BOOT)


def test_when_models_are_tried_again() -> None:
    def seconds(record: Record, *, others: bool = False) -> float | None:
        due = retry_ns(record, others)
        return None if due is None else (due - record.since_ns) / SECOND

    out = replace(ALL_OUT, since_ns=5 * SECOND)
    assert seconds(out) == RETRY_FIRST
    assert seconds(out, others=True) == RETRY_BESIDE_OTHERS
    assert seconds(try_again(out)) is None, "they are"
    again = next_record(replace(try_again(out), phase=StartPhase.ALIVE), BOOT, same, MODELS, 9 * SECOND)
    assert (again.since_ns, seconds(again)) == (9 * SECOND, RETRY_LATER)
    assert seconds(Record(BOOT)) is None


def test_a_clean_restart_neither_tries_again_nor_begins_to_wait_anew() -> None:
    record = next_record(replace(ALL_OUT, since_ns=5, tries=1), BOOT, same, MODELS, 9)
    assert (record.trying, record.since_ns, record.tries) == (False, 5, 1)
    assert set(record.left_out) == set(MODELS)


def test_service_for_a_while_forgives_deaths_but_not_the_guilty() -> None:
    record = stable(
        Record(BOOT, StartPhase.ALIVE, Suspects(), (Suspects(("a",)),) * 2, {"b": LeftOut("print of b", "y")})
    )
    assert record.deaths == ()
    assert record.left_out


def test_a_model_whose_directory_cannot_be_read_now_stays_left_out() -> None:
    record = Record(BOOT, left_out={"a": LeftOut("print of a", "x")})
    assert next_record(record, BOOT, lambda name: None, MODELS).left_out == record.left_out


@pytest.mark.parametrize("now", ["changed", ""])
def test_a_model_whose_directory_changed_or_went_is_innocent(now: str) -> None:
    record = Record(BOOT, left_out={"a": LeftOut("print of a", "x"), "b": LeftOut("print of b", "y")})
    fresh = next_record(record, BOOT, lambda name: now if name == "a" else same(name), MODELS)
    assert fresh.left_out == {"b": LeftOut("print of b", "y")}


@given(
    st.builds(
        Record,
        st.text(),
        st.sampled_from(StartPhase),
        suspects,
        st.lists(suspects).map(tuple),
        st.dictionaries(st.sampled_from(MODELS), st.builds(LeftOut, st.text(), st.text())),
    )
)
def test_a_record_survives_the_file(record: Record) -> None:
    full = replace(record, helpless=True, trying=True, tries=2, since_ns=3)
    assert from_text(as_text(full)) == full


def test_a_file_of_an_older_release_is_read() -> None:
    old = json.loads(as_text(ALL_OUT))
    for name in ("trying", "tries", "since_ns"):
        del old[name]
    assert from_text(json.dumps(old)) == ALL_OUT


@given(st.text() | st.sampled_from(["", "{}", "[]", '{"boot": 1}', "null", as_text(Record())[:-2], "[" * 100_000]))
def test_a_file_that_is_torn_holds_nothing(text: str) -> None:
    assert from_text(text) == Record()
