"""The installed command `tritonserver`: each command line of config/settings/test_programs.py becomes ready as it is.

The servers listen on every address and on fixed ports, so each runs in a network of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.config.settings.test_programs import COMMAND_LINES
from tests.server.running import PATIENCE, python_model

PROGRAM = str(Path(sys.executable).with_name("tritonserver"))
#: a client in the network of the server, once that is ready
ASK = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/v2/health/ready').status)"


def _has_namespaces() -> bool:
    tried = subprocess.run(["unshare", "--net", "ip", "link", "set", "lo", "up"], capture_output=True)
    return tried.returncode == 0


def _wait_for(path: Path, pattern: str, process: subprocess.Popen[bytes]) -> re.Match[str]:
    end = time.monotonic() + PATIENCE
    while (found := re.search(pattern, path.read_text())) is None:
        assert process.poll() is None, path.read_text()
        assert time.monotonic() < end, path.read_text()
        time.sleep(0.02)
    return found


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not _has_namespaces(), reason="needs root and network namespaces"
)
@pytest.mark.slow
def test_command_lines_become_ready_on_every_address(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "m")
    servers = {}
    try:
        for name, line in COMMAND_LINES.items():
            arguments = line.replace("/mnt/models", str(tmp_path / "models")).split()
            log = tmp_path / f"{name}.log"
            command = ["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$0" "$@"', PROGRAM, *arguments]
            with log.open("wb") as file:
                servers[name] = subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
        for name, process in servers.items():
            log = tmp_path / f"{name}.log"
            _wait_for(log, r"ready in", process)
            doors = dict(re.findall(r"(HTTP|gRPC|metrics) on (\S+)", log.read_text()))
            http, grpc = ("8080", "9000") if name == "kserve" else ("8000", "8001")
            assert doors == {"HTTP": f"0.0.0.0:{http}", "gRPC": f"0.0.0.0:{grpc}", "metrics": "0.0.0.0:8002"}
            inside = ["nsenter", "--net", "--target", str(process.pid), sys.executable, "-c", ASK.format(port=http)]
            assert subprocess.run(inside, capture_output=True, text=True, timeout=PATIENCE).stdout == "200\n"
    finally:
        for process in servers.values():
            process.terminate()
        statuses = {name: process.wait(PATIENCE) for name, process in servers.items()}
    assert set(statuses.values()) == {0}


def test_an_error_begins_with_the_name_of_the_command() -> None:
    done = subprocess.run(
        [PROGRAM, "--model-store=s3://bucket/models"], capture_output=True, text=True, timeout=PATIENCE
    )

    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert first.startswith("tritonserver: Bad option \"--model-store\": found 's3://bucket/models'")
    assert second == "Try 'tritonserver --help'."
