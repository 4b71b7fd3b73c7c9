"""A real Prometheus for tests, which scrapes one port of this machine each second."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def prometheus(folder: Path, target: int) -> Iterator[str]:
    """Run Prometheus with its data in `folder`. Yield the URL of its queries, to which a query is appended."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: edge, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}]\n"
    )
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}/api/v1/query?query="
    finally:
        process.terminate()
        process.wait(10)


def eventually(api: str, query: str, seconds: float = 20) -> str:
    """Return the value that Prometheus has for `query`, as soon as it has one.

    Raises:
        AssertionError: it has none within `seconds`.
    """
    deadline = time.monotonic() + seconds
    url = api + urllib.parse.quote(query)
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(url, timeout=5) as reply:
                result = json.load(reply)["data"]["result"]
            if result:
                return str(result[0]["value"][1])
        time.sleep(0.1)
    raise AssertionError(f"Prometheus has no value for {query} after {seconds:g} s")
