"""The control channel of a worker process."""

from __future__ import annotations

import logging
import socket
from typing import cast

import pytest

from edge_serve.workers.child.process import Control, ForwardingHandler
from edge_serve.workers.child.remote import Remote
from edge_serve.workers.wire.frames import Splitter


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
    for frame in (b"first", b"last"):
        collecting.control.send(frame)
    assert collecting.sent == b"firstlaterlast"


def test_a_line_that_cannot_be_formatted_does_not_fail_its_caller(capsys: pytest.CaptureFixture[str]) -> None:
    frames: list[bytes] = []
    logger = logging.Logger("a model's")
    logger.addHandler(ForwardingHandler(Remote(frames.append)))
    logger.warning("deprecated", FutureWarning)
    logger.warning("next")
    assert [one.json()["text"] for one in Splitter().feed(b"".join(frames))] == ["next"]
    assert "--- Logging error ---" in capsys.readouterr().err
