"""Which repeated lines the text log writes, by a clock of the test's own."""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping

import pytest

from edge_serve.messages.log_fields import RECURS, model_fields
from edge_serve.observe.log.like_lines import LikeLines

CHATTER = "edge_serve.workers.front.output"


class Text:
    """A text log and its clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._stream = io.StringIO()
        self._handler = logging.StreamHandler(self._stream)
        self._like = LikeLines(self._handler, clock=lambda: self.now)
        self._handler.addFilter(self._like)

    def say(self, name: str, level: int, text: str, **extra: str) -> None:
        """Log a line, as this logger of the server does."""
        record = logging.LogRecord(name, level, f"{name}.py", 1, text, (), None)
        record.__dict__.update(model_fields("m"), **extra)
        self._handler.handle(record)

    def repeat(
        self, minutes: int, name: str, level: int, text: str, extra: Mapping[str, str] | None = None, every: float = 1.0
    ) -> list[int]:
        """Log the line again and again, and return how many lines were written in each minute."""
        written = []
        for _ in range(minutes):
            before = len(self.lines())
            for _ in range(round(60 / every)):
                self.now += every
                self.say(name, level, text, **(extra or {}))
                self._like.tick()
            written.append(len(self.lines()) - before)
        return written

    def lines(self) -> list[str]:
        return self._stream.getvalue().splitlines()


@pytest.mark.parametrize(
    ("name", "level", "extra"),
    [
        ("edge_serve.models.run.driver", logging.ERROR, {}),
        ("edge_serve.model", logging.WARNING, {}),
        ("edge_serve.workers.front.worker", logging.INFO, {RECURS: "1"}),
        (CHATTER, logging.INFO, {RECURS: "1"}),
    ],
)
def test_what_is_repeated_after_a_minute_is_one_line_a_minute_with_a_count(
    name: str, level: int, extra: dict[str, str]
) -> None:
    log = Text()
    first, *later = log.repeat(5, name, level, "it broke again", extra)

    assert first == 60
    assert all(count <= 1 for count in later)
    assert log.lines()[-1] == "60 more like this suppressed: it broke again"


@pytest.mark.parametrize("name", [CHATTER, "edge_serve.models.control.registry"])
def test_other_lines_of_level_info_all_pass(name: str) -> None:
    assert Text().repeat(5, name, logging.INFO, "temperature 23.5") == [60] * 5


def test_a_model_that_prints_without_end_is_slowed_down_after_a_minute() -> None:
    first, second, *later = Text().repeat(5, CHATTER, logging.INFO, "tick", every=0.02)

    assert first == 3000
    assert second < 1000
    assert all(count <= 1 for count in later)
