"""How many responses per second does a decoupled model send over SSE, beside Triton? What does a slow reader cost?"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time

from benchmarks import load, peer
from benchmarks.memory import rollup
from benchmarks.report import Report, Row
from benchmarks.servers import MODELS, Server, edge_serve, repository, triton

#: the ratio that the project requires
BAR = 1.5
RESPONSES = 1000
SECONDS = 3.0
#: the slow reader: numbers in each response, responses, bytes of one read, and seconds between reads
LARGE, MANY, SIP, SIPS = 4096, 20_000, 4096, 200


def run(rounds: int = 3) -> Report:
    """Measure 1,000 responses per request, both servers in turn; then read 500 MB at 400 KB/s from this server."""
    report = Report("decoupled", "responses per second over generate_stream beside Triton 2.51's python backend")
    with repository([MODELS / "repeat"]) as models, edge_serve(models) as ours:
        with peer.noted(report.notes), triton(models) as theirs:
            for connections in (1, 4):

                def measure(server: Server, connections: int = connections) -> tuple[float, float]:
                    return whole_streams(server, connections) if server is theirs else streams(server, connections)

                row = load.versus(ours, theirs, measure, rounds)
                report.rows.append({"connections": connections, **row, "asked": BAR})
            report.notes.append(f"slow reader, {theirs.name}: {slow_reader(theirs)}")
        report.notes.append(f"slow reader, {ours.name}: {slow_reader(ours)}")
    return report


def request(count: int, size: int) -> bytes:
    """Return a generate_stream request."""
    body = json.dumps({"COUNT": count, "SIZE": size}).encode()
    return b"POST /v2/models/repeat/generate_stream HTTP/1.1\r\nHost: b\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


def whole_streams(server: Server, connections: int) -> tuple[float, float]:
    """Measure `streams` of Triton 2.51 again when it ends a stream too early, which happens on a busy machine.

    Raises:
        RuntimeError: it did so ten times in a row.
    """
    for _ in range(9):
        with contextlib.suppress(RuntimeError):
            return streams(server, connections)
    return streams(server, connections)


def streams(server: Server, connections: int) -> tuple[float, float]:
    """Return (responses/s, p99 of a whole stream in us); each connection reads one stream after the other.

    Raises:
        RuntimeError: a stream did not have all its responses.
    """
    taken: list[float] = []
    failures: list[Exception] = []
    end = time.perf_counter() + SECONDS

    def work() -> None:
        try:
            with socket.create_connection(("127.0.0.1", server.port)) as sock:
                while (started := time.perf_counter()) < end:
                    sock.sendall(request(RESPONSES, 1))
                    read_stream(sock)
                    taken.append(time.perf_counter() - started)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(connections)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise RuntimeError(f"{server.name}: {failures[0]}") from failures[0]
    rate = RESPONSES * len(taken) / (time.perf_counter() - started)
    return rate, sorted(taken)[int(0.99 * len(taken))] * 1e6


def read_stream(sock: socket.socket) -> None:
    """Read one chunked answer to its end.

    Raises:
        RuntimeError: the status is not 200, the number of responses is wrong, or the connection closed.
    """
    events, tail, head = 0, b"", b""
    while not tail.endswith(b"0\r\n\r\n"):
        data = sock.recv(1 << 16)
        if not data:
            raise RuntimeError("the server closed the connection")
        head = head or data[:12]
        # an event in two reads is counted with its second half
        joined = tail + data
        events += joined.count(b"data: ") - tail.count(b"data: ")
        tail = joined[-16:]
    if head != b"HTTP/1.1 200" or events != RESPONSES:
        raise RuntimeError(f"{head!r} with {events} responses, expected {RESPONSES}")


def slow_reader(server: Server) -> Row:
    """Return the front end's growth in MB while a client reads far too slowly, and the MB that the client received."""
    before = rollup(server.pid)["Rss"]
    highest, got = before, 0
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        sock.sendall(request(MANY, LARGE))
        for _ in range(SIPS):
            got += len(sock.recv(SIP))
            highest = max(highest, rollup(server.pid)["Rss"])
            time.sleep(0.01)
    return {"MB more": round(highest - before, 1), "KB read": got // 1000}
