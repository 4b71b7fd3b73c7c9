"""A real `edge-serve` process for tests: started on free ports, ended by its own pid."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: generous: test machines are shared
PATIENCE = 30.0
#: so that no server of a test meets another one
FREE_PORTS = ("--http-port=0", "--metrics-port=0", "--allow-grpc=false")

ADD_SUB = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        replies = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            outputs = [pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b)]
            replies.append(pb_utils.InferenceResponse(outputs))
        return replies
"""

ADD_SUB_CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 16 ] }
input { name: "INPUT1" data_type: TYPE_INT32 dims: [ 16 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] }
output { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 16 ] }
"""


def python_model(root: Path, name: str, code: str = ADD_SUB, config: str = ADD_SUB_CONFIG, version: int = 1) -> Path:
    """Write a Python model; its directory."""
    directory = root / name
    (directory / str(version)).mkdir(parents=True, exist_ok=True)
    (directory / str(version) / "model.py").write_text(code)
    (directory / "config.pbtxt").write_text(config)
    return directory


@dataclass
class Running:
    """A server that was started."""

    process: subprocess.Popen[bytes]
    log_path: Path
    http: int = 0
    metrics: int = 0

    @property
    def url(self) -> str:
        """host:port, as tritonclient wants it."""
        return f"127.0.0.1:{self.http}"

    def log(self) -> str:
        """Return the log so far."""
        return self.log_path.read_text(errors="replace")

    def wait_for_log(self, pattern: str, limit: float = PATIENCE) -> re.Match[str]:
        """Until a line matches.

        Raises:
            AssertionError: none did in time, or the process ended.
        """
        end = time.monotonic() + limit
        while True:
            found = re.search(pattern, self.log(), re.MULTILINE)
            if found:
                return found
            assert self.process.poll() is None or re.search(pattern, self.log()), f"it ended:\n{self.log()}"
            assert time.monotonic() < end, f"no {pattern!r} in the log:\n{self.log()}"
            time.sleep(0.02)

    def get(self, path: str, port: int = 0) -> tuple[int, bytes]:
        """Status and body of a GET."""
        return self.request("GET", path, None, port)

    def post(self, path: str, body: Any = None) -> tuple[int, bytes]:
        """Status and body of a POST of a JSON document."""
        return self.request("POST", path, json.dumps(body).encode() if body is not None else b"")

    def request(
        self, method: str, path: str, body: bytes | None, port: int = 0, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and body."""
        url = f"http://127.0.0.1:{port or self.http}{path}"
        asked = urllib.request.Request(url, body, dict(headers or {}), method=method)
        try:
            with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read()

    def add_sub(self, model: str, value: int = 1) -> tuple[int, Any]:
        """One infer of the add/sub model; the status and the JSON of the answer."""
        data = [value] * 16
        inputs = [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": data} for name in ("INPUT0", "INPUT1")]
        status, body = self.post(f"/v2/models/{model}/infer", {"inputs": inputs})
        return status, json.loads(body)

    def workers(self) -> list[int]:
        """Pids of its worker processes."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for task in tasks for pid in task.read_text().split()]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE)


def start(
    *arguments: str,
    environment: dict[str, str] | None = None,
    prefix: Sequence[str] = (),
    cwd: Path | None = None,
) -> Running:
    """Start `edge-serve` on free ports; wait for nothing.

    Args:
        prefix: a command like `setpriv` that starts it.
        cwd: starts the installed program there, whose module path does not begin with the working directory.
    """
    handle, path = tempfile.mkstemp(prefix="edge-serve-test-", suffix=".log")
    installed = str(Path(sys.executable).with_name("edge-serve"))
    command = [
        *prefix,
        *([sys.executable, "-m", "edge_serve"] if cwd is None else [installed]),
        *FREE_PORTS,
        *arguments,
    ]
    with os.fdopen(handle, "wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
            cwd=cwd,
        )
    return Running(process, Path(path))


@contextlib.contextmanager
def running(
    *arguments: str, ready: bool = True, prefix: Sequence[str] = (), cwd: Path | None = None, limit: float = PATIENCE
) -> Iterator[Running]:
    """A server that is ready within `limit` seconds (or whose doors are open), ended at the end."""
    server = start(*arguments, prefix=prefix, cwd=cwd)
    try:
        server.http = int(server.wait_for_log(r"HTTP on 127\.0\.0\.1:(\d+)")[1])
        server.metrics = int(server.wait_for_log(r"metrics on 127\.0\.0\.1:(\d+)")[1])
        if ready:
            server.wait_for_log(r"edge-serve \S+ ready in", limit)
        yield server
    finally:
        try:
            server.stop()
        except subprocess.TimeoutExpired:
            server.process.kill()
            server.process.wait()
        server.log_path.unlink(missing_ok=True)
