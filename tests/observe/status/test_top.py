"""The live report: a screen, and a terminal that it runs in."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest

from edge_serve.observe.status.top import _cut, frame
from tests.observe.status.documents import document
from tests.observe.status.test_client import Server, serving

_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def visible(screen: str) -> list[str]:
    return [_SEQUENCE.sub("", line) for line in screen.split("\r\n")]


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (20, 5), (1, 1), (200, 100)])
def test_a_screen_fits_the_window(columns: int, rows: int) -> None:
    lines = visible(frame(None, document(), "", columns, rows))

    assert len(lines) <= rows
    assert all(len(line) <= columns for line in lines)


def test_lines_that_do_not_fit_are_counted() -> None:
    lines = visible(frame(None, document(), "", 80, 10))

    assert re.fullmatch(r"q quits; \d+ more lines in a larger window", lines[-1])
    assert visible(frame(None, document(), "", 80, 100))[-1] == "q quits"


def test_a_lost_server_is_reported_above_its_last_document() -> None:
    lines = visible(frame(None, document(), "no server answers at x", 80, 24))

    assert lines[0] == "no server answers at x"
    assert lines[1].startswith("edge-serve 1.2.3 on cart-7")


def test_colours_do_not_count_and_are_always_ended() -> None:
    assert _cut("a\x1b[32mbcd\x1b[0me", 3) == "a\x1b[32mbc\x1b[0m"
    assert _cut("plain", 10) == "plain"


class Terminal:
    """`edge-serve top` in a terminal of its own."""

    def __init__(self, url: str, script: str = 'exec "$@"') -> None:
        self._master, slave = pty.openpty()
        self.resize(30, 100)
        self.before = termios.tcgetattr(slave)
        self._slave = slave
        top = [sys.executable, "-m", "edge_serve", "top", "--interval", "0.1", "--url", url]
        command = ["bash", "-c", script, "bash", *top]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        self.text = ""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def wait_for(self, pattern: str) -> str:
        """Until what is written from now on matches."""
        end, begin = time.monotonic() + 30, len(self.text)
        while not re.search(pattern, self.text[begin:]):
            assert time.monotonic() < end, self.text[begin:]
            if select.select([self._master], [], [], 0.2)[0]:
                with contextlib.suppress(OSError):  # the other end is closed
                    self.text += os.read(self._master, 65536).decode(errors="replace")
        return self.text[begin:]

    def ended(self) -> int:
        """The exit status; the terminal is as it was."""
        self.wait_for(r"\x1b\[\?1049l")
        status = self.process.wait(30)
        assert termios.tcgetattr(self._slave) == self.before
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)


@pytest.fixture
def scene() -> Iterator[tuple[Terminal, Server]]:
    with serving(json.dumps(document()).encode()) as (server, target):
        terminal = Terminal(target.url)
        try:
            yield terminal, server
        finally:
            terminal.close()


def test_top_refreshes_until_q(scene: tuple[Terminal, Server]) -> None:
    terminal, server = scene
    assert terminal.wait_for("q quits").startswith("\x1b[?1049h\x1b[?25l")
    terminal.wait_for("cart-7")
    server.body = server.body.replace(b"cart-7", b"cart-8")
    terminal.wait_for("cart-8")
    terminal.type(b"q")

    assert terminal.ended() == 0


def test_top_follows_the_size_of_the_window(scene: tuple[Terminal, Server]) -> None:
    terminal, _ = scene
    terminal.wait_for("q quits\x1b")
    terminal.resize(6, 40)
    terminal.wait_for("more lines in a larger")
    terminal.type(b"\x03")

    assert terminal.ended() == 0


def test_the_view_continues_when_the_server_was_away(scene: tuple[Terminal, Server]) -> None:
    terminal, server = scene
    terminal.wait_for("q quits")
    server.status, body = 500, server.body
    terminal.wait_for("as it was at .*: .* returned no")
    server.status, server.body = 200, body.replace(b"cart-7", b"cart-9")
    terminal.wait_for("cart-9")
    terminal.process.send_signal(signal.SIGTERM)

    assert terminal.ended() == 0


def test_top_without_standard_input_is_ended_by_a_signal() -> None:
    with serving(json.dumps(document()).encode()) as (_, target):
        terminal = Terminal(target.url, 'exec "$@" <&-')
        try:
            terminal.wait_for("q quits")
            terminal.type(b"\x03")
            assert terminal.ended() == 0
        finally:
            terminal.close()


def test_ctrl_z_gives_the_terminal_back_until_fg() -> None:
    with serving(json.dumps(document()).encode()) as (_, target):
        terminal = Terminal(target.url, 'set -m; "$@"; stty -a; echo stopped; read; fg')
        try:
            terminal.wait_for("q quits")
            terminal.type(b"\x1a")
            shown = terminal.wait_for("stopped\r\n")
            assert "\x1b[?25h\x1b[?1049l" in shown
            assert re.search(r"[^-]icanon", shown), "the shell gets whole lines again"
            terminal.type(b"\n")
            assert "\x1b[?1049h\x1b[?25l" in terminal.wait_for("q quits")
            terminal.type(b"q")
            assert terminal.ended() == 0
        finally:
            terminal.close()
