"""Starts and stops the measured servers, each on ports of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import peer
from benchmarks.report import ROOT

MODELS = ROOT / "benchmarks/models"
DEMO = ROOT / "model_repository"
#: a checkout of edge-serve that is measured in the place of Triton (`python -m benchmarks.run --beside`)
BESIDE = os.environ.get("BENCH_BESIDE", "")


@dataclass
class Server:
    """A running server; `start_seconds` is from the start of the process to its first "ready"."""

    name: str
    port: int
    pid: int
    start_seconds: float
    grpc_port: int = 0
    metrics_port: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def grpc_address(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def cpu_seconds(self) -> float:
        """Return the processor time of the server so far, with that of all processes that it has started."""
        return cpu_seconds(self.pid)

    def front_end_seconds(self) -> float:
        """Return the processor time so far of its first process alone: the front end, in edge-serve."""
        return own_cpu_seconds(self.pid)

    def answered(self, model: str) -> int:
        """Return the requests that a model has answered so far, by the server's statistics."""
        return self.counts(model)[0]

    def counts(self, model: str) -> tuple[int, int]:
        """Return the requests that a model has answered so far, and its executions."""
        stats = json.loads(get(self.port, f"/v2/models/{model}/stats"))["model_stats"]
        answered = sum(int(one["inference_stats"]["success"]["count"]) for one in stats)
        return answered, sum(int(one["execution_count"]) for one in stats)


def get(port: int, path: str) -> bytes:
    """Return the body of a GET from a server on this machine."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().read()


def family(root: int) -> dict[int, list[str]]:
    """Return a process and its descendants: their fields in /proc/PID/stat from the third on (proc_pid_stat(5))."""
    fields = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    members = {root}
    while found := {pid for pid, one in fields.items() if int(one[1]) in members} - members:
        members |= found
    return {pid: fields[pid] for pid in members & fields.keys()}


def cpu_seconds(root: int) -> float:
    """Return the processor time of a process and its descendants, with that of children that have ended."""
    return sum(int(ticks) for fields in family(root).values() for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def own_cpu_seconds(pid: int) -> float:
    """Return the processor time of one process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def edge_serve(
    repository: Path, *flags: str, environ: Mapping[str, str] = os.environ, root: Path = ROOT
) -> Iterator[Server]:
    """Start the server of a checkout, by default of this one, with this interpreter and its packages."""
    http_port, grpc_port, metrics_port = free_ports(3)
    command = [
        sys.executable, "-m", "edge_serve", f"--model-repository={repository}", f"--http-port={http_port}",
        f"--grpc-port={grpc_port}", f"--metrics-port={metrics_port}", *flags,
    ]  # fmt: skip
    path = os.pathsep.join([str(root), *filter(None, [environ.get("PYTHONPATH")])])
    environment = {**environ, "PYTHONPATH": path}
    with _running("edge-serve" if root == ROOT else "beside", command, environment, http_port) as server:
        server.grpc_port, server.metrics_port = grpc_port, metrics_port
        yield server


@contextlib.contextmanager
def triton(repository: Path, *flags: str, backends: Path | None = None) -> Iterator[Server]:
    """Start the real Triton, with the backends of a folder in place of its own; with BESIDE, that checkout instead.

    Raises:
        peer.NoPeerError: Triton is not available on this machine.
    """
    if BESIDE:
        with edge_serve(repository, *flags, root=Path(BESIDE)) as server:
            yield server
        return
    http_port, grpc_port, metrics_port = free_ports(3)
    command, environment = peer.triton(repository, http_port, grpc_port, metrics_port, *flags, backends=backends)
    with _running("triton", command, environment, http_port) as server:
        server.grpc_port, server.metrics_port = grpc_port, metrics_port
        yield server


@contextlib.contextmanager
def both(repository: Path) -> Iterator[tuple[Server, Server]]:
    """Start the server of this checkout, and `triton`, with the same models.

    Raises:
        peer.NoPeerError: Triton is not available on this machine.
    """
    with edge_serve(repository) as ours, triton(repository) as theirs:
        yield ours, theirs


@contextlib.contextmanager
def repository(models: Iterable[Path]) -> Iterator[Path]:
    """Make a repository with copies of some models."""
    with tempfile.TemporaryDirectory(prefix="bench-models-") as folder:
        for model in models:
            shutil.copytree(model, Path(folder) / model.name, ignore=shutil.ignore_patterns("__pycache__"))
        yield Path(folder)


def free_ports(count: int) -> list[int]:
    """Return TCP ports on which no program listens."""
    with contextlib.ExitStack() as held:
        return [held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)]


@contextlib.contextmanager
def _running(name: str, command: list[str], environment: dict[str, str], port: int) -> Iterator[Server]:
    with tempfile.TemporaryFile() as log:
        started = time.monotonic()
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            if not _wait_ready(process, port):
                log.seek(0)
                text = log.read().decode(errors="replace")[-3000:]
                raise RuntimeError(f"{name} did not become ready: {' '.join(command)}\n{text}")
            yield Server(name, port, process.pid, time.monotonic() - started)
        finally:
            _stop(process)


def _wait_ready(process: subprocess.Popen[bytes], port: int, seconds: float = 120) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
            connection.request("GET", "/v2/health/ready")
            if connection.getresponse().status == 200:
                return True
        time.sleep(0.002)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(40)
    with contextlib.suppress(ProcessLookupError):  # children that outlived it
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
