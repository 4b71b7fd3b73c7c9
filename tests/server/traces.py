"""Snapshots of a server's processes, descriptors, and memory. Two of them show a leak."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.named_memory import named_memory
from tests.server.running import PATIENCE, Running

#: what descriptors are open on, without the numbers of sockets and pipes
Files = Counter[str]


@dataclass(frozen=True)
class Traces:
    """Of a server and its workers.

    Attributes:
        files, worker_files: open descriptors of the server, and of each worker.
        resident: bytes of ordinary memory of the server (not of its mappings of tensor memory).
        shared_memory: see `named_memory`.
        tensor_memory: bytes held in all arenas and by bodies, as the metrics page says.
    """

    pids: tuple[int, ...]
    files: Files
    worker_files: tuple[Files, ...]
    resident: int
    shared_memory: frozenset[str]
    tensor_memory: int

    @staticmethod
    def of(server: Running) -> Traces:
        """Taken now."""
        pids = tuple(sorted(server.workers()))
        return Traces(
            pids,
            _files(server.process.pid),
            tuple(map(_files, pids)),
            _anonymous_bytes(server.process.pid),
            named_memory(),
            tensor_memory(server),
        )

    @staticmethod
    def at_rest(server: Running) -> Traces:
        """Taken when the server has noticed that all clients have gone: two looks agree, and none is connected."""
        end = time.monotonic() + PATIENCE
        before = Traces.of(server)
        while True:
            time.sleep(0.05)
            now = Traces.of(server)
            if now.files == before.files and _metric(server, "edge_serve_http_connections") == 1:  # its own
                return now
            assert time.monotonic() < end, f"the server is not at rest: {now}"
            before = now

    def settled(self, server: Running) -> Traces:
        """Taken when the server has caught up: it notices that clients have gone a little later than they go.

        Another test process may have regions of shared memory meanwhile.
        """
        end = time.monotonic() + PATIENCE
        wanted = self.files, self.worker_files, self.tensor_memory
        while True:
            now = Traces.of(server)
            same = (now.files, now.worker_files, now.tensor_memory) == wanted
            if (same and now.shared_memory <= self.shared_memory) or time.monotonic() > end:
                return now
            time.sleep(0.05)


def tensor_memory(server: Running) -> int:
    """Bytes that tensors and bodies hold now."""
    return _metric(server, "edge_serve_tensor_memory_used_bytes")


def _metric(server: Running, name: str) -> int:
    page = server.get("/metrics", server.metrics)[1].decode()
    found = re.search(rf"^{name} (\S+)$", page, re.MULTILINE)
    assert found is not None, page
    return int(float(found[1]))


def _files(pid: int) -> Files:
    kinds: Files = Counter()
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            kinds[re.sub(r"\d{4,}", "N", os.readlink(entry.path))] += 1
    return kinds


def _anonymous_bytes(pid: int) -> int:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024
