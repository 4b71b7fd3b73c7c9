"""The status page in a real browser: it draws the status of a server, continues to, and connects to no other host."""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from edge_serve.messages.metadata import IndexEntry
from edge_serve.messages.statistics import ModelStatistics
from edge_serve.messages.status import SystemEntry, SystemFacts, SystemFault, WorkerFacts
from edge_serve.models.run.statistics import record_success
from edge_serve.observe.metrics.updates import BundleStatus, Updates
from edge_serve.observe.status.document import build
from edge_serve.transport.http.page import page_files
from tests.browser import Browser, Page, chromium
from tests.observe.status.documents import MS, document, facts, served, server
from tests.server.running import python_model, running

FILES = page_files()
EVIL = "<img src=x onerror=alert(1)><script>document.title='mine'</script>"
SETTINGS = {
    "/logging": {"log_verbose_level": 0, "log_format": EVIL},
    "/setting": {
        "trace_level": ["OFF"],
        "trace_rate": "1",
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": EVIL,
    },
}

#: a test may start a browser on a busy machine
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]  # a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


@dataclass
class Scene:
    """Serves the page with its real headers, and whatever status a test wants."""

    answer: Callable[[], tuple[int, Any]] = lambda: (200, document())
    seen: list[str | None] = field(default_factory=list)
    #: ends of other paths, and what they answer
    others: dict[str, Any] = field(default_factory=dict)
    posted: list[str] = field(default_factory=list)
    url: str = ""


class Handler(BaseHTTPRequestHandler):
    """GET /ui and the status."""

    scene: Scene

    def do_GET(self) -> None:
        name = self.path.removeprefix("/ui").removeprefix("/")
        if self.path.startswith("/ui") and name in FILES:
            file = FILES[name]
            self._reply(200, file.body, (*file.headers, ("Content-Type", file.content_type)))
        elif self.path == "/edge-serve/status":
            self.scene.seen.append(self.headers.get("Authorization"))
            status, value = self.scene.answer()
            self._reply(status, json.dumps(value).encode(), (("Content-Type", "application/json"),))
        else:
            self._reply_other()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.scene.posted.append(self.path)
        self._reply_other()

    def _reply_other(self) -> None:
        found = [value for end, value in self.scene.others.items() if self.path.endswith(end)]
        self._reply(200 if found else 404, json.dumps(found[0] if found else {"error": EVIL}).encode(), ())

    def _reply(self, status: int, body: bytes, headers: tuple[tuple[str, str], ...]) -> None:
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    handler = type("Handler", (Handler,), {"scene": made})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        http.daemon_threads = True
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        made.url = f"http://127.0.0.1:{http.server_address[1]}"
        try:
            yield made
        finally:
            http.shutdown()
            thread.join()


@contextlib.contextmanager
def opened(browser: Browser, url: str) -> Iterator[Page]:
    """The page in a tab of its own; it must have spoken to its own server only, and complained of nothing."""
    page = browser.page()
    try:
        page.look_like(1280, 900)
        page.open(f"{url}/ui")
        yield page
        assert {urlsplit(address).netloc for address in page.requests} == {urlsplit(url).netloc}
        assert page.complaints == []
    finally:
        page.close()


def shows(page: Page, text: str) -> None:
    page.wait_for(f"document.body.innerText.includes({json.dumps(text)})")


def test_a_real_server_is_shown_and_followed(browser: Browser, tmp_path: Path) -> None:
    python_model(tmp_path, "add_sub")
    with running(f"--model-repository={tmp_path}") as real:
        with opened(browser, f"http://{real.url}") as page:
            shows(page, "add_sub")
            assert page.evaluate("document.getElementById('state').textContent") == "Ready"
            assert "0 in all" in page.text()
            for _ in range(3):
                assert real.add_sub("add_sub")[0] == 200
            shows(page, "3 in all")
            page.wait_for("document.querySelector('.models .chart path.line').getAttribute('d').length > 20")
            shot = page.screenshot(tmp_path / "page.png")
            assert len(shot) > 20_000
        assert real.get("/v2/health/live")[0] == 200


