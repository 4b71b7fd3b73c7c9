"""Lines that models write, for the server's log: standard output and error, and the log lines that they send.

The pipe is always emptied, so a model never waits for it. Lines above the rate are counted and discarded.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edge_serve.messages.log_fields import OUTPUT, RECURS, model_fields
from edge_serve.workers.front.placement import ModelPlacement
from edge_serve.workers.wire.frames import LOG_CHARACTERS, MOST_REPORTED
from edge_serve.workers.wire.place import own_place

LONGEST_LINE = 4096
_CUT = f" ... (cut after {LONGEST_LINE} bytes)"
#: output of a restarted process counts as a repetition for so many seconds
RECURS_SECONDS = 60.0
#: lines of Python's report of a fatal signal (faulthandler) that are kept
_MOST_FATAL = 100
_FATAL = "Fatal Python error"
_FRAME = re.compile(r'  File "(.+)", line (\d+) in (.+)')
_READ_BYTES = 64 * 1024

log = logging.getLogger(__name__)
_model_log = logging.getLogger("edge_serve.model")


class Rate:
    """How many lines may pass: `burst` at once, refilled with `per_second`. Time is an argument."""

    __slots__ = ("_burst", "_left", "_per_second", "_seen")

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._left = float(burst)
        self._seen = 0.0

    def take(self, now: float) -> bool:
        """Return whether one more line may pass at `now` (seconds), and count it."""
        self._left = min(self._burst, self._left + (now - self._seen) * self._per_second)
        self._seen = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    @property
    def is_rested(self) -> bool:
        """Whether a whole burst was left before the newest line."""
        return self._left >= self._burst - 1


class WorkerOutput:
    """Reads one pipe on the event loop until it ends.

    Args:
        about: which model prints, as fields of the log's lines (messages/log_fields.py).
        recurs: the process was started in place of one that died: what it prints at first was printed before.

    Attributes:
        last: the newest lines, for the report when the worker dies.
        fatal: the lines that follow Python's "Fatal Python error".
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        label: str,
        write: Callable[[str], None] | None = None,
        about: Mapping[str, str] | None = None,
        recurs: bool = False,
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._label = label
        self._about = about
        self._recurs_until = loop.time() + RECURS_SECONDS if recurs else 0.0
        self._write = write or self._log
        self._rate = Rate(200, 1000)
        self._rest = b""
        self._cut = False
        self._dropped = 0
        self.last: deque[str] = deque(maxlen=5)
        self.fatal: list[str] = []
        os.set_blocking(fd, False)
        loop.add_reader(fd, self.read)

    def _log(self, line: str) -> None:
        about = self._about
        if self._recurs_until and self._loop.time() < self._recurs_until:
            about = {**(about or {}), RECURS: "1"}
        log.info("%s: %s", self._label, line, extra=about)

    def read(self) -> bool:
        """Read what the pipe has. Return False if it had nothing."""
        if self._fd < 0:
            return False
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        lines = (self._rest + data).split(b"\n")
        if self._cut:  # the end of a line whose beginning is written
            self._cut = len(lines) == 1
            lines[0:1] = [b""] if self._cut else []
        self._rest = lines.pop()
        if len(self._rest) > LONGEST_LINE:
            lines.append(self._rest)
            self._rest, self._cut = b"", True
        self._take(lines)
        return True

    def _take(self, lines: list[bytes]) -> None:
        now = self._loop.time()
        for i, line in enumerate(lines):
            if not self._rate.take(now):
                self._dropped += len(lines) - i
                break
            self._report_dropped()
            text = line[:LONGEST_LINE].decode(errors="replace") + (_CUT if len(line) > LONGEST_LINE else "")
            self.last.append(text)
            if len(self.fatal) < _MOST_FATAL and (self.fatal or text.startswith(_FATAL)):
                self.fatal.append(text)
            self._write(text)

    def _report_dropped(self) -> None:
        if self._dropped:
            self._write(f"({self._dropped} lines dropped: the model prints too much)")
            self._dropped = 0

    def finish(self, most_reads: int = 64) -> None:
        """Read what a dead writer has left, then close. A grandchild may hold the pipe open and still write."""
        for _ in range(most_reads):
            if not self.read():
                break
        self.close()

    def close(self) -> None:
        """Stop reading."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            if self._rest:
                self._take([self._rest])
                self._rest = b""
            self._report_dropped()

    def crash_place(self) -> str:
        """Return where in the model's Python code a fatal signal came; "" = that is not known.

        The innermost frame may be a library's; the first one outside of libraries is the line to look at.
        """
        found = (match for line in self.fatal if (match := _FRAME.match(line)))
        return own_place((match[1], match[2], match[3]) for match in found)


class ModelLog:
    """The log of one worker's models. Lines above the rate are counted and discarded; warnings and errors have a rate
    of their own.

    Args:
        about: the one model of the worker, as fields of the lines; None = it has several.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, label: str, about: Mapping[str, str] | None) -> None:
        self._loop = loop
        self._label = label
        self._about = about
        self._rate, self._rate_of_warnings = Rate(200, 1000), Rate(200, 1000)
        self._unlogged = 0

    def write(self, value: dict[str, Any], placements: Sequence[ModelPlacement]) -> None:
        """Write the line or the warning in a LOG frame.

        Args:
            placements: the opened models of the worker.
        """
        if "once" in value:
            _warn_once(value, placements)
            return
        level = value.get("level")
        known = min(max(level, logging.NOTSET), logging.CRITICAL) if isinstance(level, int) else logging.INFO
        if not _model_log.isEnabledFor(known):
            return
        rate = self._rate if known < logging.WARNING else self._rate_of_warnings
        if not rate.take(self._loop.time()):
            self._unlogged += 1
            return
        if self._unlogged:
            dropped = "%s: %d log lines dropped: the model logs too much"
            log.warning(dropped, self._label, self._unlogged, extra=self._about)
            self._unlogged = 0
        text = str(value.get("text"))[:LOG_CHARACTERS]
        _model_log.log(known, "%s: %s", self._label, text, extra=self._about)


def _warn_once(value: dict[str, Any], placements: Sequence[ModelPlacement]) -> None:
    """Log a warning about an opened model, unless another of its instances has sent it."""
    placement = next((one for one in placements if one.number == value.get("model")), None)
    key = str(value["once"])
    if placement is None or key in placement.link.warned or len(placement.link.warned) >= MOST_REPORTED:
        return
    placement.link.warned.add(key)
    extra = {**model_fields(placement.spec.name, placement.spec.version), OUTPUT: key}
    log.warning("%s", str(value.get("text"))[:LOG_CHARACTERS], extra=extra)
