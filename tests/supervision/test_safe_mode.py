"""A real server that dies again and again, and what its successors make of it."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from edge_serve.cli import main
from edge_serve.config.settings.server import parse_argv
from edge_serve.errors import Internal
from edge_serve.models.control.registry import Registry
from edge_serve.models.load.load_history import LoadHistory
from edge_serve.models.repository.repository import Repository
from edge_serve.observe.log.limit import LikeLines
from edge_serve.server import ServerProcess
from edge_serve.supervision.crash_loop import (
    RETRY_FIRST,
    STABLE_SECONDS,
    LeftOut,
    Record,
    StartPhase,
    Suspects,
    as_text,
    from_text,
)
from edge_serve.supervision.safe_mode import FILE, LOCK, CrashWatch, is_in_use
from tests.server.running import ADD_SUB, PATIENCE, Running, python_model, running, start
from tests.supervision.manager import find_ports, mailbox, ready, supervised, wait_until

pytestmark = pytest.mark.slow  # servers that die again and again

#: kills the front end (its parent) while it loads, as a driver that takes the whole service down would
KILLS = (
    ADD_SUB
    + "\n    def initialize(self, args):\n        import os; os.kill(os.getppid(), 9); __import__('time').sleep(60)\n"
)


SECOND = 10**9
BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
#: of a service that died twice, and a third time since, while no model was loading
THREE_DEATHS = Record(BOOT, StartPhase.ALIVE, deaths=(Suspects(), Suspects()))


def die(tmp_path: Path, *flags: str) -> Running:
    """A server that dies by itself."""
    server = start(f"--model-repository={tmp_path}/models", f"--state-directory={tmp_path}", *flags)
    try:
        server.process.wait(PATIENCE)
    finally:
        server.process.kill()
        server.log_path.unlink()
    return server


def index(server: Running) -> dict[str, dict[str, str]]:
    return {entry["name"]: entry for entry in json.loads(server.post("/v2/repository/index")[1])}


def test_the_model_that_kills_the_service_is_left_out_until_it_changes(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "good")
    bad = python_model(tmp_path / "models", "kills", KILLS)
    for _ in range(3):  # a driver is in no sandbox
        assert die(tmp_path, "--worker-sandbox=false").process.returncode == -signal.SIGKILL

    flags = [f"--model-repository={tmp_path}/models", f"--state-directory={tmp_path}"]
    with mailbox(tmp_path / "notify") as box, supervised(box, *flags) as server:
        told = box.wait_for(ready)
        find_ports(server)
        reason = "it was loading each time when the service died 3 times in a row"
        assert told["STATUS"] == f"safe mode: left out kills, {reason}; 1 model ready"
        assert server.get("/v2/health/live")[0] == 200
        assert server.get("/v2/health/ready")[0] == 400
        assert server.get("/metrics", server.metrics)[0] == 200
        assert server.add_sub("good")[0] == 200
        assert index(server)["kills"] == {"name": "kills", "state": "UNAVAILABLE", "reason": reason}
        assert index(server)["good"]["state"] == "READY"
        assert f"safe mode: model kills is left out: {reason}" in server.log()

        (bad / "1/model.py").write_text(ADD_SUB)
        server.process.send_signal(signal.SIGHUP)
        box.wait_for(lambda message: message.get("RELOADING") == "1")
        assert box.wait_for(ready)["STATUS"] == "2 models ready"
        assert server.get("/v2/health/ready")[0] == 200
        server.stop()


def test_models_that_fail_to_load_are_left_out_in_the_end(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "good")
    python_model(tmp_path / "models", "bad", "raise RuntimeError('no licence')\n")
    dead = Suspects(("bad",))
    (tmp_path / FILE).write_text(as_text(Record(BOOT, StartPhase.FAILED, dead, (dead,))))
    assert die(tmp_path).process.returncode == 1

    flags = [f"--model-repository={tmp_path}/models", f"--state-directory={tmp_path}"]
    with mailbox(tmp_path / "notify") as box, supervised(box, *flags, "--required-model=bad") as server:
        assert box.wait_for(ready)["STATUS"].startswith("safe mode: left out bad, ")
        find_ports(server)
        assert server.add_sub("good")[0] == 200


@pytest.mark.parametrize(
    ("error", "phase"), [(ZeroDivisionError(), StartPhase.ALIVE), (Internal("no repository"), StartPhase.ENDED)]
)
def test_a_fault_of_the_server_itself_counts_as_a_death(
    tmp_path: Path, error: Exception, phase: StartPhase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    (tmp_path / "models").mkdir()
    monkeypatch.setattr(ServerProcess, "_log_ready", fail)
    flags = [f"--model-repository={tmp_path}/models", f"--state-directory={tmp_path}", "--http-port=0", "--grpc-port=0"]

    async def serve() -> None:
        await ServerProcess(parse_argv([*flags, "--metrics-port=0"], {})).run()

    with pytest.raises(type(error)):
        asyncio.run(serve())

    assert from_text((tmp_path / FILE).read_text()).phase is phase


@pytest.mark.parametrize("leave", [False, True])
def test_the_command_lists_models_left_out_and_deletes_the_record(
    tmp_path: Path, leave: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "it was loading each time when the service died 3 times in a row"
    record = Record("boot", left_out={"kills": LeftOut("print", reason)})
    (tmp_path / FILE).write_text(as_text(record))
    (tmp_path / LOCK).touch()

    monkeypatch.setenv("STATE_DIRECTORY", f"{tmp_path}:/nowhere")
    assert main(["safe-mode", *(["--leave"] if leave else [])]) == 0
    expected = "safe mode is left: the next start loads kills" if leave else f"kills is left out: {reason}"
    assert expected in capsys.readouterr().out
    main(["safe-mode", str(tmp_path)])
    assert ("no model is left out" in capsys.readouterr().out) is leave


def test_a_missing_state_directory_is_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    for directory in (tmp_path / "a" / "b", tmp_path / "file" / "b"):
        watch = watch_of(tmp_path)
        asyncio.run(watch.open(directory, 0))
        watch.record_clean_stop()

    assert (tmp_path / "a" / "b" / FILE).exists()
    assert [record.getMessage() for record in caplog.records] == [
        f"crashes are not counted: cannot open or make {tmp_path}/file/b: Not a directory; --state-directory must name "
        "a directory that the server may write"
    ]


def watch_of(models: Path, one_by_one: Callable[[bool], None] = lambda wanted: None) -> CrashWatch:
    """The record of a server whose models are loaded."""
    registry = SimpleNamespace(load_history=LoadHistory(), served=list, load_one_by_one=one_by_one)
    return CrashWatch(cast(Registry, registry), Repository([models]))


def record_of(directory: Path) -> Record:
    return from_text((directory / FILE).read_text())


def test_a_command_that_looks_at_the_lock_keeps_no_server_from_its_record(tmp_path: Path) -> None:
    """`safe-mode --leave` has the lock for a moment (`is_in_use`), and the service may start in it."""

    lock = os.open(tmp_path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)

    async def start_meanwhile() -> None:
        asyncio.get_running_loop().call_later(0.05, os.close, lock)
        await watch_of(tmp_path).open(tmp_path, 0)

    asyncio.run(start_meanwhile())
    assert from_text((tmp_path / FILE).read_text()).phase is StartPhase.ALIVE


def test_the_log_names_every_model_that_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = [f"line_{number:03}" for number in range(300)]
    for name in names:
        python_model(tmp_path / "models", name)
    (tmp_path / FILE).write_text(as_text(THREE_DEATHS))
    asyncio.run(watch_of(tmp_path / "models").open(tmp_path, 0))
    likes = LikeLines(logging.NullHandler())
    passed = [record.getMessage() for record in caplog.records if likes.filter(record)]
    assert [name for name in names if not any(f"model {name} is left out: " in text for text in passed)] == []


def test_a_model_that_kills_the_service_at_work_is_left_out_alone(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "good")
    python_model(tmp_path / "models", "kills")
    states = [tmp_path / str(process) for process in range(4)]
    for process, state in enumerate(states):
        state.mkdir()
        if process:  # the one before it died: its lock is not released in this process
            shutil.copy(states[process - 1] / FILE, state)
        watch = watch_of(tmp_path / "models")
        asyncio.run(watch.open(state, process * SECOND))
        watch.check(process * SECOND, ["kills"])

    assert [record_of(state).now.busy for state in states] == [None, ("kills",), ("kills",), ("kills",)]
    reason = "it was at work the last 2 times when the service died 3 times in a row"
    assert {name: one.reason for name, one in record_of(states[-1]).left_out.items()} == {"kills": reason}


def test_models_are_loaded_one_by_one_only_until_the_service_is_stable(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(as_text(Record(BOOT, StartPhase.ALIVE)))
    orders: list[bool] = []
    watch = watch_of(tmp_path, orders.append)
    asyncio.run(watch.open(tmp_path, 0))
    for seconds in (0, STABLE_SECONDS + 1, STABLE_SECONDS + 2):
        watch.check(int(seconds * SECOND), [])

    assert orders == [True, False]


def test_a_model_that_cannot_be_read_at_the_start_stays_left_out(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "good")
    release = python_model(tmp_path / "late", "kills")
    (tmp_path / "models/kills").symlink_to(release)
    (tmp_path / FILE).write_text(as_text(THREE_DEATHS))
    asyncio.run(watch_of(tmp_path / "models").open(tmp_path, 0))
    assert record_of(tmp_path).left_out.keys() == {"good", "kills"}

    (tmp_path / "late").rename(tmp_path / "unmounted")
    shutil.copytree(tmp_path, tmp_path / "next", symlinks=True)  # the lock of the first is not released in this process
    asyncio.run(watch_of(tmp_path / "models").open(tmp_path / "next", 0))
    assert record_of(tmp_path / "next").left_out.keys() == {"good", "kills"}


def test_work_is_observed_no_longer_than_needed(tmp_path: Path) -> None:
    """A record of two minutes after a start must accuse no model when the service dies days later."""
    (tmp_path / FILE).write_text(as_text(Record(BOOT, StartPhase.ALIVE)))
    watch = watch_of(tmp_path)
    asyncio.run(watch.open(tmp_path, 0))
    for seconds in (0, 1, STABLE_SECONDS + 1, STABLE_SECONDS + 2):
        watch.check(int(seconds * SECOND), ["good"])

    assert record_of(tmp_path).now.busy is None


@pytest.mark.parametrize("flags", [[], ["--leave"]])
@pytest.mark.parametrize(("name", "found"), [("nowhere", "no directory"), ("", "no server has kept a record")])
def test_the_command_refuses_a_directory_that_is_no_state_directory(
    tmp_path: Path, flags: list[str], name: str, found: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["safe-mode", *flags, str(tmp_path / name)]) == 1

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"edge-serve: {found}")
    assert "--state-directory" in captured.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read what it may not")
@pytest.mark.parametrize("flags", [[], ["--leave"]])
def test_the_command_does_not_take_a_record_that_it_may_not_read_for_none(tmp_path: Path, flags: list[str]) -> None:
    (tmp_path / FILE).write_text(as_text(THREE_DEATHS))
    (tmp_path / FILE).chmod(0o600)
    (tmp_path / LOCK).touch(0o600)

    # the interpreter is loaded before the user changes: another one may not reach it
    program = (
        "import os, sys; from edge_serve.cli import main; from edge_serve.supervision import command;"
        " os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534);"
        " sys.exit(main(['safe-mode', *sys.argv[1:]]))"
    )
    command = [sys.executable, "-c", program, *flags, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)

    assert done.returncode == 1
    assert done.stdout == ""
    assert "Permission denied; run it as root" in done.stderr
    assert "Traceback" not in done.stderr


def safe_mode(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`edge-serve safe-mode` in a process of its own."""
    command = [sys.executable, "-m", "edge_serve", "safe-mode", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=PATIENCE)


