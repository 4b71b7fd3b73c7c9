"""The table of docs/health.md, row by row, against a server that was brought into each state."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from edge_serve.supervision.crash_loop import Record, StartPhase, Suspects, as_text
from edge_serve.supervision.safe_mode import FILE
from tests.server.running import ADD_SUB, Running, python_model, running, start

pytestmark = pytest.mark.slow  # a server for each state

PAGE = Path(__file__).parents[2] / "docs/health.md"
BROKEN = "raise RuntimeError('broken on purpose')\n"
#: loads, runs and is ready only while a file lets it
GATED = (
    "import os, time\n"
    + ADD_SUB
    + """
    def wait(self, gate):
        while not os.path.exists(os.path.join(GATES, gate)):
            time.sleep(0.01)

    def initialize(self, args):
        self.wait("load")

    def is_ready(self):
        return os.path.exists(os.path.join(GATES, "well"))
"""
).replace(
    "        replies = []",
    '        open(os.path.join(GATES, "running"), "w").close()\n        self.wait("run")\n        replies = []',
)


def rows() -> dict[str, list[str]]:
    """Return the first words of each row -> its answers: live, ready, ready of the model, infer, and the metric."""
    found = re.findall(r"^\| ([a-z][^|]*?) \|((?: [a-z0-9]+ \|){5})$", PAGE.read_text(), re.MULTILINE)
    return {state.split(":")[0]: cells.replace("|", "").split() for state, cells in found}


def infer_body() -> bytes:
    inputs = [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": [1] * 16} for name in ("INPUT0", "INPUT1")]
    return json.dumps({"inputs": inputs}).encode()


def check(server: Running, state: str, model: str) -> None:
    """Compare with the row `state`.

    Raises:
        AssertionError: an answer differs.
    """
    expected = rows()[state]
    paths = ["/v2/health/live", "/v2/health/ready", f"/v2/models/{model}/ready"]
    got = [str(server.get(path)[0]) for path in paths]
    can_answer = expected[3] != "waits"
    got.append(str(server.request("POST", f"/v2/models/{model}/infer", infer_body())[0]) if can_answer else "waits")
    got.append(metric(server, model, expected[4]))
    assert got == expected, state


def metric(server: Running, model: str, expected: str) -> str:
    """Return the metric; waits for the expected one, because a model is planned after the ports are open."""
    end = time.monotonic() + 5
    while True:
        page = server.get("/metrics", server.metrics)[1].decode()
        found = re.search(rf'^edge_serve_model_ready{{model="{model}",version="1?"}} (\d)$', page, re.MULTILINE)
        value = found[1] if found else "none"
        if value == expected or time.monotonic() > end:
            return value
        time.sleep(0.05)


def until(server: Running, path: str, status: int) -> None:
    """Wait until a health route answers `status`; the test's time limit is the limit."""
    while server.get(path)[0] != status:
        threading.Event().wait(0.02)


class Gates:
    """Files on which gated models wait."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.open("load", "run", "well")

    def open(self, *names: str) -> None:
        for name in names:
            (self.folder / name).touch()

    def shut(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def wait(self, name: str) -> None:
        """Wait until a model has opened the gate; the test's time limit is the limit."""
        while not (self.folder / name).exists():
            threading.Event().wait(0.02)


@pytest.fixture
def gates(tmp_path: Path) -> Gates:
    return Gates(tmp_path / "gates")


@pytest.fixture
def repository(tmp_path: Path, gates: Gates) -> Path:
    root = tmp_path / "models"
    python_model(root, "gated", GATED.replace("GATES", repr(str(gates.folder))))
    return root


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def test_the_page_has_the_rows() -> None:
    assert len(rows()) == 14