def test_models_workers_events_and_the_device_are_drawn(browser: Browser, scene: Scene) -> None:
    index = [
        IndexEntry("det", "1", "READY"),
        IndexEntry("bad", "2", "UNAVAILABLE", "Internal: no such file"),
        IndexEntry("idle"),
    ]
    made = document(index=index)
    made["device"]["gpus"][0]["throttling"] = ["sw_thermal"]
    scene.answer = lambda: (200, made)
    with opened(browser, scene.url) as page:
        for text in (
            "cart-7", "Ready", "det", "version 1 · onnxruntime · 2 instances", "Internal: no such file", "Unloaded",
            "1 of 2 ready", "49 °C", "of 8.0 GiB", "of 4.0 GiB", "25 %", "51 °C, 12.5 W, clocks lowered (sw_thermal)",
            "onnxruntime", "det:1",
            "model det is ready", "edge-serve 1.2.3", "HTTP 127.0.0.1:8000", "10 in all, 4 in flight, 3 queued",
        ):  # fmt: skip
            shows(page, text)
        page.evaluate("document.querySelector('#choice [value=errors]').click()")
        shows(page, "it fell over")
        shows(page, "× 3")
        assert "model det is ready" not in page.text()
        made["device"]["gpus"][0] |= {"utilization": None, "problem": "the GPU is lost"}
        shows(page, "the GPU is lost")


def test_failed_models_come_first_and_are_not_waited_for(browser: Browser, scene: Scene) -> None:
    bad = [IndexEntry(f"bad_{i}", "1", "UNAVAILABLE", "Internal: no such file") for i in range(18)]
    index = [IndexEntry("det", "1", "READY"), *bad]
    scene.answer = lambda: (200, document(index=index, server=server(ready=False)))
    with opened(browser, scene.url) as page:
        shows(page, "Not ready: 18 models failed: bad_0 (Internal: no such file), bad_1 ")
        shows(page, " and 14 more; 1 serves")
        shows(page, "18 failed · 1 of 19 ready")
        names = page.evaluate("[...document.querySelectorAll('.models .title')].map(one => one.textContent)")
        assert names == [*[entry.name for entry in bad], "det"]


def test_releases_and_updates_are_drawn_and_their_texts_are_text(browser: Browser, scene: Scene) -> None:
    bundles = (
        BundleStatus("det", ("det",), 16, 15, 17, "PROBATION", 5, 10),
        BundleStatus("ocr", release=3, reason=EVIL),
    )
    made = facts()
    updates = Updates(state="idle", error="the disk is full", error_reason="no_space", bundles=bundles)
    with_updates = build(replace(made, readings=replace(made.readings, updates=updates)))
    scene.answer = lambda: (200, with_updates)
    with opened(browser, scene.url) as page:
        for text in ("idle; no check yet; no_space: the disk is full", "PROBATION", "17", "50 %", "GOOD", EVIL):
            shows(page, text)
        scene.answer = lambda: (200, document())
        page.wait_for("document.getElementById('updates').hidden")


def test_the_device_image_and_its_faults_are_drawn_and_their_texts_are_text(browser: Browser, scene: Scene) -> None:
    faults = (SystemFault("settings-1", EVIL, "1970-01-01T00:00:00Z", "Correct the file."),)
    system = SystemFacts("", "edge-1", ("10.0.0.2",), "ab" * 32, "12", "b", True, (SystemEntry("13", "bad"),), faults)
    made = facts()
    with_system = build(replace(made, readings=replace(made.readings, system=system)))
    scene.answer = lambda: (200, with_system)
    with opened(browser, scene.url) as page:
        for text in (
            "edge-1: version 12, slot b; version 13 is bad",
            EVIL,
            "Correct the file. Since 1970-01-01T00:00:00Z.",
            "ab" * 32,
        ):
            shows(page, text)
        scene.answer = lambda: (200, document())
        page.wait_for("document.getElementById('system').hidden")