def is_ready(server: Running) -> bool:
    return server.get("/v2/health/ready")[0] == 200


@pytest.mark.parametrize(
    "way", ["socket", *(pytest.param(way, marks=pytest.mark.slow) for way in ("directory", "file"))]
)
def test_safe_mode_is_left_while_the_server_runs_and_stays_left_after_a_restart(tmp_path: Path, way: str) -> None:
    names = ("one", "two") if way == "directory" else ("one",)
    for name in names:
        python_model(tmp_path / "models", name)
    (tmp_path / FILE).write_text(as_text(THREE_DEATHS))
    socket = tmp_path / "admin.sock"
    flags = [f"--model-repository={tmp_path}/models", f"--state-directory={tmp_path}"]
    with running(*flags, *([f"--admin-socket={socket}"] if way == "socket" else [])) as server:
        server.wait_for_log(f"safe mode: model {names[-1]} is left out")
        assert not is_ready(server)

        if way == "file":
            (tmp_path / FILE).unlink()
        else:
            where = {"EDGE_SERVE_ADMIN_SOCKET": str(socket)} if way == "socket" else {}
            done = safe_mode("--leave", *([] if way == "socket" else [str(tmp_path)]), **where)
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.startswith(f"safe mode is left: the server loads {', '.join(names)} now")
        wait_until(lambda: is_ready(server))
        assert [server.add_sub(name)[0] for name in names] == [200] * len(names)
        assert server.stop() == 0

    kept = json.loads((tmp_path / FILE).read_text())
    assert (kept["deaths"], kept["left_out"]) == ([], {})
    if way != "directory":
        return  # the same record, which the next start reads in the same way
    with running(*flags) as server:
        assert is_ready(server)
        assert "safe mode" not in server.log()


