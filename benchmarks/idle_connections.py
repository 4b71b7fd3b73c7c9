"""What do 1,000 idle keep-alive connections cost 32 busy ones?"""

from __future__ import annotations

import contextlib
import resource
import socket
import statistics
from collections.abc import Iterator

from benchmarks import bodies, load, peer
from benchmarks.report import Report
from benchmarks.servers import MODELS, Server, edge_serve, repository

IDLE, BUSY = 1000, 32


def run(rounds: int = 3) -> Report:
    """Measure with wrk on 32 connections, in turn with and without the idle connections."""
    report = Report("idle_connections", f"rate of {BUSY} busy connections with {IDLE:,} idle ones (asked: within 10 %)")
    body, path = bodies.add_sub_json(), "/v2/models/add_sub/infer"
    with repository([MODELS / "add_sub"]) as models, edge_serve(models) as server:
        try:
            pairs = []
            for _ in range(rounds):
                with idle_connections(server):
                    with_idle = load.wrk(server.address, path, body, BUSY)
                pairs.append((with_idle, load.wrk(server.address, path, body, BUSY)))
        except peer.NoPeerError as error:
            report.notes.append(f"not measured: {error}")
            return report
    report.rows.append(
        {
            "with idle /s": statistics.median(pair[0][0] for pair in pairs),
            "without /s": statistics.median(pair[1][0] for pair in pairs),
            "ratio": statistics.median(pair[0][0] / pair[1][0] for pair in pairs),
            "asked": 0.9,
        }
    )
    return report


@contextlib.contextmanager
def idle_connections(server: Server) -> Iterator[None]:
    """Open 1,000 connections that send one request each and stay open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4 * IDLE), most))
    with contextlib.ExitStack() as open_ones:
        for _ in range(IDLE):
            sock = open_ones.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            sock.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            load.read_reply(sock)
        yield