def test_a_model_that_hangs_is_red_and_errors_of_clients_are_shown(browser: Browser, scene: Scene) -> None:
    hanging, other = served("hangs", oldest_batch_seconds=32.0, in_flight=1), served("other", pids=(21,))
    hanging.statistics.client_errors = 41
    workers = [
        WorkerFacts("hangs:1", 20, 0, (("hangs", "1"),)),
        WorkerFacts("onnxruntime", 21, 0, (("other", "1"), ("b", "1"))),
    ]
    index = [IndexEntry("a", "1", "READY"), IndexEntry("hangs", "1", "READY"), IndexEntry("other", "1", "READY")]
    totals = ModelStatistics(client_errors=41)
    made = document(index=index, models=[hanging, other], workers=workers, totals=totals)
    made["workers"][1]["pss_bytes"] = 30 << 20
    scene.answer = lambda: (200, made)
    with opened(browser, scene.url) as page:
        shows(page, "Busy for 32 s")
        shows(page, "41 client errors")
        shows(page, "1 busy for more than 10 s")
        cells = "[...document.querySelectorAll('.models .row')[{}].children].map(one => one.lastChild?.innerText)"
        row = page.evaluate(cells.format(0))
        assert [row[i] for i in (0, 1, 6, 9, 10)] == [
            "hangs\nversion 1 · onnxruntime · 2 instances",
            "Busy for 32 s",
            "1",
            "41",
            "70 MiB",
        ]
        assert page.evaluate(cells.format(2))[10] == "15 MiB\nits share"
        colour = page.evaluate("getComputedStyle(document.querySelector('.models .pill')).color")
        assert colour == "rgb(198, 40, 40)", "red"
        assert (
            page.evaluate("getComputedStyle(document.querySelector('.models .row')).backgroundColor")
            == "rgba(0, 0, 0, 0)"
        )
        page.evaluate("location.hash = '#model/hangs/1'")
        shows(page, "A batch has been running for 32 s; requests in flight: 1. The model hangs, or is slow.")
        shows(page, "the oldest batch runs for 32 s")
        page.evaluate("location.hash = '#model/absent'")
        shows(page, "This server has no such model")
        page.complaints[:] = [text for text in page.complaints if "404" not in text]  # this scene has no metadata