def test_a_server_that_is_stopped_at_once_after_the_order_does_not_write_the_record_again(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "one")
    (tmp_path / FILE).write_text(as_text(THREE_DEATHS))
    flags = [f"--model-repository={tmp_path}/models", f"--state-directory={tmp_path}"]
    with running(*flags) as server:
        (tmp_path / FILE).unlink()
        assert server.stop() == 0
    with running(*flags) as server:
        assert is_ready(server)


def test_leaving_safe_mode_loads_what_the_start_would_have_loaded_and_ensembles_of_it(tmp_path: Path) -> None:
    """In mode explicit that is what --load-model names."""
    root = tmp_path / "models"
    python_model(root, "member")
    python_model(root, "other")
    ensemble = root / "whole"
    (ensemble / "1").mkdir(parents=True)
    maps = "".join(f'{kind}_map {{ key: "{name}" value: "{name}" }} ' for kind, name in IO)
    io = "".join(f'{kind} [{{ name: "{name}" data_type: TYPE_INT32 dims: [ 16 ] }}]\n' for kind, name in IO)
    (ensemble / "config.pbtxt").write_text(
        f'platform: "ensemble"\nmax_batch_size: 8\n{io}'
        f'ensemble_scheduling {{ step [ {{ model_name: "member" model_version: -1 {maps} }} ] }}\n'
    )
    dead = Suspects(("member",))
    (tmp_path / FILE).write_text(as_text(replace(THREE_DEATHS, now=dead, deaths=(dead, dead))))
    flags = [f"--model-repository={root}", f"--state-directory={tmp_path}", "--model-control-mode=explicit"]
    with running(*flags, "--load-model=whole", "--load-model=member") as server:
        assert server.add_sub("whole")[0] == 404
        assert json.loads(server.post("/edge-serve/safe-mode/leave")[1]) == {"left_out": ["member"]}
        wait_until(lambda: is_ready(server))
        assert server.add_sub("whole")[0] == 200
        assert server.add_sub("other")[0] == 404


