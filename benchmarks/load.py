"""Load generators: Triton's perf_analyzer, wrk, and a bare keep-alive connection for latencies."""

from __future__ import annotations

import re
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks import peer
from benchmarks.report import Row
from benchmarks.servers import Server


def perf_analyzer(
    server: Server,
    model: str,
    connections: int,
    interval_ms: int = 1500,
    protocol: str = "http",
    *flags: str,
    rate: int = 0,
) -> tuple[float, float]:
    """Return (infer/s, p99 in us) over binary HTTP, or over gRPC with `protocol` "grpc".

    Args:
        rate: requests per second, over at most `connections` connections; 0 = as many as the server answers.

    Raises:
        peer.NoPeerError: perf_analyzer is not available on this machine.
        RuntimeError: it ended without a figure; the text has its last output.
    """
    address = server.address if protocol == "http" else server.grpc_address
    offered = ["--concurrency-range", str(connections)]
    if rate:  # at a fixed rate, latencies always differ between windows on a machine with other work
        offered = ["--request-rate-range", str(rate), "--max-threads", str(connections), "-s", "999"]
    command = [
        *peer.perf_analyzer(), "-m", model, "-u", address, "-i", protocol, "-s", "60",
        "--measurement-interval", str(interval_ms), "--max-trials", "3", *offered, *flags,
    ]  # fmt: skip
    for _ in range(3):  # a busy machine may have no stable window
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        throughput = re.search(r"Throughput: ([\d.]+) infer/sec", done.stdout)
        p99 = re.search(r"p99 latency: (\d+) usec", done.stdout)
        if throughput and p99:
            return float(throughput[1]), float(p99[1])
    raise RuntimeError(f"perf_analyzer: no figure from {server.name}\n{done.stdout[-1500:]}{done.stderr[-1500:]}")


def wrk(address: str, path: str, body: bytes, connections: int) -> tuple[float, float]:
    """Return (requests/s, p99 in us) of POSTs of one body for 3 seconds.

    Raises:
        peer.NoPeerError: wrk is not installed.
        RuntimeError: it ended without a figure, or the server refused requests.
    """
    if not shutil.which("wrk"):
        raise peer.NoPeerError("wrk is not installed: apt-get install wrk")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "body").write_bytes(body)
        script = Path(folder) / "post.lua"
        script.write_text(
            f'wrk.method = "POST"\nlocal file = io.open("{folder}/body", "rb")\n'
            'wrk.body = file:read("*a")\nfile:close()\n'
        )
        command = ["wrk", "-t1", f"-c{connections}", "-d3s", "--latency", "-s", str(script)]
        done = subprocess.run([*command, f"http://{address}{path}"], capture_output=True, text=True, timeout=60)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s)", done.stdout)
    if not rate or not p99 or "Non-2xx" in done.stdout:
        raise RuntimeError(f"wrk: no figure from {address}{path}\n{done.stdout}{done.stderr}")
    return float(rate[1]), float(p99[1]) * {"us": 1, "ms": 1e3, "s": 1e6}[p99[2]]


def versus(
    a: Server, b: Server, measure: Callable[[Server], tuple[float, float]], rounds: int = 3, model: str = ""
) -> Row:
    """Measure two servers in turn (A B A B ...): medians, and the ratio A/B pair by pair.

    A shared machine is noisy: quote the median ratio, never one absolute figure.

    Args:
        model: the row gets the processor time of each server per request to this model; "" = no such figure.
    """
    pairs = [tuple(_costed(server, measure, model) for server in (a, b)) for _ in range(rounds)]
    ratios = sorted(first[0] / second[0] for first, second in pairs)
    row: Row = {}
    for index, server in enumerate((a, b)):
        row[f"{server.name} /s"] = statistics.median(pair[index][0] for pair in pairs)
        row[f"{server.name} p99 us"] = statistics.median(pair[index][1] for pair in pairs)
        if model:
            row[f"{server.name} CPU us"] = statistics.median(pair[index][2] for pair in pairs)
    row |= {"ratio": statistics.median(ratios), "lowest": ratios[0], "highest": ratios[-1]}
    if model:
        row["CPU ratio"] = statistics.median(first[2] / second[2] for first, second in pairs)
    return row


def _costed(server: Server, measure: Callable[[Server], tuple[float, float]], model: str) -> tuple[float, float, float]:
    """Return (requests/s, p99 in us, processor time in us per request; 0 without a model)."""
    if not model:
        return *measure(server), 0.0
    answered, cpu = server.answered(model), server.cpu_seconds()
    rate, p99 = measure(server)
    cost = (server.cpu_seconds() - cpu) / max(1, server.answered(model) - answered)
    return rate, p99, cost * 1e6


def latencies(server: Server, request: bytes, seconds: float) -> list[float]:
    """Return the seconds of each request, one after the other on one connection."""
    taken = []
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            sock.sendall(request)
            read_reply(sock)
            taken.append(time.perf_counter() - start)
    return taken


def rate(server: Server, request: bytes, connections: int, seconds: float) -> float:
    """Return the requests per second of connections that send one request after the other, each in a thread."""
    with ThreadPoolExecutor(connections) as pool:
        counts = pool.map(lambda _: len(latencies(server, request, seconds)), range(connections))
    return sum(counts) / seconds


def read_reply(sock: socket.socket) -> bytes:
    """Read a reply with Content-Length and return its body.

    Raises:
        RuntimeError: the status is not 200, or the connection closed.
    """
    data = b""
    while b"\r\n\r\n" not in data:
        data += _received(sock)
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"\ncontent-length: *(\d+)", head, re.IGNORECASE)
    if not head.startswith(b"HTTP/1.1 200") or length is None:
        raise RuntimeError(data[:500].decode(errors="replace"))
    parts, missing = [body], int(length[1]) - len(body)
    while missing > 0:
        parts.append(_received(sock))
        missing -= len(parts[-1])
    return b"".join(parts)


def _received(sock: socket.socket) -> bytes:
    data = sock.recv(1 << 20)
    if not data:
        raise RuntimeError("the server closed the connection")
    return data
