"""A model is a link to the directory of a release: it goes by the link's name, and a turned link swaps it whole."""

from __future__ import annotations

import json
import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from tests.golden.golden_files import add_sub
from tests.server.load import ADDS_UP, ADDS_UP_CONFIG, Load, busy
from tests.server.running import ADD_SUB, ADD_SUB_CONFIG, PATIENCE, Running, python_model, running

pytestmark = pytest.mark.slow  # releases under load

#: tells what it was told about itself
TELLS = ADD_SUB.replace(
    "    def execute",
    """    def initialize(self, args):
        print("told", args["model_name"], args["model_version"], args["model_repository"], flush=True)
        open(args["model_repository"] + "/config.pbtxt").close()

    def execute""",
)


def release(root: Path, name: str, number: int) -> Path:
    """Write `releases/<name>/<number>` beside the repository."""
    return python_model(root / "releases" / name, str(number), TELLS, f'{ADD_SUB_CONFIG}\nname: "{name}"', number)


def point(root: Path, name: str, target: str) -> None:
    """Point the link of a model at another directory, in one step."""
    (root / "models").mkdir(exist_ok=True)
    (root / "models" / f".{name}").symlink_to(f"../releases/{target}")
    os.rename(root / "models" / f".{name}", root / "models" / name)


def versions(server: Running, name: str) -> list[str]:
    return list(json.loads(server.get(f"/v2/models/{name}")[1])["versions"])


def wait_for_version(server: Running, name: str, version: str) -> None:
    end = time.monotonic() + PATIENCE
    while versions(server, name) != [version]:
        assert time.monotonic() < end, server.log()
        time.sleep(0.01)


def load(server: Running) -> None:
    for name in ("det", "sums"):
        status, answer = server.post(f"/v2/repository/models/{name}/load")
        assert status == 200, answer


def notice(server: Running) -> None:
    server.process.send_signal(signal.SIGHUP)


@pytest.mark.parametrize(("mode", "tell"), [("none", notice), pytest.param("explicit", load, marks=pytest.mark.slow)])
def test_a_link_that_is_turned_under_load_loses_nothing(tmp_path: Path, mode: str, tell: object) -> None:
    for number in (16, 17):
        release(tmp_path, "det", number)
        python_model(tmp_path / "releases/sums", str(number), ADDS_UP, f'{ADDS_UP_CONFIG}\nname: "sums"', number)
    for name in ("det", "sums"):
        point(tmp_path, name, f"{name}/16")
    only = ("--load-model=*",) if mode == "explicit" else ()
    with running(f"--model-repository={tmp_path}/models", f"--model-control-mode={mode}", *only) as server:
        assert versions(server, "det") == ["16"]
        clients = Load()

        def turn() -> None:
            clients.wait_for_answers(25)
            for name in ("det", "sums"):
                point(tmp_path, name, f"{name}/17")
            (load if tell is load else notice)(server)
            for name in ("det", "sums"):
                wait_for_version(server, name, "17")
            clients.wait_for_answers(25)

        work = [partial(clients.add_sub, server.http, "det")] * 4
        work += [partial(clients.adds_up, server.http, "sums", number, 50) for number in range(1, 5)]
        busy(clients, work, turn)
        assert clients.failures[:3] == []
        assert clients.answered > 50
        assert clients.sequences >= 4
        for number in (16, 17):
            server.wait_for_log(f"told det {number} {tmp_path}/releases/det/{number}$")
        server.wait_for_log("model det version 16 unloaded")
        assert 'nv_inference_request_success{model="det",version="17"}' in _metrics(server)
        assert json.loads(server.get("/v2/models/det/config")[1])["name"] == "det"
        index = json.loads(server.post("/v2/repository/index")[1])
        ready = [(one["name"], one["version"]) for one in index if one["state"] == "READY"]
        assert ready == [("det", "17"), ("sums", "17")]
        assert server.log().count("changed in the repository: det, sums") == (mode == "none")


def test_a_release_that_fails_its_golden_test_is_seen_by_no_client(tmp_path: Path) -> None:
    """And the server is ready again once the link leads to the release that serves."""
    add_sub(release(tmp_path, "det", 17))
    bad = release(tmp_path, "det", 18)
    (bad / "18/model.py").write_text(TELLS.replace("a - b", "a - b - 1"))
    add_sub(bad)
    point(tmp_path, "det", "det/17")
    with running(f"--model-repository={tmp_path}/models") as server:
        clients = Load()

        def turn() -> None:
            point(tmp_path, "det", "det/18")
            notice(server)
            server.wait_for_log(
                "model 'det' version 18 fails its golden test: sample 'first': output 'OUTPUT1': 16 of 16"
            )
            assert server.get("/v2/health/ready")[0] == 400
            point(tmp_path, "det", "det/17")
            notice(server)
            server.wait_for_log("model det is unchanged, nothing to load")

        busy(clients, [partial(clients.add_sub, server.http, "det")] * 8, turn)
        assert clients.failures[:3] == []
        assert clients.answered > 50
        assert versions(server, "det") == ["17"]
        assert server.get("/v2/health/ready")[0] == 200
        assert server.log().count("told det 17") == 1, "release 17 was loaded once"


def _metrics(server: Running) -> str:
    return server.get("/metrics", server.metrics)[1].decode()


def test_bad_links_are_refused_and_the_old_version_serves(tmp_path: Path) -> None:
    """Also a worker that starts again after its link was turned: it finds the files of its own release."""
    release(tmp_path, "det", 16)
    python_model(tmp_path / "releases", "any", config=ADD_SUB_CONFIG)
    point(tmp_path, "det", "det/16")
    point(tmp_path, "twin", "det/16")
    for name in ("one", "two"):
        point(tmp_path, name, "any")
    arguments = (f"--model-repository={tmp_path}/models", "--model-control-mode=poll", "--repository-poll-secs=1")
    with running(*arguments, "--exit-on-error=false") as server:
        assert [server.add_sub(name)[0] for name in ("det", "one", "two")] == [200, 200, 200]
        server.wait_for_log(
            "unexpected directory name 'twin' for model 'det', directory name must equal model name; remove the line "
            'name: "det" from config.pbtxt, or: make the link det in its place'
        )
        point(tmp_path, "det", "det/18")
        server.wait_for_log("model det is left out: the link leads to '../releases/det/18', which does not exist: ")
        for pid in server.workers():
            os.kill(pid, signal.SIGKILL)
        server.wait_for_log("told det 16 (?s:.*)told det 16 ")
        end = time.monotonic() + PATIENCE
        while server.add_sub("det")[0] != 200:
            assert time.monotonic() < end, server.log()
            time.sleep(0.05)
        assert "model det is gone" not in server.log()
        assert server.log().count("model det is left out") == 1
