"""A unit as systemd makes it of `Accept=yes`: a process for each connection, whose standard input and output it is."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path


@contextlib.contextmanager
def accepting(path: Path, command: Sequence[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Listen at `path`, and start `command` for each connection; the processes."""
    started: list[subprocess.Popen[bytes]] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    end = connection.fileno()
                    started.append(subprocess.Popen(command, stdin=end, stdout=end, start_new_session=True))

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield started
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)
            for one in started:
                one.kill()
                one.wait()
