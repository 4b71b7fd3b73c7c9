"""How many requests of sequences per second, beside Triton, with far more sequences than slots? Is every sum right?"""

from __future__ import annotations

import asyncio
import functools
import json
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import load, peer
from benchmarks.report import Report
from benchmarks.servers import MODELS, Server, edge_serve, repository, triton

#: model -> (its sequence_batching, sequences that are open at a time)
CASES = {
    "oldest": ("oldest { max_candidate_sequences: 200 }", 250),
    "direct": ("direct { }", 8 + 500),
}
#: on this server only: with so many, Triton 2.51 leaves some requests unanswered; with 500 it mostly does
ALONE = {"oldest_1000": ("oldest { max_candidate_sequences: 1024 }", 1000)}
STEPS = 10
#: ids are never reused, so more than one for each connection
_IDS = 10_000
#: sequences on each connection, one after the other
SEQUENCES = 4
#: seconds after which an unanswered request counts as lost
PATIENCE = 60
#: the ratio that the project requires
BAR = 1.0


def run(rounds: int = 9) -> Report:
    """Each sequence has a connection of its own and sends its next request when the last one is answered.

    It takes more rounds than other benchmarks: with both cores full, rounds of either server differ by 20 %.
    """
    report = Report("sequences", "requests of sequences per second beside Triton's python backend (binary HTTP)")
    with models() as folder, edge_serve(folder) as ours:
        with peer.noted(report.notes), triton(folder) as theirs:
            for model, (_, count) in CASES.items():
                for server in (ours, theirs):
                    measure(server, model, count)  # the first run is slower
                row = load.versus(ours, theirs, functools.partial(measure, model=model, count=count), rounds)
                report.rows.append({"model": model, "open sequences": count, **row, "asked": BAR})
        for model, (_, count) in ALONE.items():
            rate, p99 = measure(ours, model, count)
            report.rows.append({
                "model": model, "open sequences": count, "edge-serve /s": rate, "edge-serve p99 us": p99
            })  # fmt: skip
    report.notes.append("oldest_1000 has no row of Triton's: it leaves requests of it unanswered")
    report.notes.append(f"every one of the {STEPS} sums of every sequence was right, or this would have failed")
    return report


@contextmanager
def models() -> Iterator[Path]:
    """Write a repository with one model for each case."""
    with repository([]) as folder:
        for name, (strategy, _) in {**CASES, **ALONE}.items():
            target = folder / name
            (target / "1").mkdir(parents=True)
            source = MODELS / "sequence_sum"
            (target / "1/model.py").write_bytes((source / "1/model.py").read_bytes())
            batching = f"sequence_batching {{ max_sequence_idle_microseconds: 60000000 {strategy} }}\n"
            (target / "config.pbtxt").write_text((source / "config.pbtxt").read_text() + batching)
        yield folder


def measure(server: Server, model: str, count: int) -> tuple[float, float]:
    """Return (requests/s, p99 in us) of `count` connections, each with SEQUENCES sequences one after the other.

    Raises:
        RuntimeError: three times in a row a sum was wrong, or a request was refused or never answered.
    """
    for _ in range(3):  # Triton 2.51 leaves requests of `oldest` unanswered now and then on a busy machine
        try:
            return asyncio.run(_measure(server, model, count))
        except asyncio.TimeoutError:
            continue
    raise RuntimeError(f"{server.name} left requests of {model} unanswered for {PATIENCE} s, three times")


async def _measure(server: Server, model: str, count: int) -> tuple[float, float]:
    loop = asyncio.get_running_loop()
    clients = [Client(model, 1 + number) for number in range(count)]
    for client in clients:
        await loop.create_connection(functools.partial(_same, client), "127.0.0.1", server.port)
    started = time.perf_counter()
    for client in clients:
        client.send()
    await asyncio.wait_for(asyncio.gather(*(client.done for client in clients)), PATIENCE)
    seconds = time.perf_counter() - started
    taken = sorted(one for client in clients for one in client.taken)
    return len(taken) / seconds, taken[len(taken) * 99 // 100] * 1e6


def _same(client: Client) -> Client:
    return client


class Client(asyncio.Protocol):
    """One connection: sequences one after the other, each of STEPS requests; checks every answer."""

    def __init__(self, model: str, number: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.taken: list[float] = []
        self._model = model
        self._number = number
        self._id = number  # of the open sequence
        self._left = SEQUENCES * STEPS
        self._step = 0
        self._sum = 0
        self._data = b""
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the measurement, unless all sequences have ended."""
        if not self.done.done():
            self.done.set_exception(RuntimeError(f"sequence {self._number}: the connection ended: {exc}"))

    def send(self) -> None:
        """Send the next request."""
        value = self._number * 7 + self._step
        flags = {"sequence_start": self._step == 0, "sequence_end": self._step == STEPS - 1}
        self._sum = value + (self._sum if self._step else 0)
        head = json.dumps({
            "parameters": {"sequence_id": self._id, **flags},
            "inputs": [
                {"name": "IN", "shape": [1, 1], "datatype": "INT32", "parameters": {"binary_data_size": 4}}
            ],
            "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}],
        }).encode()  # fmt: skip
        lines = (
            f"POST /v2/models/{self._model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(head) + 4}\r\n"
            f"Inference-Header-Content-Length: {len(head)}\r\n\r\n"
        )
        self._sent = time.perf_counter()
        self._transport.write(lines.encode() + head + struct.pack("<i", value))

    def data_received(self, data: bytes) -> None:
        """Receive an answer, or a part of one."""
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if not end:
            return
        lower = head.lower()
        start = lower.index(b"content-length:", lower.index(b"\r\ncontent-length:")) + len(b"content-length:")
        length = int(lower[start:].split(b"\r\n", 1)[0])
        if len(body) < length:
            return
        self._data = b""
        self.taken.append(time.perf_counter() - self._sent)
        if not head.startswith(b"HTTP/1.1 200") or struct.unpack("<i", body[-4:])[0] != self._sum:
            self._finish(
                RuntimeError(f"sequence {self._number}, step {self._step}: expected {self._sum}, {body[-200:]!r}")
            )
            return
        self._step = (self._step + 1) % STEPS
        if not self._step:
            self._id += _IDS
        self._left -= 1
        if self._left:
            self.send()
        else:
            self._finish(None)

    def _finish(self, error: Exception | None) -> None:
        if error is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(None)
        self._transport.close()
