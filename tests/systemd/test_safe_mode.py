"""A real server that dies again and again, and what its successors make of it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from edge_serve.cli import main
from edge_serve.systemd.crash_loop import Phase, Record, Suspects, as_text
from edge_serve.systemd.safe_mode import FILE
from tests.server.running import ADD_SUB, PATIENCE, Running, python_model, start
from tests.systemd.manager import find_ports, mailbox, ready, supervised

#: kills the front end (its parent) while it loads, as a driver that takes the whole service down would
KILLS = (
    ADD_SUB
    + "\n    def initialize(self, args):\n        import os; os.kill(os.getppid(), 9); __import__('time').sleep(60)\n"
)


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


@pytest.mark.slow
def test_the_model_that_kills_the_service_is_left_out_until_it_changes(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "good")
    bad = python_model(tmp_path / "models", "kills", KILLS)
    for _ in range(3):
        assert die(tmp_path).process.returncode == -signal.SIGKILL

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
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (tmp_path / FILE).write_text(as_text(Record(boot, Phase.FAILED, dead, (dead,))))
    assert die(tmp_path).process.returncode == 1

    flags = [f"--model-repository={tmp_path}/models", f"--state-directory={tmp_path}"]
    with mailbox(tmp_path / "notify") as box, supervised(box, *flags, "--required-model=bad") as server:
        assert box.wait_for(ready)["STATUS"].startswith("safe mode: left out bad, ")
        find_ports(server)
        assert server.add_sub("good")[0] == 200


@pytest.mark.parametrize("leave", [False, True])
def test_the_command_says_who_is_left_out_and_forgets_it(
    tmp_path: Path, leave: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "it was loading each time when the service died 3 times in a row"
    record = Record("boot", left_out={"kills": "print"}, reasons={"kills": reason})
    (tmp_path / FILE).write_text(as_text(record))

    monkeypatch.setenv("STATE_DIRECTORY", f"{tmp_path}:/nowhere")
    assert main(["safe-mode", *(["--leave"] if leave else [])]) == 0
    assert "kills is left out: it was loading each time" in capsys.readouterr().out
    main(["safe-mode", str(tmp_path)])
    assert ("no model is left out" in capsys.readouterr().out) is leave


def test_a_clean_end_is_no_death_and_a_second_server_counts_nothing(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "good")
    flags = [f"--model-repository={tmp_path}/models", f"--state-directory={tmp_path}"]
    with mailbox(tmp_path / "notify") as box:
        with supervised(box, *flags) as server:
            box.wait_for(ready)
            with supervised(box, *flags) as second:
                second.wait_for_log("crashes are not counted")
            assert server.stop() == 0
        with supervised(box, *flags):
            box.wait_for(ready)
        assert json.loads((tmp_path / "crashes.json").read_text())["deaths"] == []
