"""Through how many files does one request pass? A warm unary request over HTTP and over gRPC, to a Python model.

A profiler (`sys.setprofile`) notes the files of edge_serve in which functions are called: in the front end from before
the request is sent until its response is there, in the worker from one `execute` to the next. Files count that pass in
each of several requests, so that timers which happen to run do not.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import ROOT, Report, Row

WARM_UP = 300
ROUNDS = 7
VALUES = np.arange(4, dtype=np.int32)

CONFIG = """backend: "python"
input { name: "X" data_type: TYPE_INT32 dims: 4 }
output { name: "Y" data_type: TYPE_INT32 dims: 4 }
"""
MODEL = """
import json, os, sys
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.rounds, self.files, self.count = [], set(), 0

    def execute(self, requests):
        sys.setprofile(None)
        self.count += 1
        if self.count > {warm_up}:
            self.rounds.append(sorted(self.files))
            with open({path!r} + ".new", "w") as file:
                json.dump(self.rounds, file)
            os.rename({path!r} + ".new", {path!r})
        self.files = set()
        given = [pb_utils.get_input_tensor_by_name(one, "X").as_numpy() for one in requests]
        answers = [pb_utils.InferenceResponse([pb_utils.Tensor("Y", values)]) for values in given]
        if self.count >= {warm_up}:
            sys.setprofile(self.note)
        return answers

    def note(self, frame, event, argument):
        self.files.add(frame.f_code.co_filename)
"""


def run() -> Report:
    """Ask a server in a program of its own; the profiler slows it, so nothing is timed."""
    report = Report("files_passed", "files of edge_serve that one warm unary request passes")
    with tempfile.TemporaryDirectory() as scratch:
        for door in ("http", "grpc"):
            report.rows.append(_row(door, Path(scratch) / door))
    return report


def _row(door: str, folder: Path) -> Row:
    version = folder / "models/echo/1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    noted = folder / "worker.json"
    (version / "model.py").write_text(MODEL.replace("{warm_up}", str(WARM_UP)).replace("{path!r}", repr(str(noted))))
    command = [sys.executable, "-m", "benchmarks.files_passed", door, str(folder / "models")]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"the server with the profiler failed: {done.stderr[-2000:]}")
    front = common(json.loads(done.stdout.splitlines()[-1]))
    worker = common(json.loads(noted.read_text())[1:])
    return {
        "door": door, "front end": len(front), "worker": len(worker), "together": len(front | worker),
        "files": " ".join(sorted(front)) + " | " + " ".join(sorted(worker)),
    }  # fmt: skip


def common(rounds: list[list[str]]) -> set[str]:
    """Return the files of edge_serve that pass in every round, by their path in the package without `.py`."""
    root = f"{ROOT / 'edge_serve'}/"
    each = [{name[len(root) : -3] for name in files if name.startswith(root)} for files in rounds]
    return set.intersection(*each)


def _client(door: str, port: int) -> Callable[[], None]:
    """Return a function that sends one request over a connection that stays open, and checks the response."""
    if door == "http":
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        inputs = [{"name": "X", "shape": [4], "datatype": "INT32", "parameters": {"binary_data_size": 16}}]
        outputs = [{"name": "Y", "parameters": {"binary_data": True}}]
        head = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}

        def ask_http() -> None:
            connection.request("POST", "/v2/models/echo/infer", head + VALUES.tobytes(), headers)
            answer = connection.getresponse()
            if not answer.read().endswith(VALUES.tobytes()):
                raise RuntimeError(f"HTTP {answer.status}: not the values that were sent")

        return ask_http
    import tritonclient.grpc as grpc

    client = grpc.InferenceServerClient(f"127.0.0.1:{port}")
    one = grpc.InferInput("X", [4], "INT32")
    one.set_data_from_numpy(VALUES)

    def ask_grpc() -> None:
        if not np.array_equal(client.infer("echo", [one]).as_numpy("Y"), VALUES):
            raise RuntimeError("gRPC: not the values that were sent")

    return ask_grpc


def _serve(door: str, models: str) -> None:
    """Serve and ask in one program: the event loop in the main thread, the client in another."""
    import asyncio

    from edge_serve.config.settings.server import ServerConfig
    from edge_serve.server import ServerProcess

    config = ServerConfig(
        model_repository=(models,), http_port=0, grpc_port=0, http_address="127.0.0.1", grpc_address="127.0.0.1",
        allow_metrics=False, busy_poll_microseconds=0,
    )  # fmt: skip

    async def main() -> list[list[str]]:
        server = ServerProcess(config)
        try:
            if failures := await server.start():
                raise RuntimeError("; ".join(failures))
            port = int(str(server.addresses["HTTP" if door == "http" else "gRPC"]).rsplit(":", 1)[1].strip("/'] "))
            ask = await asyncio.to_thread(_client, door, port)
            rounds = []
            for number in range(WARM_UP + ROUNDS):
                files: set[str] = set()

                def note(frame: Any, event: str, argument: Any, files: set[str] = files) -> None:
                    files.add(frame.f_code.co_filename)

                if number >= WARM_UP:
                    sys.setprofile(note)
                await asyncio.to_thread(ask)
                sys.setprofile(None)
                if number >= WARM_UP:
                    rounds.append(sorted(files))
            return rounds
        finally:
            await server.stop()
            await server.close()

    sys.stdout.write(json.dumps(asyncio.run(main())) + "\n")


if __name__ == "__main__":
    _serve(*sys.argv[1:])
