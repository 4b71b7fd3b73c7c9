"""The record of loads that supervision reads."""

from __future__ import annotations

import time

from edge_serve.models.load.load_history import LoadHistory


def test_a_load_that_is_late_is_suspect_of_no_crash_and_a_later_one_is() -> None:
    history = LoadHistory()
    with history.load("waits"), history.load("other"):
        history.note_late(time.monotonic() - 60)
        assert history.loading_in_time() == ["other", "waits"], "they have just begun"
        history.note_late(time.monotonic())
        assert (history.loading(), history.loading_in_time()) == (["other", "waits"], [])
        with history.load("next"):
            assert history.loading_in_time() == ["next"]
    with history.load("waits"):
        assert history.loading_in_time() == ["waits"]


def test_a_model_that_is_removed_is_left_out_no_more() -> None:
    history = LoadHistory()
    history.left_out["kills"] = "it was loading each time"
    assert history.wanted(["kills"]) == []
    history.remove("kills")
    assert history.wanted(["kills"]) == ["kills"]
