"""The control channel of a worker process."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from typing import cast

import pytest

from edge_serve.backends.python.api.metrics import MetricFamily
from edge_serve.workers.child.process import Control, ForwardingHandler
from edge_serve.workers.child.remote import Remote
from edge_serve.workers.wire.frames import Frame, FrameKind, Splitter, frame
from tests.backends.hosting import installed


class CollectingSocket:
    """A socket whose first `sendall` runs a finalizer that sends a frame, as a garbage collection may."""

    def __init__(self) -> None:
        self.sent = b""
        self.control = Control(cast(socket.socket, self))

    def sendall(self, data: bytes) -> None:
        """Send a frame in two parts."""
        self.sent += data[:1]
        if len(self.sent) == 1:
            self.control.send(b"later")
        self.sent += data[1:]


@pytest.mark.timeout(5)
def test_a_finalizer_that_sends_while_its_thread_sends_neither_waits_nor_cuts_the_frame() -> None:
    collecting = CollectingSocket()
    for data in (b"first", b"last"):
        collecting.control.send(data)
    assert collecting.sent == b"firstlaterlast"


class BusySocket:
    """A socket whose first `sendall` starts another thread that sends, and then runs a finalizer that sends, too."""

    def __init__(self) -> None:
        self.sent = b""
        self._control = Control(cast(socket.socket, self))
        self.remote = Remote(self._control.send)
        self._acts: list[Callable[[], None]] = []
        self._thread = threading.Thread()

    def sendall(self, data: bytes) -> None:
        """Send a frame."""
        self.sent += data
        if self._acts:
            act = self._acts.pop()
            self._thread = threading.Thread(target=act, daemon=True)
            self._thread.start()
            self._thread.join(0.05)
            act()

    def run(self, act: Callable[[], None]) -> list[Frame]:
        """Send a frame, and act meanwhile in another thread and in a finalizer. Return the other frames."""
        self._acts.append(act)
        self._control.send(frame(FrameKind.HEARTBEAT))
        self._thread.join(1)
        return Splitter().feed(self.sent)[1:]


def test_a_finalizer_may_log_while_another_thread_logs() -> None:
    busy = BusySocket()
    logger = logging.Logger("a model's")
    logger.addHandler(ForwardingHandler(busy.remote))
    assert in_time(lambda: busy.run(lambda: logger.info("line"))) == [FrameKind.LOG] * 2


def test_a_finalizer_may_count_while_another_thread_counts() -> None:
    busy = BusySocket()
    family = MetricFamily("finalized", "", MetricFamily.COUNTER)
    metric = family.Metric({})
    with installed(busy.remote):
        assert in_time(lambda: busy.run(lambda: metric.increment(1))) == [FrameKind.METRIC] * 2
    assert metric.value() == 2


def in_time(frames: Callable[[], list[Frame]]) -> list[int]:
    """Return the kinds of frames that arrive, unless their threads wait for each other."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(one.kind for one in frames()), daemon=True)
    thread.start()
    thread.join(2)
    return found


def test_a_line_that_cannot_be_formatted_does_not_fail_its_caller(capsys: pytest.CaptureFixture[str]) -> None:
    frames: list[bytes] = []
    logger = logging.Logger("a model's")
    logger.addHandler(ForwardingHandler(Remote(frames.append)))
    logger.warning("deprecated", FutureWarning)
    logger.warning("next")
    assert [one.json()["text"] for one in Splitter().feed(b"".join(frames))] == ["next"]
    assert "--- Logging error ---" in capsys.readouterr().err
