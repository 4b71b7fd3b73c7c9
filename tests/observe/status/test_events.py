"""The newest lines of the log."""

from __future__ import annotations

import logging

import pytest

from edge_serve.messages.log_fields import DISPLAY, model_fields
from edge_serve.observe.status.events import LONGEST_TEXT, MOST_ERRORS, MOST_EVENTS, EventRing


def ring() -> tuple[EventRing, logging.Logger]:
    made, logger = EventRing(), logging.Logger("edge_serve.models.control.version_swap", logging.DEBUG)
    logger.addHandler(made)
    return made, logger


def test_events_and_problems_the_newest_first() -> None:
    made, logger = ring()
    logger.info("model %s ready", "m", extra=model_fields("m", 2))
    logger.warning("it is hot")
    logger.error("it fell", extra=model_fields("m", "", "r-1"))
    logger.debug("never mind")

    assert [(event.level, event.text) for event in made.newest()[0]] == [
        ("error", "it fell"),
        ("warning", "it is hot"),
        ("info", "model m ready"),
    ]
    assert [event.level for event in made.newest()[1]] == ["error", "warning"]
    first = made.newest()[0][-1]
    assert (first.model, first.version, first.source) == ("m", "2", "test_events")
    assert made.newest()[0][0].request_id == "r-1"


def test_equal_ones_in_a_row_are_one_with_a_count_in_both_lists() -> None:
    made, logger = ring()
    for _ in range(4):
        logger.error("the same")
    logger.info("between")
    logger.error("the same")

    events, errors = made.newest()
    assert [(event.text, event.count) for event in events] == [("the same", 1), ("between", 1), ("the same", 4)]
    assert [(event.text, event.count) for event in errors] == [("the same", 5)]


def test_model_messages_are_events_only_if_they_are_problems() -> None:
    made = EventRing()
    logger = logging.Logger("edge_serve.model")
    logger.addHandler(made)
    logger.info("hello from the model")
    logger.warning("the model is not well")

    assert [event.text for event in made.newest()[0]] == ["the model is not well"]


def test_a_table_for_the_reader_of_the_log_is_no_event() -> None:
    made, logger = ring()
    logger.info("MODEL VERSION STATE", extra={DISPLAY: True})

    assert made.newest()[0] == []


def test_memory_is_bounded() -> None:
    made, logger = ring()
    for i in range(1000):
        logger.error("%d %s", i, "x" * 10_000)

    assert (len(made.newest()[0]), len(made.newest()[1])) == (MOST_EVENTS, MOST_ERRORS)
    assert len(made.newest()[0][0].text) == LONGEST_TEXT


def test_a_long_text_keeps_its_end_which_says_what_to_do() -> None:
    made, logger = ring()
    logger.error("no module 'a'%s pip install a", "\n  frame" * 200)

    text = made.newest()[0][0].text
    assert text.startswith("no module 'a'\n  frame")
    assert " ... " in text
    assert text.endswith("frame pip install a")


def test_an_exception_is_named() -> None:
    made, logger = ring()
    try:
        raise ValueError("deep")
    except ValueError:
        logger.exception("it failed")

    assert made.newest()[0][0].text == "it failed: ValueError: deep"


def test_a_line_that_cannot_be_made_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made, logger = ring()
    shown: list[logging.LogRecord] = []
    monkeypatch.setattr(made, "handleError", shown.append)  # as logging does, without its print
    logger.info("%d", "no number")

    assert made.newest()[0] == []
    assert len(shown) == 1
