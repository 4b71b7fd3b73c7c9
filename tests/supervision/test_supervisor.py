"""A real server that tells a manager of its life."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edge_serve.clock import MonotonicClock
from edge_serve.models.control.records import ModelSummary
from edge_serve.supervision import supervisor
from edge_serve.supervision.crash_loop import Record, StartPhase, Suspects, as_text
from edge_serve.supervision.safe_mode import FILE
from edge_serve.supervision.supervisor import status_line
from edge_serve.workers.front.workers import Workers
from tests.server.running import ADD_SUB, PATIENCE, python_model
from tests.supervision.manager import Message, find_ports, mailbox, ready, supervised, wait_until

#: loads only when a file is there, and computes meanwhile
WAITS = (
    "import os, time\n"
    + ADD_SUB
    + """
    def initialize(self, args):
        while not os.path.exists(GATE):
            sum(range(10000))
"""
)


def gated(gate: Path) -> str:
    return WAITS.replace("GATE", repr(str(gate)))


def waiting(gate: Path) -> str:
    """`gated`, without a computation."""
    return gated(gate).replace("sum(range(10000))", "time.sleep(0.1)")


@pytest.mark.slow
def test_ready_comes_with_the_last_required_model(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "quick")
    python_model(tmp_path / "models", "slow", gated(tmp_path / "gate"))
    flag = f"--model-repository={tmp_path}/models"
    with mailbox(tmp_path / "notify") as box, supervised(box, flag, faults="hasty") as server:
        box.wait_for(lambda message: message.get("STATUS") == "1 of 2 models ready, loading slow")
        find_ports(server)
        assert server.get("/v2/health/live")[0] == 200
        box.wait_for(lambda message: "EXTEND_TIMEOUT_USEC" in message)
        assert not any(map(ready, box.drain()))

        (tmp_path / "gate").touch()

        told = box.wait_for(ready)
        assert told == {"READY": "1", "MAINPID": str(server.process.pid), "STATUS": "2 models ready"}
        assert server.get("/v2/health/ready")[0] == 200
        server.process.send_signal(signal.SIGTERM)
        box.wait_for(lambda message: message.get("STOPPING") == "1")
        assert server.process.wait(PATIENCE) == 0


@pytest.mark.slow
def test_after_a_crash_a_model_that_waits_in_its_load_does_not_keep_the_only_turn(tmp_path: Path) -> None:
    waits = [f"waits_{number}" for number in range(3)]  # so that one of them most likely is the first
    for name in waits:
        python_model(tmp_path / "models", name, waiting(tmp_path / "gate"))
    python_model(tmp_path / "models", "quick")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (tmp_path / FILE).write_text(as_text(Record(boot, StartPhase.ALIVE, Suspects((waits[0],)))))
    flags = [f"--model-repository={tmp_path}/models", "--exit-on-error=false", f"--state-directory={tmp_path}"]
    with mailbox(tmp_path / "notify") as box, supervised(box, *flags, faults="impatient+hasty") as server:
        box.wait_for(ready)
        find_ports(server)
        wait_until(lambda: server.add_sub("quick")[0] == 200)


@pytest.mark.slow
@pytest.mark.parametrize("way_out", ["it loads", "it is removed", "the server stops"])
def test_a_model_that_waits_in_its_load_keeps_the_others_from_nothing(tmp_path: Path, way_out: str) -> None:
    python_model(tmp_path / "models", "quick")
    python_model(tmp_path / "models", "waits", waiting(tmp_path / "gate"))
    flags = [f"--model-repository={tmp_path}/models", "--exit-on-error=false"]
    with mailbox(tmp_path / "notify") as box, supervised(box, *flags, faults="impatient+hasty") as server:
        assert box.wait_for(ready)["STATUS"] == "1 of 2 models ready, loading waits"
        find_ports(server)
        assert server.get("/v2/health/ready")[0] == 400
        assert server.add_sub("quick")[0] == 200
        assert server.get("/v2/models/waits/ready")[0] == 400

        if way_out == "it loads":
            (tmp_path / "gate").touch()
            box.wait_for(lambda message: message.get("STATUS") == "2 models ready")
            assert server.add_sub("waits")[0] == 200
        elif way_out == "it is removed":
            shutil.rmtree(tmp_path / "models/waits")
            server.process.send_signal(signal.SIGHUP)
            box.wait_for(lambda message: message.get("STATUS") == "1 model ready")
        if way_out != "the server stops":
            assert server.get("/v2/health/ready")[0] == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0


def test_a_required_model_that_fails_is_reported_and_the_service_has_started(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "good")
    bad = python_model(tmp_path / "models", "bad", "raise RuntimeError('no licence')\n")
    flags = [f"--model-repository={tmp_path}/models", "--exit-on-error=false"]
    with mailbox(tmp_path / "notify") as box, supervised(box, *flags, "--required-model=bad") as server:
        status = box.wait_for(ready)["STATUS"]
        assert re.fullmatch(r"1 model failed: required bad \(.*no licence\); 1 serves", status)
        find_ports(server)
        assert server.get("/v2/health/live")[0] == 200
        assert server.get("/v2/health/ready")[0] == 400
        assert server.get("/v2/models/good/ready")[0] == 200
        assert server.add_sub("good")[0] == 200
        assert b"no licence" in server.post("/v2/repository/index")[1]
        server.wait_for_log(r"the server is live and not ready: 1 model failed: required bad \(.*no licence\)")
        reason = json.loads(server.get("/edge-serve/status")[1])["server"]["reason"]
        assert reason == status

        (bad / "1/model.py").write_text(ADD_SUB)
        server.process.send_signal(signal.SIGHUP)
        assert box.wait_for(lambda message: message.get("STATUS") == "2 models ready")
        assert server.get("/v2/health/ready")[0] == 200


@pytest.mark.slow
def test_a_missing_required_model_is_reported_and_served_when_it_comes(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "good")
    flags = [f"--model-repository={tmp_path}/models", "--required-model=god"]
    why = "not in the repository, did you mean 'good'?"
    with mailbox(tmp_path / "notify") as box, supervised(box, *flags) as server:
        assert box.wait_for(ready)["STATUS"] == f"1 model ready; required god: {why}"
        find_ports(server)
        assert server.get("/v2/health/live")[0] == 200
        assert server.get("/v2/health/ready")[0] == 400
        server.wait_for_log(rf"required model 'god' is {re.escape(why)} \(--required-model\)")
        assert json.loads(server.get("/edge-serve/status")[1])["server"]["reason"] == f"waiting for god ({why})"

        python_model(tmp_path / "aside", "god").rename(tmp_path / "models/god")
        server.process.send_signal(signal.SIGHUP)
        assert box.wait_for(lambda message: message.get("STATUS") == "2 models ready")
        assert server.get("/v2/health/ready")[0] == 200


def test_a_required_model_that_no_client_has_loaded_yet_keeps_nothing_from_starting(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "good")
    flags = [f"--model-repository={tmp_path}/models", "--required-model=good", "--model-control-mode=explicit"]
    with mailbox(tmp_path / "notify") as box, supervised(box, *flags) as server:
        assert box.wait_for(ready)["STATUS"] == "0 models ready; required good: not loaded"
        find_ports(server)
        assert server.get("/v2/health/ready")[0] == 400
        assert server.post("/v2/repository/models/good/load")[0] == 200
        assert server.get("/v2/health/ready")[0] == 200
        assert box.wait_for(lambda message: message.get("STATUS") == "1 model ready")


@pytest.mark.parametrize(
    "mode", ["none", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("poll", "explicit"))]
)
def test_an_unreadable_repository_is_reported_and_served_when_it_can_be_read(tmp_path: Path, mode: str) -> None:
    python_model(tmp_path / "aside", "good")
    repository = tmp_path / "models"
    flags = [f"--model-repository={repository}", "--exit-on-error=false", f"--model-control-mode={mode}"]
    flags += ["--repository-poll-secs=1"] if mode == "poll" else []
    flags += [f"--state-directory={tmp_path}"]
    why = f"failed to read model repository '{repository}': No such file or directory"
    with mailbox(tmp_path / "notify") as box, supervised(box, *flags) as server:
        assert box.wait_for(ready)["STATUS"].startswith(f"0 models ready; {why}")
        find_ports(server)
        assert server.get("/v2/health/live")[0] == 200
        assert server.get("/v2/health/ready")[0] == 400
        server.wait_for_log(f"^E.*{why}.* the server is live, and not ready until it can be read")
        told = json.loads(server.get("/edge-serve/status")[1])["server"]
        assert told["state"] == "not ready"
        assert told["reason"].startswith(why)

        (tmp_path / "aside").rename(repository)
        if mode == "none":
            server.process.send_signal(signal.SIGHUP)
        elif mode == "explicit":
            assert server.post("/v2/repository/models/good/load")[0] == 200
        assert box.wait_for(lambda message: message.get("STATUS") == "1 model ready")
        assert server.get("/v2/health/ready")[0] == 200
        assert server.add_sub("good")[0] == 200


@pytest.mark.parametrize("way_out", [pytest.param("mended", marks=pytest.mark.slow), "removed"])
def test_a_model_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path, way_out: str) -> None:
    python_model(tmp_path / "models", "good")
    endless = tmp_path / "models/locked"
    endless.symlink_to(endless)
    with (
        mailbox(tmp_path / "notify") as box,
        supervised(box, f"--model-repository={tmp_path}/models", "--exit-on-error=false") as server,
    ):
        status = box.wait_for(ready)["STATUS"]
        assert status.startswith("1 model failed: locked (")
        assert "leads back to it: point it" in status, "cut to 160 characters, whatever the path"
        find_ports(server)
        assert server.get("/v2/health/ready")[0] == 200, "as Triton's"
        rows = {row["name"]: row for row in json.loads(server.get("/edge-serve/status")[1])["models"]}
        assert "leads back to it: point it at the directory of a model" in rows["locked"]["reason"]

        endless.unlink()
        if way_out == "mended":
            python_model(tmp_path / "aside", "locked").rename(endless)
        server.process.send_signal(signal.SIGHUP)
        wanted = "2 models ready" if way_out == "mended" else "1 model ready"
        assert box.wait_for(lambda message: message.get("STATUS") == wanted)


def test_a_model_with_an_unreadable_configuration_is_named_until_it_is_removed(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "good")
    bad = python_model(tmp_path / "models", "bad", config="max_batch: 8\n")
    flags = [f"--model-repository={tmp_path}/models", "--exit-on-error=false"]
    with mailbox(tmp_path / "notify") as box, supervised(box, *flags) as server:
        status = box.wait_for(ready)["STATUS"]
        assert status.startswith("1 model failed: bad (")
        assert "unknown field 'max_batch'" in status
        bad.rename(tmp_path / "bad")
        server.process.send_signal(signal.SIGHUP)
        assert box.wait_for(lambda message: message.get("STATUS") == "1 model ready")


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "bad", "raise RuntimeError('no licence')\n")
    with mailbox(tmp_path / "notify") as box, supervised(box, f"--model-repository={tmp_path}/models") as server:
        told = box.wait_for(lambda one: ready(one) or one.get("STATUS", "").startswith("1 model(s) failed to load"))
        assert not ready(told)
        assert "no licence" in told["STATUS"]
        assert server.process.wait(PATIENCE) == 1
        assert "no licence" in server.log()
        assert "--exit-on-error=false" in server.log()
        assert "Traceback" not in server.log()

    python_model(tmp_path / "models", "bad")
    with socket.create_server(("127.0.0.1", 0)) as taken, mailbox(tmp_path / "again") as box:
        port = taken.getsockname()[1]
        with supervised(box, f"--model-repository={tmp_path}/models", f"--http-port={port}") as server:
            assert box.wait_for(lambda message: "ERRNO" in message)["ERRNO"] == "98"
            assert server.process.wait(PATIENCE) == 1


@pytest.mark.parametrize("mode", ["none", "explicit"])
def test_a_reload_begins_and_ends(tmp_path: Path, mode: str) -> None:
    python_model(tmp_path / "models", "first")
    flags = [f"--model-repository={tmp_path}/models", f"--model-control-mode={mode}"]
    with mailbox(tmp_path / "notify") as box, supervised(box, *flags) as server:
        box.wait_for(ready)
        before = time.monotonic_ns() // 1000
        (tmp_path / "aside").mkdir()
        python_model(tmp_path / "aside", "second").rename(tmp_path / "models/second")
        server.process.send_signal(signal.SIGHUP)

        begins = box.wait_for(lambda message: message.get("RELOADING") == "1")
        assert before <= int(begins["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
        ends: Message = box.wait_for(ready)
        assert ends["STATUS"] == ("2 models ready" if mode == "none" else "0 models ready")


def test_workers_do_not_speak_in_the_service_s_name(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "quick")
    flag = f"--model-repository={tmp_path}/models"
    with mailbox(tmp_path / "notify") as box, supervised(box, flag, watchdog=60.0) as server:
        box.wait_for(ready)
        workers = server.workers()
        assert workers
        for pid in workers:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            assert b"NOTIFY_SOCKET" not in environment
            assert b"WATCHDOG_USEC" not in environment


def watching(workers: SimpleNamespace) -> supervisor.Supervisor:
    absent = cast(Any, None)
    return supervisor.Supervisor(absent, absent, cast(Workers, workers), absent, MonotonicClock())


@pytest.mark.parametrize("ours", [True, False])
def test_the_control_group_is_divided_only_when_systemd_has_started_this_very_process(
    ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[None] = []
    monkeypatch.setattr(supervisor, "find_groups", lambda: asked.append(None))
    workers = SimpleNamespace(default_hang=0.0, control_groups=None)
    pid = os.getpid() if ours else os.getppid()

    watching(workers).use_service_manager({"SYSTEMD_EXEC_PID": str(pid)})

    assert bool(asked) is ours


def test_hung_models_have_the_watchdog_s_time_unless_it_watches_another_process() -> None:
    for pid, expected in ((os.getpid(), 3.0), (os.getppid(), 0.0)):
        workers = SimpleNamespace(default_hang=0.0, control_groups=None)
        environ = {"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(pid)}
        watching(workers).use_service_manager(environ)
        assert workers.default_hang == expected


def test_a_reload_that_ends_while_the_server_stops_does_not_make_it_ready_again(tmp_path: Path) -> None:
    async def stop_at_the_end_of_a_reload(environ: dict[str, str]) -> None:
        history = SimpleNamespace(left_out={}, unreadable="")
        registry = SimpleNamespace(summaries=list, load_history=history, unready_required=list)
        watch = SimpleNamespace(record_clean_stop=lambda: None)
        workers = SimpleNamespace(default_hang=0.0, control_groups=None)
        one = supervisor.Supervisor(
            cast(Any, SimpleNamespace(started=True)), cast(Any, registry), cast(Any, workers), cast(Any, watch),
            MonotonicClock(),
        )  # fmt: skip
        one.use_service_manager(environ)
        await one.notify_ready()
        one.notify_reloading()
        one.notify_reloaded()
        one.notify_stopping(1.0)
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)

    with mailbox(tmp_path / "notify") as box:
        asyncio.run(stop_at_the_end_of_a_reload({"NOTIFY_SOCKET": box.address}))
        states = [key for message in box.drain() for key in message if key in ("READY", "RELOADING", "STOPPING")]
    assert states == ["READY", "RELOADING", "STOPPING"]


def summaries(**words: str) -> list[ModelSummary]:
    return [ModelSummary(name, word) for name, word in words.items()]


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (summaries(), "looking for models"),
        (summaries(a="loading"), "0 of 1 model ready, loading a"),
        (
            [
                ModelSummary("a", "loading", "building the engine: x, 42 %, 9 s"),
                ModelSummary("b", "ready", serves=True),
            ],
            "1 of 2 models ready, loading a (building the engine: x, 42 %, 9 s)",
        ),
        (summaries(a="ready", b="ready", c="loading", d="failed"), "1 model failed: d; 2 serve, loading c"),
        (summaries(a="ready", gone="unloaded"), "1 model ready"),
        (
            summaries(a="loading", b="loading", c="loading", d="loading", e="loading", f="loading"),
            "0 of 6 models ready, loading a b c d and 2 more",
        ),
        (summaries(a="restarting", b="ready"), "1 of 2 models ready, restarting a"),
    ],
)
def test_status_lines(found: list[ModelSummary], line: str) -> None:
    assert status_line(found, loaded=False) == line


def test_safe_mode_comes_first() -> None:
    assert (
        status_line(summaries(a="ready"), loaded=True, safe="left out det") == "safe mode: left out det; 1 model ready"
    )


def test_safe_mode_names_few_of_many_models() -> None:
    history = SimpleNamespace(left_out={f"line_{number:03}": "nothing says which" for number in range(300)})
    registry = cast(Any, SimpleNamespace(load_history=history))
    none = cast(Any, None)
    one = supervisor.Supervisor(none, registry, none, none, MonotonicClock())
    assert one.safe_mode == "left out line_000, line_001, line_002, line_003 and 296 more, nothing says which"


def test_status_lists_unready_required_models_and_failed_models_with_reasons() -> None:
    found = [ModelSummary("a", "ready", serves=True), ModelSummary("bad", "failed", "no\nlicence")]
    lacking = [ModelSummary("bad", "failed", "no\nlicence"), ModelSummary("god", "absent", "not in the repository")]
    locked = ModelSummary("locked", "failed", "Permission denied: " + "x" * 300)
    line = status_line([*found, locked], loaded=True, lacking=lacking)
    assert line == (
        f"2 models failed: required bad (no licence), locked (Permission denied: {'x' * 138}...); 1 serves; "
        "required god: not in the repository"
    )
    assert status_line(found, loaded=False, lacking=lacking) == "1 model failed: bad (no licence); 1 serves", (
        "they may come"
    )
    assert status_line(found, loaded=True, safe="left out bad", lacking=lacking).endswith(
        "; 1 model failed: bad (no licence); 1 serves"
    )
    many = [ModelSummary(name, "failed", "?") for name in "abcdef"]
    assert status_line(many, loaded=True) == ("6 models failed: a (?), b (?), c (?), d (?) and 2 more; 0 serve")


def test_a_version_that_failed_beside_one_that_serves_costs_no_model() -> None:
    found = [ModelSummary("iris", "failed", "version 2: Internal: x\n\nAt:\n  /models/iris/2", serves=True)]
    assert status_line(found, loaded=True) == "1 model failed: iris (version 2: Internal: x); 1 serves"
