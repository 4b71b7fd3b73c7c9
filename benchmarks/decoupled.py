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

#: the ratio that the project asks for
BAR = 1.5
RESPONSES = 1000
SECONDS = 3.0
#: the slow reader: numbers in each response, responses, bytes it reads at once, and how often
LARGE, MANY, SIP, SIPS = 4096, 20_000, 4096, 200


def run(rounds: int = 3) -> Report:
    """1,000 responses per request, both servers up, in turn; then a reader of 400 KB/s of a model that sends 500 MB."""
    report = Report("decoupled", "responses per second over generate_stream beside Triton 2.51's python backend")
    with repository([MODELS / "repeat"]) as models, edge_serve(models) as ours:
        try:
            with triton(models) as theirs:
                for connections in (1, 4):

                    def measure(server: Server, connections: int = connections) -> tuple[float, float]:
                        return whole_streams(server, connections) if server is theirs else streams(server, connections)

                    row = load.versus(ours, theirs, measure, rounds)
                    report.rows.append({"connections": connections, **row, "asked": BAR})
                report.notes.append(f"slow reader, {theirs.name}: {slow_reader(theirs)}")
        except peer.NoPeerError as error:
            report.notes.append(f"not measured: {error}")
        report.notes.append(f"slow reader, {ours.name}: {slow_reader(ours)}")
    return report


def request(count: int, size: int) -> bytes:
    """A generate_stream request."""
    body = json.dumps({"COUNT": count, "SIZE": size}).encode()
    return b"POST /v2/models/repeat/generate_stream HTTP/1.1\r\nHost: b\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


def whole_streams(server: Server, connections: int) -> tuple[float, float]:
    """As `streams`, of Triton 2.51, which ends a stream before its last responses now and then on a busy machine.

    Raises:
        RuntimeError: ten times one after the other.
    """
    for _ in range(9):
        with contextlib.suppress(RuntimeError):
            return streams(server, connections)
    return streams(server, connections)


def streams(server: Server, connections: int) -> tuple[float, float]:
    """(responses/s, p99 of a whole stream in us) of streams one after the other on each connection.

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
    """One chunked answer, to its end.

    Raises:
        RuntimeError: not a 200, another number of responses, or the connection ended.
    """
    events, tail, head = 0, b"", b""
    while not tail.endswith(b"0\r\n\r\n"):
        data = sock.recv(1 << 16)
        if not data:
            raise RuntimeError("the server closed the connection")
        head = head or data[:12]
        # an event that is cut in two is counted with its second half
        joined = tail + data
        events += joined.count(b"data: ") - tail.count(b"data: ")
        tail = joined[-16:]
    if head != b"HTTP/1.1 200" or events != RESPONSES:
        raise RuntimeError(f"{head!r} with {events} responses, expected {RESPONSES}")


def slow_reader(server: Server) -> Row:
    """How the front end's memory grows while a client reads far too slowly, in MB, and what the client had by then."""
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