def test_from_start_to_drain(repository: Path, gates: Gates, background: ThreadPoolExecutor) -> None:
    gates.shut("load")
    with running(f"--model-repository={repository}", ready=False) as server:
        check(server, "starting", "gated")
        gates.open("load")
        server.wait_for_log(r"edge-serve \S+ ready in")
        check(server, "serving", "gated")
        check(server, "unknown", "nobody")

        gates.shut("well")
        until(server, "/v2/health/ready", 400)
        check(server, "the model says no", "gated")
        gates.open("well")
        until(server, "/v2/health/ready", 200)

        gates.shut("load")
        for pid in server.workers():
            os.kill(pid, signal.SIGKILL)
        until(server, "/v2/health/ready", 400)
        check(server, "worker restarting", "gated")
        waiting: Future[tuple[int, bytes]] = background.submit(
            server.request, "POST", "/v2/models/gated/infer", infer_body()
        )
        gates.open("load")
        assert waiting.result(30)[0] == 200

        gates.shut("run")
        gates.shut("running")
        accepted = background.submit(server.request, "POST", "/v2/models/gated/infer", infer_body())
        gates.wait("running")
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("draining")
        check(server, "draining", "gated")
        gates.open("run")
        assert accepted.result(30)[0] == 200
        assert server.process.wait(30) == 0


def test_model_control(repository: Path, gates: Gates, background: ThreadPoolExecutor) -> None:
    gates.shut("load")
    with running(f"--model-repository={repository}", "--model-control-mode=explicit") as server:
        loading = background.submit(server.post, "/v2/repository/models/gated/load")
        until(server, "/v2/health/ready", 400)
        check(server, "loading", "gated")
        gates.open("load")
        assert loading.result(30)[0] == 200

        gates.shut("load")
        python_model(repository, "gated", (repository / "gated/1/model.py").read_text() + "# changed\n")
        workers = len(server.workers())
        loading = background.submit(server.post, "/v2/repository/models/gated/load")
        while len(server.workers()) <= workers:
            threading.Event().wait(0.02)
        check(server, "reloading", "gated")
        gates.open("load")
        assert loading.result(30)[0] == 200

        assert server.post("/v2/repository/models/gated/unload")[0] == 200
        check(server, "unloaded on request", "gated")


@pytest.mark.parametrize(
    ("flags", "state"),
    [([], "broken"), (["--required-model=gated"], "broken, and not a `--required-model`")],
    ids=["all", "required"],
)
def test_a_broken_model(repository: Path, flags: list[str], state: str) -> None:
    python_model(repository, "broken", BROKEN)
    with running(f"--model-repository={repository}", "--exit-on-error=false", *flags) as server:
        check(server, state, "broken")
        assert server.get("/v2/models/gated/ready")[0] == 200


@pytest.mark.parametrize("flags", [[], ["--exit-on-error=false"]], ids=["files", "configuration"])
def test_a_model_that_cannot_be_read(repository: Path, flags: list[str]) -> None:
    if flags:
        python_model(repository, "unread", config="garbage {")
    else:
        (repository / "unread").symlink_to("nowhere")  # a file without rights is readable for root
    with running(f"--model-repository={repository}", *flags) as server:
        check(server, "unreadable", "unread")
        assert server.get("/v2/models/gated/ready")[0] == 200


def test_no_repository() -> None:
    with running("--model-repository=/no/such/place", "--exit-on-error=false", ready=False) as server:
        server.wait_for_log("live, and not ready until it can be read")
        check(server, "no repository", "gated")


def test_a_model_that_is_left_out(repository: Path, tmp_path: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    died = Suspects(("killer",))
    (tmp_path / FILE).write_text(as_text(Record(boot, StartPhase.ALIVE, died, (died, died))))
    python_model(repository, "killer")
    with running(f"--model-repository={repository}", f"--state-directory={tmp_path}") as server:
        check(server, "safe mode", "killer")
        assert server.get("/v2/models/gated/ready")[0] == 200


def test_a_broken_model_stops_the_server_by_default(tmp_path: Path) -> None:
    python_model(tmp_path, "broken", BROKEN)
    server = start(f"--model-repository={tmp_path}")

    assert server.process.wait(30) == 1
    server.log_path.unlink()
