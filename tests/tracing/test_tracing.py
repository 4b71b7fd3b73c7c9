"""The server's setting and those of models, changed while it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_serve.errors import InvalidArgument, Unsupported
from edge_serve.messages.settings import TraceChanges, TraceSettings
from edge_serve.tracing.tracing import Tracing

EVERY = TraceChanges(level=("TIMESTAMPS",), rate=1)


def tracing(file: Path | str = "t", *, rate: int = 1000) -> Tracing:
    return Tracing(TraceSettings(rate=rate, file=str(file)))


def test_it_is_off_until_some_setting_traces() -> None:
    here = tracing()
    assert not here.on
    here.update("m", EVERY)
    assert here.on
    here.update("m", TraceChanges(level=()))
    assert not here.on
    here.update("", EVERY)
    assert here.on


def test_it_may_be_on_from_the_start() -> None:
    assert Tracing(TraceSettings(("TENSORS",), file="t")).on
    assert not Tracing(TraceSettings(("TENSORS",))).on


def test_models_follow_the_server_where_they_have_no_setting_of_their_own() -> None:
    here = tracing()
    here.update("m", TraceChanges(rate=5))
    here.update("", TraceChanges(level=("TENSORS",), rate=9, count=4))

    assert (here.settings("m").level, here.settings("m").rate, here.settings("m").count) == (("TENSORS",), 5, 4)
    assert here.settings("other") == here.settings()
    assert here.settings().rate == 9


def test_a_model_whose_fields_are_all_cleared_is_the_servers_again() -> None:
    here = tracing()
    here.update("m", EVERY)
    here.update("m", TraceChanges(cleared=frozenset({"level", "rate"})))
    here.update("", TraceChanges(level=("TIMESTAMPS",), rate=2))

    assert here.settings("m") == here.settings()
    assert here.sample("m") is None
    assert here.sample("other") is not None, "both count in the server's setting"


def test_what_the_server_clears_goes_back_to_its_start() -> None:
    here = tracing(rate=77)
    here.update("", TraceChanges(rate=5))
    here.update("", TraceChanges(cleared=frozenset({"rate"})))

    assert here.settings().rate == 77


def test_nothing_changes_when_a_change_is_refused() -> None:
    here = tracing()
    here.update("m", EVERY)
    before = here.settings(), here.settings("m")

    with pytest.raises(InvalidArgument):
        here.update("m", TraceChanges(rate=0))
    with pytest.raises(InvalidArgument):
        here.update("", TraceChanges(level=("TIMESTAMPS",), rate=0))

    assert (here.settings(), here.settings("m")) == before


def test_a_server_setting_that_would_break_a_models_is_refused() -> None:
    here = tracing()
    here.update("m", TraceChanges(level=("TIMESTAMPS",)))

    with pytest.raises(InvalidArgument, match="sample rate must be non-zero"):
        here.update("", TraceChanges(rate=0))
    assert here.settings("m").rate == 1000


def test_another_mode_is_shown_and_not_traced() -> None:
    here = Tracing(TraceSettings(("TIMESTAMPS",), rate=1, mode="opentelemetry"))
    assert here.sample("m") is None

    with pytest.raises(Unsupported, match="--trace-config=mode=triton"):
        here.update("", TraceChanges(level=("TIMESTAMPS",)))


def test_traces_are_numbered_and_keep_what_their_level_asks_for() -> None:
    here = tracing()
    here.update("", EVERY)
    here.update("t", TraceChanges(level=("TENSORS",)))

    first, second = here.sample("m"), here.sample("t")

    assert first is not None
    assert second is not None
    assert (first.id, second.id) == (1, 2)
    assert (first.timestamps, first.tensors) == ([], None)
    assert (second.timestamps, second.tensors) == (None, [])


def test_what_reached_a_model_is_written(tmp_path: Path) -> None:
    here = tracing(tmp_path / "t.json")
    here.update("", EVERY)
    for version in ("", "4"):
        trace = here.sample("m")
        assert trace is not None
        trace.model_name, trace.model_version = "m", version
        here.finish(trace)
    here.close()

    assert json.loads((tmp_path / "t.json").read_text()) == [{"id": 2, "model_name": "m", "model_version": 4}]


def test_a_change_writes_what_was_kept(tmp_path: Path) -> None:
    here = tracing(tmp_path / "t.json")
    here.update("", TraceChanges(level=("TIMESTAMPS",), rate=1, log_frequency=10))
    trace = here.sample("m")
    assert trace is not None
    trace.model_name, trace.model_version = "m", "1"
    here.finish(trace)
    here.update("other", TraceChanges(rate=3))
    here.close()

    assert [entry.name for entry in tmp_path.iterdir()] == ["t.json.0"]
