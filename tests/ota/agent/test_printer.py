"""Progress: in place in a terminal, sparse lines elsewhere, and nothing that a journal cannot show."""

from __future__ import annotations

import io

import pytest

from ota.agent.operator import printer
from ota.agent.operator.printer import ProgressPrinter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(printer, "time", found)
    return found


def shown(out: io.StringIO, clock: Clock) -> str:
    subject = ProgressPrinter(out)
    subject("fetching")
    for done in range(0, 101, 10):
        subject.progress("det 17", done << 20, 100 << 20)
        clock.seconds += 10
    subject.progress("det 17", 100 << 20, 100 << 20)
    subject("done")
    return out.getvalue()


def test_a_journal_gets_a_line_every_half_minute(clock: Clock) -> None:
    assert shown(io.StringIO(), clock).splitlines() == [
        "fetching",
        *(f"det 17: {done:.1f} of 100.0 MiB" for done in (0, 30, 60, 90, 100)),
        "done",
    ]


def test_a_terminal_gets_one_line_that_changes(clock: Clock) -> None:
    text = shown(Terminal(), clock)
    assert text.count("\n") == 3
    assert text.count("\r") == 11
    assert "\x1b" not in text
