"""HTTP by hand: what a client library would not let one send, and what came back."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.server.running import PATIENCE


@dataclass
class Answer:
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def closes(self) -> bool:
        """Nothing more will come on the connection."""
        return self.headers.get("connection", "").lower() == "close"

    @property
    def error(self) -> str:
        """The text of an error reply."""
        return str(json.loads(self.body)["error"])


class Client:
    """One connection."""

    def __init__(self, port: int, timeout: float = PATIENCE, receive_buffer: int = 0) -> None:
        self._timeout = timeout
        self._receive_buffer = receive_buffer
        self._open(port)

    def _open(self, port: int) -> None:
        self.socket = socket.socket()
        if self._receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        self.socket.settimeout(self._timeout)
        self.socket.connect(("127.0.0.1", port))
        self._received = b""

    def reopen(self, port: int) -> None:
        """Close, and connect again."""
        self.close()
        self._open(port)

    def close(self) -> None:
        """Close both ways."""
        self.socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send all bytes; the server may have answered and closed before the end."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def ask(self, data: bytes) -> Answer:
        """Send and wait for one response."""
        self.send(data)
        return self.answer()

    def answer(self) -> Answer:
        """The next response.

        Raises:
            ConnectionError: the server closed instead.
        """
        while b"\r\n\r\n" not in self._received:
            self._more()
        head, _, rest = self._received.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        length = int(headers.get("content-length", "0"))
        self._received = rest
        while len(self._received) < length:
            self._more()
        body, self._received = self._received[:length], self._received[length:]
        return Answer(int(lines[0].split(" ")[1]), headers, body)

    def finish(self) -> None:
        """Nothing more will be sent."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def rest(self) -> Iterator[Answer]:
        """All answers until the server closes."""
        while True:
            try:
                yield self.answer()
            except ConnectionError:
                return

    def is_closed(self) -> bool:
        """The server says nothing more; waits for it."""
        try:
            return not self._received and not self.socket.recv(1)
        except ConnectionResetError:
            return True

    def _more(self) -> None:
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionError(f"closed after {self._received!r}")
        self._received += data

    def reset(self) -> None:
        """Close with a RST, as a crashed client's kernel does."""
        reset_on_close(self.socket)
        self.socket.close()


def reset_on_close(sock: socket.socket) -> None:
    """Let `close` send a RST, so that the server cancels the client's requests at once."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    """A request with Content-Length."""
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *headers]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def infer_json(model: str, inputs: Any, *headers: str, **more: Any) -> bytes:
    """A request with a JSON body."""
    body = json.dumps({"inputs": inputs, **more}).encode()
    return request("POST", f"/v2/models/{model}/infer", body, *headers)


def infer_binary(model: str, inputs: Sequence[tuple[str, str, np.ndarray[Any, Any]]], *headers: str) -> bytes:
    """A request with binary tensors in and out."""
    described = [
        {"name": name, "datatype": kind, "shape": list(data.shape), "parameters": {"binary_data_size": data.nbytes}}
        for name, kind, data in inputs
    ]
    text = json.dumps({"inputs": described, "parameters": {"binary_data_output": True}}).encode()
    body = text + b"".join(data.tobytes() for _, _, data in inputs)
    length = f"Inference-Header-Content-Length: {len(text)}"
    return request("POST", f"/v2/models/{model}/infer", body, length, *headers)
