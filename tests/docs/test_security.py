"""The commands of docs/security.md, in order, in a folder of their own; the server that it shows runs beside them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_samples import as_shown
from tests.server.running import PATIENCE, python_model

PAGE = (Path(__file__).parents[2] / "docs/security.md").read_text()
_BLOCK = re.compile(r"^```(\S+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IDENTITY = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values)]) for values in inputs]
"""
CONFIG = (
    'backend: "python" input [{ name: "IN" data_type: TYPE_INT32 dims: [-1] }] '
    'output [{ name: "OUT" data_type: TYPE_INT32 dims: [-1] }]'
)
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def steps() -> list[tuple[bool, str, str | None]]:
    """Whether it is the server's, the command, and what it must print."""
    blocks = [(language, mark.strip(), text) for language, mark, text in _BLOCK.findall(PAGE)]
    found = []
    for (language, mark, text), (follows, _, shown) in zip(blocks, [*blocks, ("", "", "")][1:], strict=True):
        if language == "bash" and mark.startswith("secured"):
            found.append((mark == "secured server", text, shown if follows == "text" else None))
    return found


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def served(command: str, folder: Path) -> Iterator[None]:
    """The server of the page, on this port, until the end."""
    command = "exec " + command.rstrip() + " --allow-metrics=false --allow-grpc=false"
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(["bash", "-c", command], cwd=folder, env=ENVIRONMENT, stdout=log, stderr=log)
    try:
        end = time.monotonic() + PATIENCE
        while " ready in " not in (text := (folder / "log").read_text()):
            assert server.poll() is None, text
            assert time.monotonic() < end, text
            time.sleep(0.05)
        yield
    finally:
        server.terminate()
        server.wait(PATIENCE)


def run(command: str, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True,
        timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.skipif(not (shutil.which("openssl") and shutil.which("curl")), reason="openssl or curl is not installed")
def test_the_page_does_what_it_shows(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "m", IDENTITY, CONFIG)
    (tmp_path / "certificates").write_text("")
    port = free_port()
    with contextlib.ExitStack() as stack:
        for is_server, command, shown in steps():
            command = command.replace("localhost:8000", f"localhost:{port}").replace("port=8000", f"port={port}")
            if is_server:
                stack.enter_context(served(command, tmp_path))
                continue
            printed = run(command, tmp_path)
            assert shown is None or as_shown(shown, printed), f"{command}\nprinted:\n{printed}"


def test_the_page_has_its_steps() -> None:
    assert [is_server for is_server, _, _ in steps()] == [False, False, True, False, False, False]
    assert len([shown for _, _, shown in steps() if shown is not None]) == 4
