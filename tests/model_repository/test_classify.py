"""classify.py on the command line: what is said when it cannot do its work."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2] / "model_repository"


def said(server: str) -> str:
    command = [sys.executable, str(REPOSITORY / "magika/classify.py"), "--server", server, __file__]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode
    return done.stderr


@pytest.mark.parametrize("server", ["http://localhost:8000", "localhost:abc", "", "[::1", "u@h"])
def test_a_wrong_address_is_reported(server: str) -> None:
    assert said(server).endswith(f"--server: found '{server}', expected <host>:<port>\n")


def test_a_port_without_http_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:

        def answer() -> None:
            client, _ = door.accept()
            with client:
                client.sendall(b"\x00\x00\x06\x04")
                client.shutdown(socket.SHUT_WR)
                while client.recv(1 << 16):  # a close with unread bytes would reset the connection
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{door.getsockname()[1]}"
        assert said(address) == f"classify: what answers at {address} speaks no HTTP/1.1: is it the port of gRPC?\n"
        thread.join()
