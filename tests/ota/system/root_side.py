"""A device of the image below a directory, and an imitation of the root side that listens at its socket."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ota.server.system_unit import SOCKET

ARCH = platform.machine()
Answer = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class ImageDevice:
    """The files of a device that runs a version of the image."""

    def __init__(self, root: Path, version: int = 1) -> None:
        self.root = root
        self.record: dict[str, Any] = {
            "schema": 1,
            "confirmed": [version],
            "bad": {},
            "pending": None,
            "previous": None,
        }
        self.boots(version)

    def boots(self, version: int, profile: str = "", **record: object) -> None:
        """Run a version; change members of slots.json. One that is not confirmed is tried, as if installed."""
        release = f'ID=debian\nIMAGE_ID="edge"\nIMAGE_VERSION="{version}"\n'
        self.write("etc/os-release", release + (f"VARIANT_ID={profile}\n" if profile else ""))
        self.record |= {"pending": None, **record}
        if self.record["confirmed"] and version not in self.record["confirmed"] and "pending" not in record:
            self.record["pending"] = version
        self.write("var/lib/edge-system/slots.json", json.dumps(self.record))

    def write(self, path: str, text: str) -> None:
        """Write a file of the device."""
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)


def accept(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Do what is asked."""
    return {"ok": True, "version": request.get("version", 1)}


@contextlib.contextmanager
def root_side(root: Path, answer: Answer = accept) -> Iterator[list[Mapping[str, Any]]]:
    """Listen at the socket of a device; the requests that came. Each connection is one request, as in the unit."""
    path = root / SOCKET
    path.parent.mkdir(parents=True, exist_ok=True)
    requests: list[Mapping[str, Any]] = []
    with socket.socket(socket.AF_UNIX) as listener:
        folder = os.open(path.parent, os.O_PATH)  # a path of a socket has at most 107 bytes
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)
        listener.listen()

        def serve() -> None:
            while True:
                connection, _ = listener.accept()
                with connection, connection.makefile("rb") as lines:
                    line = lines.readline()
                    if not line:
                        return
                    requests.append(json.loads(line))
                    connection.sendall(json.dumps(answer(requests[-1])).encode() + b"\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield requests
        finally:
            with socket.socket(socket.AF_UNIX) as last:
                last.connect(str(path))
            thread.join()
            path.unlink()
