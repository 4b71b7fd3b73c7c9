"""The gate asks a Prometheus: a stand-in that answers anything, and a real one that scrapes a thousand devices."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from edge_serve.observe.metrics.gpu import no_gpus
from edge_serve.observe.metrics.options import MetricsOptions
from edge_serve.observe.metrics.page import Page
from tests.observe.metrics.conftest import FakeClock, FakeSource, rendered
from tests.ota.publish.fleet import BUNDLE, DEVICES, FLEET, Fleet, Simulated, share, unlucky

STEP = ("rollout step", FLEET, BUNDLE, "prod=100", "--select", 'fleet="plant"')


@contextlib.contextmanager
def web_server(answer: Callable[[str], tuple[int, bytes]]) -> Iterator[str]:
    """Yield the address of a server that answers GET."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def counting(**figures: int) -> Callable[[str], tuple[int, bytes]]:
    """Answer queries as a Prometheus; figures of 0 are no series, as `count` gives none."""

    def answer(path: str) -> tuple[int, bytes]:
        assert urlsplit(path).path == "/prom/api/v1/query"
        query = parse_qs(urlsplit(path).query)["query"][0]
        assert 'fleet="plant"' in query
        name = (
            "targets" if "readable" in query else "failed" if "_failed" in query
            else "soaked" if "offset 86400s" in query else "good"
        )  # fmt: skip
        count = figures.get(name, 0)
        result = [{"metric": {}, "value": [1_800_000_000, str(count)]}] if count else []
        return 200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()

    return answer


@pytest.mark.parametrize(
    ("figures", "status", "said"),
    [
        ({"targets": 100, "good": 98, "soaked": 96}, 0, "allowed: 96 of 100 devices (96 %) have been good for 24 h"),
        ({"targets": 100, "good": 98, "soaked": 40}, 10, "40 of 100 devices (40 %) have been good for 24 h, expected"),
        ({"targets": 100, "good": 80, "soaked": 80, "failed": 20}, 11, "20 of 100 devices that tried it failed (20 %)"),
        ({"targets": 300, "good": 290, "soaked": 290, "failed": 290}, 11, "100 of 100 devices that tried it failed"),
        ({}, 3, 'no target with fleet="plant" has the metric edge_ota_status_readable: check --select'),
    ],
)
def test_the_figures_decide_as_those_of_reports(fleet: Fleet, figures: dict[str, int], status: int, said: str) -> None:
    fleet.publisher.do("rollout step", FLEET, BUNDLE, "prod=100")
    with web_server(counting(**figures)) as url:
        assert fleet.publisher.status(*STEP, "--prometheus", f"{url}/prom") == status
    assert said in fleet.publisher.out + fleet.publisher.err
    assert fleet.wish().paused == (status == 11)


def test_both_kinds_of_evidence_must_allow_the_step(fleet: Fleet) -> None:
    fleet.publisher.do("rollout step", FLEET, BUNDLE, "prod=100")
    fleet.update()
    both = (*STEP, "--reports", fleet.place)
    with web_server(counting(targets=100, good=100)) as url:
        fleet.publisher.refused(*both, "--prometheus", f"{url}/prom", status=10)
    with web_server(counting(targets=100, good=100, soaked=100)) as url:
        fleet.publisher.do(*both, "--prometheus", f"{url}/prom")


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"<html>", "answers no query as a Prometheus does: b'<html>'"),
        (200, b"[]", "answers no query as a Prometheus does"),
        (200, b'{"status": "error", "error": "too many samples"}', "too many samples"),
        (503, b"", "HTTP 503"),
        (404, b"", "HTTP 404"),
    ],
)
def test_another_server_than_prometheus_is_one_sentence(fleet: Fleet, status: int, body: bytes, said: str) -> None:
    with web_server(lambda path: (status, body)) as url:
        assert said in fleet.publisher.refused(*STEP, "--prometheus", url, status=3)
    assert not fleet.wish().paused


def test_a_server_that_is_not_there(fleet: Fleet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    said = fleet.publisher.refused(*STEP, "--prometheus", f"http://127.0.0.1:{port}", status=3)
    assert "the connection failed" in said


# ---- a real one -----------------------------------------------------------------------------------------------------


class Targets:
    """The metrics of all devices on one page, each as edge-serve renders them from the agent's status file."""

    def __init__(self, devices: list[Simulated]) -> None:
        self.devices = devices

    def answer(self, path: str) -> tuple[int, bytes]:
        """Return the page."""
        pages = [
            page(one.release, tuple(bad.release for bad in one.bad)).replace(
                b"{", b'{instance="%s",fleet="plant",' % one.name.encode()
            )
            for one in self.devices
        ]
        return 200, b"".join(pages)


@functools.cache
def page(release: int, failed: tuple[int, ...]) -> bytes:
    """Return the samples of a device, each with braces."""
    document = {"schema": 1, "state": "idle", "models": {BUNDLE: {"release": release, "failed": failed}}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "status.json")
        path.write_text(json.dumps(document))
        text = rendered(Page(FakeSource(), MetricsOptions(cpu=False), no_gpus, FakeClock(), str(path)))
    samples = [line for line in text.splitlines(keepends=True) if line.startswith(b"edge_ota_")]
    return b"".join(line if b"{" in line else line.replace(b" ", b"{} ", 1) for line in samples)


@contextlib.contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """Yield the address of a real Prometheus that scrapes a target each second."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\n"
        "scrape_configs: [{job_name: edge, honor_labels: true, "
        f"static_configs: [{{targets: ['{target.removeprefix('http://')}']}}]}}]\n"
    )
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data"]
    process = subprocess.Popen(
        [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def eventually(fleet: Fleet, *step: object, status: int) -> None:
    """Repeat a step until it has an outcome other than `not yet`, and other than a Prometheus without samples."""
    deadline = time.monotonic() + 40
    while (found := fleet.publisher.status(*step)) in (3, 10) and time.monotonic() < deadline:
        time.sleep(0.3)
    assert found == status, fleet.publisher.out + fleet.publisher.err


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.fault("R3")
@pytest.mark.skipif(not shutil.which("prometheus"), reason="needs prometheus: apt-get install prometheus")
def test_a_thousand_devices_judged_by_a_real_prometheus(thousand: Fleet) -> None:
    gate = ("--success", "95%", "--errors", "5%", "--soak", "4s", "--select", 'fleet="plant"')
    targets = Targets(thousand.devices)
    before: set[str] = set()
    with web_server(targets.answer) as target, prometheus(thousand.publisher.base, target) as url:
        for percent, following in ((5, 25), (25, 100)):
            names = thousand.update(unlucky)
            assert abs(share(names) - percent) <= 1
            assert before <= names
            before = names
            step = ("rollout step", FLEET, BUNDLE, f"prod={following}", "--prometheus", url, *gate)
            assert thousand.publisher.status(*step) in (3, 10), "nobody has been good for so long"
            eventually(thousand, *step, status=0)
        assert len(thousand.update(unlucky)) == DEVICES
        watch = ("rollout watch", FLEET, BUNDLE, "--prometheus", url, *gate)
        eventually(thousand, *watch, status=0)
        assert "980 of 1000 devices (98 %)" in thousand.publisher.out
        assert "20 failed" in thousand.publisher.out
        eventually(thousand, *watch, "--errors", "1%", status=11)
        assert "20 of 1000 devices that tried it failed (2 %), at most 1 % may" in thousand.publisher.err
    assert thousand.wish().paused
