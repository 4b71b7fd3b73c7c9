"""A service manager for tests: a real datagram socket, and a real `edge-serve` process that speaks to it."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.server.running import PATIENCE, Running, start
from tests.supervision import faulty

Message = dict[str, str]


@dataclass
class Mailbox:
    """The messages of a service to its manager."""

    address: str
    sock: socket.socket
    seen: list[Message] = field(default_factory=list)

    def wait_for(self, wanted: Callable[[Message], bool], limit: float = PATIENCE) -> Message:
        """The next message that is `wanted`; those before it are in `seen`.

        Raises:
            AssertionError: none came in time.
        """
        end = time.monotonic() + limit
        while True:
            message = self.next(end - time.monotonic())
            assert message is not None, f"not told in {limit} s; told was {self.seen}"
            if wanted(message):
                return message

    def next(self, limit: float) -> Message | None:
        """The next message, or None when none comes in time."""
        self.sock.settimeout(max(0.001, limit))
        try:
            text = self.sock.recv(65536).decode()
        except TimeoutError:
            return None
        self.seen.append(dict(line.split("=", 1) for line in text.splitlines()))
        return self.seen[-1]

    def drain(self) -> list[Message]:
        """All messages so far."""
        while self.next(0.001) is not None:
            pass
        return self.seen


@contextlib.contextmanager
def mailbox(path: Path) -> Iterator[Mailbox]:
    """Listen on a path, or on an abstract address when it starts with `@`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        text = str(path)
        sock.bind("\0" + text[1:] if text.startswith("@") else text)
        yield Mailbox(text, sock)


@contextlib.contextmanager
def supervised(box: Mailbox, *arguments: str, watchdog: float = 0.0, faults: str = "") -> Iterator[Running]:
    """A server started as systemd would start it, killed at the end if it still runs; waits for nothing.

    Args:
        faults: modes of `faulty`, which starts the server then.
    """
    given = {"NOTIFY_SOCKET": box.address}
    if watchdog:
        given["WATCHDOG_USEC"] = str(int(watchdog * 1e6))
    prefix = [sys.executable, str(faulty.__file__), faults] if faults else []
    server = start(*arguments, environment=given, prefix=prefix)
    try:
        yield server
    finally:
        server.process.kill()  # its workers die with it
        server.process.wait(PATIENCE)
        server.log_path.unlink(missing_ok=True)


def find_ports(server: Running) -> None:
    """Learn from the log where its doors are."""
    server.http = int(server.wait_for_log(r"HTTP on 127\.0\.0\.1:(\d+)")[1])
    server.metrics = int(server.wait_for_log(r"metrics on 127\.0\.0\.1:(\d+)")[1])


def ready(message: Message) -> bool:
    """READY=1"""
    return message.get("READY") == "1"


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
