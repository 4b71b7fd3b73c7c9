"""The life of a version."""

from __future__ import annotations

import pytest

from edge_serve.models.versions.lifecycle import TRANSITIONS, VersionEvent, VersionState, after


def test_every_state_but_the_last_can_be_left_and_all_can_be_reached() -> None:
    assert set(VersionState) == {state for state, _ in TRANSITIONS}
    assert set(VersionState) == set(TRANSITIONS.values())


def test_a_swap_walks_through_the_table() -> None:
    state = VersionState.LOADING
    for event in (
        VersionEvent.LOADED,
        VersionEvent.RETIRED,
        VersionEvent.DRAINED,
        VersionEvent.RELOADED,
        VersionEvent.FAILED,
    ):
        state = after(state, event)

    assert VersionState.GONE is state


def test_a_transition_outside_the_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="a version that is READY cannot be loaded"):
        after(VersionState.READY, VersionEvent.LOADED)


def test_the_index_shows_tritons_words() -> None:
    assert [state.value for state in VersionState] == ["LOADING", "READY", "UNLOADING", "UNAVAILABLE"]
