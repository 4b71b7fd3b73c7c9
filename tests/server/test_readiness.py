"""Readiness recovers: a version that failed to load counts no more once it is gone, unloaded or superseded."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.quick_polls import QUICK_POLLS
from tests.server.running import ADD_SUB, PATIENCE, Running, python_model, running

#: `tests/models/control/test_records.py` has the rules; here they meet a repository, both modes, and what a
#: technician reads
pytestmark = pytest.mark.slow

BAD = "raise RuntimeError('no weights')"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[Running]:
    """In mode explicit, with model `m`."""
    python_model(models, "m")
    with running(f"--model-repository={models}", "--model-control-mode=explicit", "--load-model=m") as started:
        yield started


def load(server: Running, model: str = "m") -> int:
    return server.post(f"/v2/repository/models/{model}/load")[0]


def is_ready(server: Running) -> bool:
    return server.get("/v2/health/ready")[0] == 200


def wait_for(wanted: Callable[[], bool], limit: float = PATIENCE) -> None:
    end = time.monotonic() + limit
    while not wanted():
        assert time.monotonic() < end
        time.sleep(0.05)


def put(models: Path, version: int, code: str = ADD_SUB) -> None:
    """A version of `m`, renamed into place as a whole."""
    aside = python_model(models.parent / "aside", "m", code, version=version)
    (aside / str(version)).rename(models / "m" / str(version))


def index(server: Running) -> dict[str, str]:
    """Version of `m` -> state."""
    entries = json.loads(server.post("/v2/repository/index")[1])
    return {one["version"]: one["state"] for one in entries if one["name"] == "m" and "version" in one}


def conditions(server: Running) -> list[str]:
    """The server's state, the models that it waits for, and the condition of each version."""
    document = json.loads(server.get("/edge-serve/status")[1])
    return [document["server"]["state"], *(one["condition"] for one in document["models"])]


def test_in_mode_explicit_after_each_step_that_mends_it(server: Running, models: Path) -> None:
    assert is_ready(server)
    put(models, 2, BAD)
    assert load(server) == 400
    assert (is_ready(server), conditions(server)) == (False, ["not ready", "ready", "failed"])

    shutil.rmtree(models / "m" / "2")
    assert load(server) == 200
    assert (is_ready(server), conditions(server)) == (True, ["ready", "ready", "unloaded"])
    assert index(server) == {"1": "READY", "2": "UNAVAILABLE"}  # as Triton's

    put(models, 2, BAD)
    assert (load(server), is_ready(server)) == (400, False)
    put(models, 3)
    assert (load(server), is_ready(server)) == (200, True)
    wait_for(lambda: conditions(server) == ["ready", "unloaded", "unloaded", "ready"])

    put(models, 4, BAD)
    assert (load(server), is_ready(server)) == (400, False)
    shutil.rmtree(models / "m" / "4")
    wait_for(lambda: is_ready(server))  # it is gone: no request is needed
    assert server.add_sub("m")[0] == 200


def test_in_mode_explicit_a_model_that_failed_counts_until_it_is_unloaded(server: Running, models: Path) -> None:
    python_model(models, "bad", BAD)
    assert (load(server, "bad"), is_ready(server)) == (400, False)
    assert server.post("/v2/repository/models/bad/unload")[0] == 200
    assert is_ready(server)
    assert (load(server, "bad"), is_ready(server)) == (400, False)
    python_model(models, "bad")
    assert (load(server, "bad"), is_ready(server)) == (200, True)


def test_in_mode_poll_after_each_step_that_mends_it(tmp_path: Path) -> None:
    python_model(tmp_path, "m")
    flags = (f"--model-repository={tmp_path}", "--model-control-mode=poll", "--repository-poll-secs=1")
    with running(*flags, prefix=QUICK_POLLS) as server:
        put(tmp_path, 2, BAD)
        wait_for(lambda: conditions(server) == ["not ready", "ready", "failed"])
        assert not is_ready(server)
        command = [sys.executable, "-m", "edge_serve", "status", "--url", server.url]
        assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=PATIENCE).returncode == 1

        shutil.rmtree(tmp_path / "m" / "2")
        wait_for(lambda: is_ready(server))
        assert conditions(server) == ["ready", "ready", "unloaded"]

        put(tmp_path, 2, BAD)
        wait_for(lambda: not is_ready(server))
        put(tmp_path, 3)
        wait_for(lambda: is_ready(server))
        assert index(server)["3"] == "READY"

        python_model(tmp_path.parent / "other", "bad", BAD).rename(tmp_path / "bad")
        wait_for(lambda: not is_ready(server))
        shutil.rmtree(tmp_path / "bad")
        wait_for(lambda: is_ready(server))
        python_model(tmp_path.parent / "other", "bad", BAD).rename(tmp_path / "bad")
        wait_for(lambda: not is_ready(server))
        python_model(tmp_path, "bad")
        wait_for(lambda: is_ready(server))


def test_the_index_shows_which_models_the_start_is_loading(tmp_path: Path) -> None:
    """Scripts of Triton's QA wait for the server to be live, and then until no model of the index is loading."""
    gate = tmp_path / "gate"
    wait = f"import pathlib, time\nwhile not pathlib.Path({str(gate)!r}).exists():\n    time.sleep(0.05)\n"
    python_model(tmp_path / "models", "m", wait + ADD_SUB)
    with running(f"--model-repository={tmp_path / 'models'}", ready=False) as server:
        wait_for(lambda: index(server) == {"1": "LOADING"})
        assert server.get("/v2/health/live")[0] == 200
        gate.touch()
        wait_for(lambda: index(server) == {"1": "READY"})