def test_charts_have_a_scale_and_tell_values(browser: Browser, scene: Scene) -> None:
    first, begun = facts(), time.monotonic()

    def answer() -> tuple[int, Any]:
        passed = round((time.monotonic() - begun) * 1e9)
        return 200, build(replace(first, clock_ns=first.clock_ns + passed))

    scene.answer = answer
    with opened(browser, scene.url) as page:
        chart = "[...document.querySelectorAll('.tile .chart')][3]"
        page.wait_for(f"{chart}?.innerText.replace(/\\s+/g, ' ') === '100 % last 60 s'")
        page.evaluate(f"{chart}.focus()")
        page.press("ArrowLeft", "Home", "ArrowRight")
        assert page.evaluate(f"{chart}.getAttribute('aria-valuenow')") == "-59"
        assert page.evaluate(f"{chart}.getAttribute('aria-valuetext')") == "no value, 59 s ago"
        page.press("End")
        page.wait_for(f"{chart}.innerText.startsWith('25 %, now')")
        box = page.evaluate(
            f"(box => [box.right - 1, box.top + 5])({chart}.querySelector('.plot').getBoundingClientRect())"
        )
        page.press("Escape")
        assert page.evaluate(f"{chart}.innerText").startswith("100 %")
        page.ask("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
        page.wait_for(f"{chart}.innerText.startsWith('25 %, now')")


def test_a_model_page_takes_names_as_text_and_names_its_controls(browser: Browser, scene: Scene) -> None:
    index = [IndexEntry(EVIL, "1", "READY")]
    tensor = {"name": EVIL, "datatype": "INT32", "shape": [-1, 2]}
    about = {"inputs": [tensor], "outputs": [tensor]}
    config = {
        "max_batch_size": 2,
        "input": [],
        "output": [{"name": EVIL, "label_filename": EVIL}],
        "sequence_batching": {},
    }
    scene.answer = lambda: (200, document(index=index, models=[served(EVIL)]) | {"client": {"role": "admin"}})
    scene.others = {"/config": config, "/versions/1": about, **SETTINGS}
    with opened(browser, scene.url) as page:
        shows(page, EVIL)
        assert page.unnamed_controls() == []
        page.evaluate("document.querySelector('.models .title').click()")
        page.wait_for("!!document.querySelector('form.try')")
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        for language in ("curl", "python", "javascript"):
            page.evaluate(f"document.querySelector('.snippet [value={language}]').click()")
            assert "onerror" in page.evaluate("document.querySelector('.snippet code').textContent")
        page.evaluate("document.querySelector('form.try').requestSubmit()")
        shows(page, "The model is not there")
        assert page.unnamed_controls() == []
        assert page.evaluate("document.querySelectorAll('img, main script').length") == 0
        page.evaluate("document.querySelector('.snippet .line button:not([aria-pressed])').click()")
        page.wait_for("/Copied|Ctrl/.test(document.querySelector('.snippet .note').textContent)")
        page.complaints[:] = [text for text in page.complaints if "404" not in text]  # the answer of this scene


def test_the_inputs_of_a_model_fit_a_phone_and_a_reshape_is_explained(
    browser: Browser, scene: Scene, tmp_path: Path
) -> None:
    inputs = [
        {"name": "pixel_values", "datatype": "FP32", "shape": [-1, 3, 224, 224]},
        {"name": "threshold", "datatype": "FP32", "shape": [-1, 1]},
    ]
    outputs = [{"name": "save_infer_model/scale_0.tmp_1", "datatype": "BYTES", "shape": [-1, 1000]}]
    config = {
        "max_batch_size": 8,
        "input": [
            {"name": "pixel_values", "format": "FORMAT_NCHW", "optional": True, "reshape": {"shape": [1, 3, 224, 224]}},
            {"name": "threshold", "reshape": {}},
        ],
        "output": [{"name": outputs[0]["name"], "label_filename": "labels.txt", "reshape": {"shape": [1000, 1, 1]}}],
    }
    scene.answer = lambda: (200, document() | {"client": {"role": "infer"}})
    scene.others = {"/config": config, "/versions/1": {"inputs": inputs, "outputs": outputs}, **SETTINGS}
    with opened(browser, scene.url) as page:
        page.wait_for("!!document.querySelector('.models .title')")
        page.evaluate("document.querySelector('.models .title').click()")
        page.wait_for("!!document.querySelector('.signature tbody tr')")
        shows(page, "FORMAT_NCHW, reshape: the model itself receives [1, 3, 224, 224]")
        shows(page, "reshape: the model itself receives [], a single value")
        shows(page, "labels in labels.txt, reshape: the model itself returns [1000, 1, 1]")
        for width in (1280, 380, 320):
            page.look_like(width, 800)
            page.wait_for(f"innerWidth === {width}")
            wider = "(box => box.scrollWidth - box.clientWidth)(document.querySelector('.signature').parentNode)"
            assert page.evaluate(wider) <= 0, width
            page.evaluate("document.querySelector('.signature').scrollIntoView()")
            page.screenshot(tmp_path / f"{width}.png", whole=False)


def test_safe_mode_is_left_after_a_question(browser: Browser, scene: Scene) -> None:
    state = document(server=server(safe_mode="det crashed it twice")) | {"client": {"role": "admin"}}
    scene.answer = lambda: (200, state)
    scene.others = {"/safe-mode/leave": {"left_out": ["det"]}, **SETTINGS}
    with opened(browser, scene.url) as page:
        shows(page, "Load the models that were left out")
        page.evaluate("document.querySelector('.banner button').click()")
        page.wait_for("document.activeElement.textContent === 'Load them'")
        page.press("Enter")
        shows(page, "They are being loaded.")
    assert "/edge-serve/safe-mode/leave" in scene.posted


def test_a_file_can_be_dropped(browser: Browser, scene: Scene) -> None:
    about = {"inputs": [{"name": "IN", "datatype": "BYTES", "shape": [1]}], "outputs": []}
    scene.others = {"/config": {"max_batch_size": 0}, "/versions/1": about}
    scene.answer = lambda: (200, document() | {"client": {"role": "infer"}})
    drop = """{
        const data = new DataTransfer(), file = new File(['some text'], 'a.bin');
        data.items.add(file);
        const box = document.querySelector('fieldset.input');
        const event = { dataTransfer: data, bubbles: true };
        for (const kind of ['dragover', 'drop']) box.dispatchEvent(new DragEvent(kind, event));
    }"""
    with opened(browser, scene.url) as page:
        page.evaluate("location.hash = '#model/det'")
        page.wait_for("!!document.querySelector('form.try')")
        page.evaluate(drop)
        shows(page, "a.bin, 9 bytes, sent as one string")


def test_tensors_are_encoded_as_numpy_does(browser: Browser, scene: Scene) -> None:
    with opened(browser, scene.url) as page:
        rng = np.random.default_rng(14)
        floats: list[float] = [
            0,
            -0.0,
            1,
            -2.5,
            65504,
            65519,
            65520,
            1e-8,
            6e-8,
            2**-14,
            1e5,
            *(rng.normal(size=200) * 10.0 ** rng.integers(-8, 5, 200)).tolist(),
        ]
        made = page.awaited(f"import('/ui/tensors.js').then(it => [...it.encode('FP16', {json.dumps(floats)})])")
        with np.errstate(over="ignore"):
            assert bytes(made) == np.array(floats, np.float32).astype(np.float16).tobytes()
        halves = page.awaited("import('/ui/tensors.js').then(it => [...Array(31744).keys()].map(it.fromHalf))")
        assert halves == np.arange(31744, dtype=np.uint16).view(np.float16).astype(float).tolist()
        saved = "import('/ui/tensors.js').then(it => it.writeNumpy('INT32', [2, 1], it.encode('INT32', [1, 2])))"
        npy = bytes(page.awaited(f"{saved}.then(it => it.arrayBuffer()).then(it => [...new Uint8Array(it)])"))
        assert np.load(io.BytesIO(npy)).tolist() == [[1], [2]]


def test_rates_and_latencies_come_from_differences(browser: Browser, scene: Scene) -> None:
    model, begun = served(), time.monotonic()

    def answer() -> tuple[int, Any]:
        for _ in range(50):
            record_success(model.statistics, 1, (0,), (MS, MS, 2 * MS, 2 * MS), 4 * MS)
        now, passed = facts(models=[model], totals=model.statistics), round((time.monotonic() - begun) * 1e9)
        return 200, build(replace(now, clock_ns=now.clock_ns + passed))

    scene.answer = answer
    with opened(browser, scene.url) as page:
        page.wait_for("parseFloat(document.querySelector('#tiles .value')?.textContent) > 1")
        shows(page, "ms median")
        latency = page.evaluate("parseFloat(document.querySelector('.latency .value').textContent)")
        assert 2.5 <= latency <= 5.0  # the bucket that 4 ms lie in


def test_a_lost_connection_is_shown_and_found_again(browser: Browser, scene: Scene) -> None:
    with opened(browser, scene.url) as page:
        shows(page, "Ready")
        scene.answer = lambda: (500, {"error": "out of order"})
        shows(page, "No connection")
        shows(page, "out of order")
        shows(page, "Everything below is as it was at")
        assert page.evaluate("document.getElementById('main').classList.contains('old')")
        scene.answer = lambda: (200, document())
        page.wait_for("document.getElementById('state').textContent === 'Ready'")
        assert not page.evaluate("document.getElementById('main').classList.contains('old')")
        assert page.evaluate("document.getElementById('banner').hidden")
        page.complaints[:] = [text for text in page.complaints if "500" not in text]  # the browser's own word on it


def test_a_stopped_server_is_shown(browser: Browser, tmp_path: Path) -> None:
    page = browser.page()
    with running(f"--model-repository={tmp_path}") as real:
        page.open(f"http://{real.url}/ui")
        shows(page, "No models.")
    shows(page, "The server does not answer.")
    assert page.evaluate("document.title").startswith("No connection")
    page.close()


def enter_token(page: Page, token: str) -> None:
    page.evaluate(f"document.querySelector('form input').value = {json.dumps(token)}")
    page.evaluate("document.querySelector('form button').click()")


def test_a_locked_door_asks_for_a_token_and_shows_it(browser: Browser, scene: Scene) -> None:
    scene.answer = lambda: (
        (200, document()) if scene.seen[-1] == "Bearer s3cret" else (401, {"error": "this needs the role read"})
    )
    with opened(browser, scene.url) as page:
        shows(page, "Enter a token with the role read (made by edge-serve token FILE read NAME).")
        assert page.evaluate("document.getElementById('state').textContent") == "Locked"
        assert "Models" not in page.text()
        page.awaited("new Promise(done => setTimeout(done, 1500))")
        assert len(scene.seen) == 1, "a tab that is left at the form does not ask again"
        enter_token(page, "wrong")
        shows(page, "The server refused the token: this needs the role read. Enter a token")
        enter_token(page, " s3cret ")
        shows(page, "cart-7")
        page.wait_for("document.getElementById('banner').hidden")
        page.complaints[:] = [text for text in page.complaints if "401" not in text]


def test_a_text_that_cannot_be_a_token_is_refused_by_the_page(browser: Browser, scene: Scene) -> None:
    scene.answer = lambda: (200, document()) if scene.seen[-1] == "Bearer s3cret" else (401, {"error": "no token"})
    with opened(browser, scene.url) as page:
        shows(page, "Enter a token")
        enter_token(page, "s3cret\u2026")
        shows(page, "A token has ASCII letters, digits, and signs only")
        assert page.evaluate("sessionStorage.getItem('token')") is None
        enter_token(page, "s3cret")
        shows(page, "cart-7")

        page.evaluate("sessionStorage.setItem('token', '\u2026')")
        page.open(f"{scene.url}/ui")
        shows(page, "Enter a token")
        page.complaints[:] = [text for text in page.complaints if "401" not in text]


def test_a_browser_that_stores_nothing_shows_the_page(browser: Browser, scene: Scene) -> None:
    scene.answer = lambda: (200, document()) if scene.seen[-1] == "Bearer s3cret" else (401, {"error": "no token"})
    refuse = "Object.defineProperty(window, 'sessionStorage', {get() { throw new DOMException('', 'SecurityError') }})"
    page = browser.page()
    page.ask("Page.addScriptToEvaluateOnNewDocument", source=refuse)
    page.open(f"{scene.url}/ui")
    shows(page, "Enter a token")
    enter_token(page, "s3cret")
    shows(page, "cart-7")
    page.close()


@pytest.mark.parametrize(
    ("changes", "word", "reason"),
    [
        ({"started": False, "ready": False}, "Starting", "Starting: looking for models"),
        ({"ready": False}, "Not ready", "Not ready: a model that counts"),
        ({"safe_mode": "det crashed it twice"}, "Safe mode", "Safe mode: det crashed it twice"),
        ({"stopping": True}, "Stopping", "Stopping: requests"),
    ],
)
def test_other_states_say_why(changes: dict[str, Any], word: str, reason: str, browser: Browser, scene: Scene) -> None:
    scene.answer = lambda: (200, document(server=server(**changes)))
    with opened(browser, scene.url) as page:
        shows(page, reason)
        assert page.evaluate("document.getElementById('state').textContent") == word


def test_an_empty_server_is_no_empty_page(browser: Browser, scene: Scene) -> None:
    scene.answer = lambda: (200, document(index=[], models=[], workers=[], events=[], errors=[]))
    with opened(browser, scene.url) as page:
        shows(page, "No models.")
        shows(page, "Nothing has happened yet.")
        page.evaluate("document.querySelector('#choice [value=errors]').click()")
        shows(page, "No problems since the server started.")


def test_text_of_models_is_never_markup(browser: Browser, scene: Scene) -> None:
    scene.answer = lambda: (200, document(index=[IndexEntry(EVIL, "1", "UNAVAILABLE", EVIL)], models=[served(EVIL)]))
    with opened(browser, scene.url) as page:
        shows(page, EVIL)
        assert page.evaluate("document.querySelectorAll('img').length") == 0


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_wider_than_the_window(dark: bool, browser: Browser, scene: Scene, tmp_path: Path) -> None:
    long = "a_model_with_a_name_that_" + "goes_on_and_" * 12
    index = [IndexEntry(long, "1", "READY"), IndexEntry(long, "2", "UNAVAILABLE", "Internal: " + "x" * 300)]
    scene.answer = lambda: (200, document(index=index, models=[served(long)], server=server(host="h" * 200)))
    with opened(browser, scene.url) as page:
        # not the names of values, which only screen readers get on wide screens
        shown = "!['inline', 'absolute'].some(kind => [style.display, style.position].includes(kind))"
        cut = f"{{ const style = getComputedStyle(one); return one.scrollWidth > one.clientWidth + 1 && {shown}; }}"
        boxes = "[...document.querySelectorAll('.tile *, .row *')].filter(one => !one.closest('.chart'))"
        for width in (320, 390, 820, 1280):
            page.look_like(width, 800, dark=dark)
            page.wait_for(f"innerWidth === {width}")
            shows(page, long)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(f"{boxes}.filter(one => {cut}).map(one => one.outerHTML)") == [], width
        page.screenshot(tmp_path / "page.png", whole=False)
        corner = Image.open(tmp_path / "page.png").convert("L").getpixel((2, 2))
        assert isinstance(corner, int)
        assert (corner < 60) is dark


def test_the_page_is_asked_for_anew_only_when_it_has_changed(browser: Browser, tmp_path: Path) -> None:
    with running(f"--model-repository={tmp_path}") as real, opened(browser, f"http://{real.url}") as page:
        shows(page, "No models.")
        page.ask("Page.reload")
        page.wait_for("document.readyState === 'complete'")
        shows(page, "No models.")
        sent = page.evaluate("performance.getEntriesByType('navigation')[0].transferSize")
        assert sent < 2000, "the page came again although it had not changed"
