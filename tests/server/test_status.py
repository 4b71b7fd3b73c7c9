"""The status of a real server: over HTTP, over the socket for administration, as text, and when things go wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.running import PATIENCE, Running, python_model, running

pytestmark = pytest.mark.slow  # a server for each state


def status(server: Running) -> dict[str, Any]:
    code, body = server.get("/edge-serve/status")
    assert code == 200
    document: dict[str, Any] = json.loads(body)
    return document


def wait_for(server: Running, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    end = time.monotonic() + PATIENCE
    while not wanted(document := status(server)):
        assert time.monotonic() < end, document
        time.sleep(0.05)
    return document


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("run") / "admin.sock")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, socket_path: str) -> Iterator[Running]:
    models = tmp_path_factory.mktemp("models")
    python_model(models, "add_sub")
    python_model(models, "broken", code="raise RuntimeError('no camera')")
    with running(
        f"--model-repository={models}", "--exit-on-error=false", "--required-model=add_sub",
        f"--admin-socket={socket_path}",
    ) as started:  # fmt: skip
        yield started


def test_models_that_serve_and_that_do_not(server: Running) -> None:
    before = status(server)["models"][0]["totals"]["requests"]
    assert server.add_sub("add_sub")[0] == 200
    good, bad = status(server)["models"]

    assert (good["name"], good["condition"], good["backend"]) == ("add_sub", "ready", "python")
    assert good["totals"]["requests"] == before + 1
    assert (bad["name"], bad["condition"]) == ("broken", "failed")
    assert "no camera" in bad["reason"]


def test_workers_are_processes_that_live(server: Running) -> None:
    document = status(server)

    assert document["server"]["pid"] == server.process.pid
    (worker,) = (one for one in document["workers"] if one["models"] == ["add_sub:1"])
    assert worker["pid"] in server.workers()
    assert 0 < worker["pss_bytes"] <= worker["rss_bytes"]
    assert worker["uptime_seconds"] < 600


def test_problems_and_events_name_their_model(server: Running) -> None:
    document = status(server)

    assert any(event["model"] == "broken" and "no camera" in event["text"] for event in document["errors"])
    assert any(event["model"] == "add_sub" and " ready in " in event["text"] for event in document["events"])
    assert not any("MODEL" in event["text"] for event in document["events"])


def test_a_worker_that_dies_is_seen_and_so_is_its_successor(server: Running) -> None:
    (before,) = (one for one in status(server)["workers"] if one["models"] == ["add_sub:1"])
    os.kill(before["pid"], signal.SIGKILL)
    after = wait_for(
        server,
        lambda document: (
            any(w["restarts"] and w["uptime_seconds"] is not None for w in document["workers"])
            and document["models"][0]["condition"] == "ready"
        ),
    )

    (worker,) = (one for one in after["workers"] if one["models"] == ["add_sub:1"])
    assert worker["pid"] != before["pid"]
    (event,) = [event for event in after["errors"] if "SIGKILL" in event["text"]]
    assert (event["model"], event["version"]) == ("add_sub", "1")


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edge_serve", *arguments], capture_output=True, text=True, timeout=PATIENCE
    )


def test_the_command_over_the_socket_for_administration(server: Running, socket_path: str) -> None:
    wait_for(server, lambda document: bool(document["server"]["ready"]))
    text, document = (
        command("status", "--admin-socket", socket_path),
        command("status", "--json", "--admin-socket", socket_path),
    )

    assert (text.returncode, document.returncode, text.stderr) == (0, 0, "")
    assert text.stdout.startswith("edge-serve ")
    assert ": ready, up" in text.stdout.splitlines()[0]
    assert json.loads(document.stdout)["server"]["doors"]["admin"] == [socket_path]


def test_a_server_that_is_not_ready_says_what_it_waits_for(tmp_path: Path) -> None:
    python_model(tmp_path, "broken", code="raise RuntimeError('no camera')")
    with running(f"--model-repository={tmp_path}", "--exit-on-error=false") as server:
        document = status(server)
        text = command("status", "--url", server.url)

        assert (document["server"]["state"], document["server"]["failed"]) == ("not ready", ["broken"])
        assert document["server"]["waiting_for"] == []
        assert text.returncode == 1
        expected = "  1 model failed: broken (Internal: RuntimeError: no camera); 0 serve"
        assert text.stdout.splitlines()[1] == expected


def test_a_server_that_loads_is_starting(tmp_path: Path) -> None:
    slow = "import time\nwhile not __import__('os').path.exists({!r}): time.sleep(0.02)\n"
    go = tmp_path / "go"
    python_model(tmp_path / "models", "slow", code=slow.format(str(go)))
    with running(f"--model-repository={tmp_path / 'models'}", "--exit-on-error=false", ready=False) as server:
        document = wait_for(
            server, lambda found: bool(found["models"] and found["models"][0]["condition"] == "loading")
        )
        assert (document["server"]["state"], document["server"]["reason"]) == ("starting", "loading slow")
        go.touch()


def test_without_the_page_nothing_of_it_is_there(tmp_path: Path) -> None:
    with running(f"--model-repository={tmp_path}", "--allow-ui=false") as server:
        assert server.get("/ui") == (404, b'{"error":"Not Found"}')
        assert status(server)["models"] == []


def test_without_the_role_read_the_page_has_no_status(tmp_path: Path) -> None:
    token = command("token", str(tmp_path / "tokens"), "read", "technician").stdout.split()[-1]
    (tmp_path / "mine").write_text(token)
    with running(f"--model-repository={tmp_path}", f"--token-file={tmp_path / 'tokens'}") as server:
        assert server.get("/ui")[0] == 200
        assert server.get("/edge-serve/status")[0] == 401
        refused = command("status", "--url", server.url)
        shown = command("status", "--url", server.url, "--token-file", str(tmp_path / "mine"))

    assert refused.returncode == 4
    assert "--token-file names a file with a token" in refused.stderr
    assert shown.returncode == 0, shown.stderr


def test_a_reader_that_has_read_enough_is_no_trouble(server: Running) -> None:
    shell = f"{sys.executable} -m edge_serve status --json --url {server.url} | head -c 10; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=PATIENCE)

    assert (done.stdout[:1], done.stdout[-2:], done.stderr) == ("{", "0\n", "")


def test_the_log_and_paths_are_for_this_device_and_for_tokens(tmp_path: Path) -> None:
    token = command("token", str(tmp_path / "tokens"), "read", "technician").stdout.split()[-1]
    python_model(tmp_path / "models", "broken", "raise ValueError(__file__)")
    python_model(tmp_path / "models", "works")
    from_afar = {"X-Forwarded-For": "192.0.2.1"}  # as a reverse proxy passes on what another device asks
    flags = (f"--model-repository={tmp_path / 'models'}", "--exit-on-error=false")
    with running(*flags, f"--admin-socket={tmp_path / 'admin.sock'}") as server:
        here = _document(server, {})
        afar = _document(server, from_afar)
    with running(*flags, f"--token-file={tmp_path / 'tokens'}", "--anonymous-role=infer") as server:
        known = _document(server, {**from_afar, "Authorization": f"Bearer {token}"})
        without_token = _document(server, from_afar)

    for whole in (here, known):
        assert whole["events"]
        assert "log_hidden" not in whole
        assert str(tmp_path) in next(row["reason"] for row in whole["models"] if row["condition"] == "failed")
    assert afar["server"]["pid"] == here["server"]["pid"]
    for part in (afar, without_token):
        assert (part["events"], part["errors"], part["log_hidden"]) == ([], [], True)
        assert [(row["name"], row["condition"]) for row in part["models"]] == [("broken", "failed"), ("works", "ready")]
        assert (part["server"]["state"], part["server"]["reason"]) == ("not ready", "failed: broken")
        assert [text for text in _texts(part) if "/" in text or ".py" in text] == []


def _texts(value: Any) -> Iterator[str]:
    """Every string in a document, names of members included."""
    match value:
        case str():
            yield value
        case dict():
            for name, member in value.items():
                yield name
                yield from _texts(member)
        case list():
            for member in value:
                yield from _texts(member)


def _document(server: Running, headers: dict[str, str]) -> dict[str, Any]:
    asked = urllib.request.Request(f"http://{server.url}/edge-serve/status", headers=headers)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        document: dict[str, Any] = json.load(answer)
    return document
