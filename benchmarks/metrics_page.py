"""How long does a scrape of many models take, beside Triton's?"""

from __future__ import annotations

import contextlib
import shutil
import socket
import statistics
from dataclasses import replace

from benchmarks import load, peer
from benchmarks.report import Report, Row
from benchmarks.servers import MODELS, Server, edge_serve, repository, triton

COPIES = 20
SECONDS = 2.0

_SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain\r\n\r\n"


def run(rounds: int = 3) -> Report:
    """Measure scrapes on one connection, which Prometheus keeps open, without other clients."""
    report = Report("metrics_page", f"one scrape of {COPIES} models")
    with repository([MODELS / "add_sub"]) as models:
        for number in range(1, COPIES):
            copy = shutil.copytree(models / "add_sub", models / f"add_sub_{number}") / "config.pbtxt"
            copy.write_text(copy.read_text().replace('"add_sub"', f'"add_sub_{number}"'))
        with contextlib.ExitStack() as running:
            servers = [running.enter_context(edge_serve(models))]
            try:
                servers.append(running.enter_context(triton(models)))
            except peer.NoPeerError as error:
                report.notes.append(f"not measured beside Triton: {error}")
            times = [[scrape(server) for server in servers] for _ in range(rounds)]
            for index, server in enumerate(servers):
                row: Row = {"server": server.name, "us": statistics.median(one[index] for one in times)}
                report.rows.append({**row, "lines": lines(server)})
    report.notes.append("ours has three histograms of latency for each model, which Triton has not")
    return report


def scrape(server: Server) -> float:
    """Return the median of many scrapes in microseconds."""
    taken = load.latencies(replace(server, port=server.metrics_port), _SCRAPE, SECONDS)
    return statistics.median(taken) * 1e6


def lines(server: Server) -> int:
    """Return the number of lines of the page."""
    with socket.create_connection(("127.0.0.1", server.metrics_port)) as sock:
        sock.sendall(_SCRAPE)
        return load.read_reply(sock).count(b"\n")
