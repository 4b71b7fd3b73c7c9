"""`edge-serve top`: the report again and again on one screen, with ANSI sequences only, so over ssh too."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TextIO

from edge_serve.observe.status.client import StatusTarget, Unreachable, fetch
from edge_serve.observe.status.report import COLOUR, coloured, report

Document = dict[str, Any]

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _TO_END_OF_LINE, _TO_END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
#: events that are shown if there is room
_EVENTS = 20


def run(target: StatusTarget, interval: float, out: TextIO | None = None) -> int:
    """Show until q or Ctrl-C; 0.

    Raises:
        Unreachable: there was no server from the start.
    """
    out = out or sys.stdout
    before: Document | None = None
    after = fetch(target)
    with _screen(out) as wait:
        trouble = ""
        while True:
            out.write(frame(before, after, trouble, *_size(out)))
            out.flush()
            if wait(interval):
                return 0
            try:
                fresh = fetch(target)
            except Unreachable as error:
                trouble = f"as it was at {time.strftime('%H:%M:%S', time.localtime(after['time_ms'] / 1000))}: {error}"
            else:
                before, after, trouble = after, fresh, ""


def _size(out: TextIO) -> tuple[int, int]:
    """Return the (columns, rows) of the terminal now: $COLUMNS would not follow the window."""
    try:
        columns, rows = os.get_terminal_size(out.fileno())
    except OSError:
        columns, rows = 0, 0
    return columns or 80, rows or 24  # a serial console may not know its size


def frame(before: Document | None, after: Document, trouble: str, columns: int, rows: int) -> str:
    """Return one screen: at most `rows` lines of at most `columns` characters, written over what was there.

    Args:
        trouble: why there is nothing newer; "" = there is.
    """
    lines = report(before, after, coloured, events="events", most_events=_EVENTS, columns=columns)
    if trouble:
        lines.insert(0, coloured(trouble, "bad"))
    shown = [_cut(line, columns) for line in lines[: max(1, rows - 1)]]
    left = len(lines) - len(shown)
    foot = f"q quits{f'; {left} more lines in a larger window' if left > 0 else ''}"
    shown += [_cut(coloured(foot, "head"), columns)] if rows > 1 else []
    return _HOME + "\r\n".join(line + _TO_END_OF_LINE for line in shown) + _TO_END_OF_SCREEN


def _cut(line: str, width: int) -> str:
    """Return at most `width` characters of a line, colours not counted and always ended."""
    cut, left, at = [], width, 0
    for found in [*COLOUR.finditer(line), None]:
        text = line[at : found.start() if found else len(line)]
        cut.append(text[:left])
        left = max(0, left - len(text))
        if found:
            cut.append(found[0])
            at = found.end()
    return "".join(cut)


@contextlib.contextmanager
def _screen(out: TextIO) -> Iterator[Callable[[float], bool]]:
    """A screen of its own, left as it was found, also while Ctrl-Z stops the program. Gives a function that waits for
    so many seconds, less when the window changes its size or a key is pressed, and says whether to end."""
    keys = sys.stdin.fileno() if sys.stdin.isatty() else None
    woken, wake = os.pipe()

    def notify(number: int, at: FrameType | None) -> None:
        os.write(wake, {signal.SIGWINCH: b"r", signal.SIGTSTP: b"z"}.get(signal.Signals(number), b"q"))

    def wait(seconds: float) -> bool:
        sources = [woken] if keys is None else [woken, keys]
        found, _, _ = select.select(sources, [], [], seconds)
        pressed = {key for source in found for key in os.read(source, 64)}
        if pressed & set(b"z") and woken in found:
            restore()
            handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTSTP)  # returns once the shell has it continue, with `fg`
            signal.signal(signal.SIGTSTP, handler)
            enter()
        return bool(pressed & set(b"qQ\x03\x04"))

    def enter() -> None:
        if keys is not None:
            tty.setcbreak(keys)
        out.write(_ENTER)

    def restore() -> None:
        out.write(_LEAVE)
        out.flush()
        if keys is not None and saved is not None:
            termios.tcsetattr(keys, termios.TCSADRAIN, saved)

    numbers = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    handlers = {number: signal.signal(number, notify) for number in numbers}
    saved = termios.tcgetattr(keys) if keys is not None else None
    try:
        enter()
        yield wait
    finally:
        restore()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(woken)
        os.close(wake)
