"""POST /edge-serve/reload on a real server: what changed is loaded at once, and the reply says what became of it."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.load import Load, busy
from tests.server.running import ADD_SUB, ADD_SUB_CONFIG, Running, python_model, running

pytestmark = pytest.mark.slow  # a server for each way

ROUTE = "/edge-serve/reload"
#: takes long to come up, so that requests have to wait for it
SLOW = f"import time\ntime.sleep(0.7)\n{ADD_SUB}"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in ("m", "gone", "one"):
        python_model(folder, name)
    return folder


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Running]:
    with running("--model-repository", str(root)) as one:
        yield one


def reload(server: Running, body: Any = None) -> dict[str, Any]:
    """The result of each model."""
    status, answer = server.post(ROUTE, body)
    assert status == 200, answer
    return {one.pop("name"): one for one in json.loads(answer)["models"]}


def replace(root: Path, name: str, code: str, version: int) -> None:
    """Put another version in the place of a model, renamed into place."""
    directory = python_model(root.parent / "fresh", name, code, version=version)
    os.rename(root / name, root.parent / f"old-{name}-{version}")
    os.rename(directory, root / name)


def point(link: Path, target: Path) -> None:
    """Point a link elsewhere at once."""
    fresh = link.with_name(".fresh")
    fresh.symlink_to(target)
    os.rename(fresh, link)


def test_a_named_model_is_loaded_and_its_version_served_when_the_reply_comes(server: Running, root: Path) -> None:
    shutil.rmtree(root / "m" / "1")
    python_model(root, "m", version=2)  # written in place, so that a look would wait until it has settled
    assert reload(server, {"models": ["m"]}) == {"m": {"versions": ["2"], "changed": True, "reason": ""}}
    assert reload(server, {"models": ["m"]}) == {"m": {"versions": ["2"], "changed": False, "reason": ""}}


def test_a_version_that_fails_is_named_with_its_reason_and_the_old_one_serves(server: Running, root: Path) -> None:
    replace(root, "m", "raise ValueError('no weights')", version=3)
    result = reload(server, {"models": ["m"]})["m"]
    assert (result["versions"], result["changed"]) == (["2"], True)
    assert "no weights" in result["reason"]
    assert server.add_sub("m")[0] == 200
    again = reload(server, {"models": ["m"]})["m"]  # nothing changed, and it is tried again all the same
    assert (again["versions"], again["changed"], "no weights" in again["reason"]) == (["2"], False, True)

    replace(root, "m", ADD_SUB, version=4)
    assert reload(server, {"models": ["m"]})["m"] == {"versions": ["4"], "changed": True, "reason": ""}


def test_without_names_it_finds_what_came_and_what_went(server: Running, root: Path) -> None:
    shutil.rmtree(root / "gone")
    python_model(root, "fresh")
    found = reload(server)
    assert found == {
        "fresh": {"versions": ["1"], "changed": True, "reason": ""},
        "gone": {"versions": [], "changed": True, "reason": ""},
    }


def test_a_missing_model_is_reported_as_absent(server: Running) -> None:
    result = reload(server, {"models": ["nowhere"]})["nowhere"]
    assert result == {"versions": [], "changed": False, "reason": "the model repositories hold no model 'nowhere'"}


def test_an_ensemble_that_its_member_leaves_behind_is_named_and_counts(server: Running, root: Path) -> None:
    maps = "".join(
        f'{kind}put_map {{ key: "{name}" value: "{name}" }} '
        for kind, name in (("in", "INPUT0"), ("in", "INPUT1"), ("out", "OUTPUT0"), ("out", "OUTPUT1"))
    )
    step = f'step {{ model_name: "part" model_version: -1 {maps} }}'
    config = ADD_SUB_CONFIG.replace('backend: "python"', 'platform: "ensemble"')
    python_model(root, "whole", config=f"{config} ensemble_scheduling {{ {step} }}")
    part = python_model(root, "part")
    assert reload(server, {"models": ["whole", "part"]})["whole"]["versions"] == ["1"]

    python_model(root, "part", config=ADD_SUB_CONFIG.replace("OUTPUT1", "OTHER"))
    results = reload(server, {"models": ["part"]})
    assert (results["part"]["versions"], results["part"]["reason"]) == (["1"], "")
    assert results["whole"]["versions"] == []
    assert "non-existing output OUTPUT1 in model part" in results["whole"]["reason"]
    assert server.get("/v2/health/ready")[0] == 400

    (part / "config.pbtxt").write_text(ADD_SUB_CONFIG)
    assert list(reload(server, {"models": ["part"]})) == ["part"]
    assert server.get("/v2/health/ready")[0] == 200
    assert server.add_sub("whole")[0] == 200


def test_unload_first_makes_requests_wait_and_loses_none(server: Running, root: Path) -> None:
    replace(root, "one", SLOW, version=2)
    load, workers = Load(), set(server.workers())

    def swap() -> None:
        seen: list[int] = []
        done = threading.Event()

        def count() -> None:
            while not done.wait(0.01):
                seen.append(len(set(server.workers())))

        watch = threading.Thread(target=count)
        watch.start()
        result = reload(server, {"models": ["one"], "unload_first": True})["one"]
        done.set()
        watch.join()
        assert result == {"versions": ["2"], "changed": True, "reason": ""}
        assert max(seen) <= len(workers), "both versions were loaded beside each other"

    busy(load, [lambda: load.add_sub(server.http, "one")] * 4, swap)
    assert (load.failures, load.answered > 0) == ([], True)
    server.wait_for_log("unloaded first; requests wait")


def test_unload_first_fails_waiting_requests_with_the_reason_if_the_new_version_fails(
    server: Running, root: Path
) -> None:
    replace(root, "one", "import time\ntime.sleep(0.7)\nraise ValueError('no weights')", version=3)
    answers: list[tuple[int, Any]] = []

    def ask() -> None:
        time.sleep(0.3)
        answers.append(server.add_sub("one"))

    thread = threading.Thread(target=ask)
    thread.start()
    result = reload(server, {"models": ["one"], "unload_first": True})["one"]
    thread.join()
    assert (result["versions"], "no weights" in result["reason"]) == ([], True)
    assert answers[0][0] >= 400
    assert "no weights" in answers[0][1]["error"]
    replace(root, "one", ADD_SUB, version=4)
    assert reload(server, {"models": ["one"], "unload_first": True})["one"]["versions"] == ["4"]


def test_unload_first_brings_the_old_release_back_when_the_new_one_fails(server: Running, root: Path) -> None:
    releases = root.parent / "releases"
    config = f'name: "linked"\n{ADD_SUB_CONFIG}'
    for release, code in ((16, ADD_SUB), (17, "import time\ntime.sleep(0.7)\nraise ValueError('no weights')")):
        python_model(releases, str(release), code, config, version=release)
    point(root / "linked", releases / "16")
    assert reload(server, {"models": ["linked"]})["linked"]["versions"] == ["16"]

    point(root / "linked", releases / "17")
    load = Load()
    results: list[dict[str, Any]] = []

    def swap() -> None:
        time.sleep(0.2)
        results.append(reload(server, {"models": ["linked"], "unload_first": True})["linked"])

    busy(load, [lambda: load.add_sub(server.http, "linked")] * 4, swap)
    assert (results[0]["versions"], "no weights" in results[0]["reason"]) == (["16"], True)
    assert (load.failures, load.answered > 0) == ([], True)
    point(root / "linked", releases / "16")
    assert reload(server, {"models": ["linked"]})["linked"]["versions"] == ["16"]


@pytest.mark.parametrize(
    "body", [[], {"models": "m"}, {"models": [1]}, {"model": ["m"]}, {"unload_first": 1}, {"models": [""]}]
)
def test_the_error_of_a_wrong_request_names_what_was_expected(server: Running, body: Any) -> None:
    status, answer = server.post(ROUTE, body)
    assert status == 400
    assert 'expected {"models": ["name", ...]' in json.loads(answer)["error"]


def test_where_models_are_loaded_on_request_it_names_the_way(root: Path) -> None:
    with running("--model-repository", str(root), "--model-control-mode", "explicit") as server:
        status, answer = server.post(ROUTE, {"models": ["m"]})
        assert (status, "/v2/repository/models/NAME/load" in json.loads(answer)["error"]) == (400, True)
        assert server.get(ROUTE)[0] == 405