IO = [("input", "INPUT0"), ("input", "INPUT1"), ("output", "OUTPUT0"), ("output", "OUTPUT1")]


def test_without_a_suspect_all_models_are_tried_again_after_a_while_and_at_the_next_boot(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "good")
    flags = [f"--model-repository={tmp_path}/models", f"--state-directory={tmp_path}"]
    (tmp_path / FILE).write_text(as_text(THREE_DEATHS))
    with running(*flags) as server:
        assert not is_ready(server)
        assert server.stop() == 0
    kept = json.loads((tmp_path / FILE).read_text())
    assert list(kept["left_out"]) == ["good"], "a clean restart alone is no reason to try again"

    (tmp_path / FILE).write_text(json.dumps({**kept, "boot": "the boot before this one"}))
    with running(*flags) as server:
        assert is_ready(server)

    kept["since_ns"] -= int(RETRY_FIRST * 1e9)
    (tmp_path / FILE).write_text(json.dumps(kept))
    with running(*flags) as server:
        server.wait_for_log("models that were left out are tried again: good")
        wait_until(lambda: is_ready(server))
        assert server.add_sub("good")[0] == 200
        server.process.kill()  # one death is enough now
        server.process.wait(PATIENCE)
    with running(*flags) as server:
        assert not is_ready(server)
        server.wait_for_log("safe mode: model good is left out")


def test_a_record_that_could_not_be_written_is_written_later_and_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    blocked = (tmp_path / FILE).with_suffix(".new")
    blocked.mkdir()  # as a full disk would: no new file can be written, and an old one can
    with running(f"--model-repository={tmp_path}/models", f"--state-directory={tmp_path}") as server:
        server.wait_for_log("crashes are not counted until .* can be written")
        assert is_in_use(tmp_path)
        blocked.rmdir()
        server.wait_for_log("crashes are counted again")
        assert from_text((tmp_path / FILE).read_text()).phase is StartPhase.ALIVE
        blocked.mkdir()
        assert server.stop() == 0

    assert from_text((tmp_path / FILE).read_text()).phase is StartPhase.ENDED


def test_a_clean_end_clears_the_deaths_before_it_and_a_second_server_counts_nothing(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "good")
    (tmp_path / FILE).write_text(as_text(Record(BOOT, StartPhase.ALIVE)))
    flags = [f"--model-repository={tmp_path}/models", f"--state-directory={tmp_path}"]
    with mailbox(tmp_path / "notify") as box:
        with supervised(box, *flags) as server:
            box.wait_for(ready)
            assert len(record_of(tmp_path).deaths) == 1
            with supervised(box, *flags) as second:
                second.wait_for_log("crashes are not counted")
            assert server.stop() == 0
        with supervised(box, *flags):
            box.wait_for(ready)
        assert record_of(tmp_path).deaths == ()
