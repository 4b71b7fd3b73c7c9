"""The policy, and a real server that is broken in each of the ways that it is there for."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_serve.supervision.watchdog import STUCK_SECONDS, decide, time_of
from edge_serve.workers.front.hangs import KILL_SECONDS
from tests.server.running import ADD_SUB, PATIENCE, Running, python_model
from tests.supervision.manager import Mailbox, Message, find_ports, mailbox, ready, supervised

pytestmark = pytest.mark.slow  # times of the watchdog

ages = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.floats(-60, 60))
#: hangs when the first value is 666, with its interpreter well
HANGS = ADD_SUB.replace(
    "            a = ",
    "            first = pb_utils.get_input_tensor_by_name(request, 'INPUT0').as_numpy()[0][0]\n"
    "            if first == 666: __import__('time').sleep(3600)\n"
    "            a = ",
)
SEGFAULTS = HANGS.replace("__import__('time').sleep(3600)", "__import__('ctypes').string_at(0)")


@given(ages, ages)
def test_watchdog_is_fed_unless_a_scheduler_or_all_workers_hang(
    schedulers: dict[str, float], workers: dict[str, float]
) -> None:
    decision = decide(schedulers, workers)
    stuck = any(age > STUCK_SECONDS for age in schedulers.values())
    hung = bool(workers) and all(overdue > KILL_SECONDS for overdue in workers.values())
    assert (decision is not None) is (stuck or hung)
    if decision is not None:
        assert decision.hopeless is stuck
        assert decision.reason


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, 0),
        ({"WATCHDOG_USEC": "3000000"}, 3),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"}, 3),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "8"}, 0),
        ({"WATCHDOG_USEC": "soon"}, 0),
        ({"WATCHDOG_USEC": "-1"}, 0),
    ],
)
def test_interval_of_the_watchdog(environ: dict[str, str], seconds: float) -> None:
    assert time_of(environ, 7) == seconds


def fed(message: Message) -> bool:
    return message.get("WATCHDOG") == "1"


def starves(box: Mailbox, seconds: float) -> bool:
    """Whether no food comes for so long."""
    box.drain()
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        message = box.next(left)
        if message is not None and fed(message):
            return False
    return True


def infer_aside(server: Running, model: str, value: int = 1) -> None:
    def ask() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):  # the server is killed before it answers
            server.add_sub(model, value)

    threading.Thread(target=ask, daemon=True).start()


@pytest.mark.parametrize("fault", ["stopped", "blocked"])
def test_a_hung_process_misses_its_watchdog(tmp_path: Path, fault: str) -> None:
    python_model(tmp_path / "models", "good")
    flag = f"--model-repository={tmp_path}/models"
    with (
        mailbox(tmp_path / "notify") as box,
        supervised(box, flag, watchdog=1.0, faults="signals") as server,
    ):
        box.wait_for(ready)
        box.wait_for(fed)
        assert not starves(box, 1.0)

        server.process.send_signal(signal.SIGSTOP if fault == "stopped" else signal.SIGUSR1)
        time.sleep(0.1)
        assert starves(box, 1.5)
        server.process.kill()  # as systemd does after SIGABRT


def test_one_hung_model_is_restarted_and_the_service_continues(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "good")
    python_model(tmp_path / "models", "hangs", HANGS)
    flag = f"--model-repository={tmp_path}/models"
    with mailbox(tmp_path / "notify") as box, supervised(box, flag, watchdog=1.5) as server:
        box.wait_for(ready)
        find_ports(server)
        began = time.monotonic()
        status, answer = server.add_sub("hangs", 666)
        took = time.monotonic() - began

        assert status == 500
        assert "model 'hangs' hangs, nothing has come from it for" in answer["error"]
        assert 1.5 < took < 1.5 + 5
        assert server.add_sub("good")[0] == 200
        assert server.add_sub("hangs")[0] == 200
        assert not starves(box, 1.5)
        page = server.get("/metrics", server.metrics)[1].decode()
        assert 'edge_serve_worker_restarts_total{model="hangs",version="1"} 1' in page
        assert 'edge_serve_worker_restarts_total{model="good",version="1"} 0' in page


def test_the_limit_of_a_model_s_own(tmp_path: Path) -> None:
    own = '\nparameters { key: "EDGE_SERVE_HANG_TIMEOUT_SECS" value { string_value: "0.5" } }\n'
    directory = python_model(tmp_path / "models", "hangs", HANGS)
    (directory / "config.pbtxt").write_text((directory / "config.pbtxt").read_text() + own)
    with mailbox(tmp_path / "notify") as box, supervised(box, f"--model-repository={tmp_path}/models") as server:
        box.wait_for(ready)
        find_ports(server)
        assert "hangs" in server.add_sub("hangs", 666)[1]["error"]


@pytest.mark.parametrize("fault", ["segfault", "killed"])
def test_a_worker_that_dies_costs_the_service_nothing(tmp_path: Path, fault: str) -> None:
    python_model(tmp_path / "models", "good")
    python_model(tmp_path / "models", "dies", SEGFAULTS)
    flag = f"--model-repository={tmp_path}/models"
    with mailbox(tmp_path / "notify") as box, supervised(box, flag, watchdog=1.0) as server:
        box.wait_for(ready)
        find_ports(server)
        if fault == "segfault":
            assert "SIGSEGV" in server.add_sub("dies", 666)[1]["error"]
        else:
            workers = server.workers()
            for pid in workers:
                os.kill(pid, signal.SIGKILL)
            server.wait_for_log("(?s)" + ".*".join(["was ended by SIGKILL"] * len(workers)))
        assert server.add_sub("dies")[0] == 200
        assert server.add_sub("good")[0] == 200
        assert not starves(box, 1.0)


def test_a_worker_that_is_stopped_is_replaced(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "good")
    flags = [f"--model-repository={tmp_path}/models", "--worker-heartbeat-timeout-secs=1"]
    with mailbox(tmp_path / "notify") as box, supervised(box, *flags, watchdog=2.0) as server:
        box.wait_for(ready)
        find_ports(server)
        os.kill(server.workers()[0], signal.SIGSTOP)
        server.wait_for_log("it gave no sign of life")
        assert server.add_sub("good")[0] == 200
        assert not starves(box, 2.0)


def test_workers_that_hang_and_cannot_be_ended_starve_it(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "hangs", HANGS)
    flags = [f"--model-repository={tmp_path}/models", "--hang-timeout-secs=0.5"]
    with mailbox(tmp_path / "notify") as box:
        with supervised(box, *flags, watchdog=1.0, faults="unkillable+hasty") as server:
            box.wait_for(ready)
            find_ports(server)
            infer_aside(server, "hangs", 666)
            server.wait_for_log("the watchdog is not fed: all workers hang and cannot be ended: hangs:1")
            assert starves(box, 1.2)
            pids = server.workers()
            server.process.kill()  # the cgroup's other processes get it too
            server.process.wait(PATIENCE)
        for pid in pids:
            assert not Path(f"/proc/{pid}/exe").exists()


def test_a_scheduler_that_sleeps_asks_for_a_restart_at_once(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "good")
    flag = f"--model-repository={tmp_path}/models"
    with mailbox(tmp_path / "notify") as box, supervised(box, flag, watchdog=60.0, faults="hasty") as server:
        box.wait_for(ready)
        find_ports(server)
        server.process.send_signal(signal.SIGUSR2)
        server.wait_for_log("no scheduler decides")
        infer_aside(server, "good")
        told = box.wait_for(lambda message: message.get("WATCHDOG") == "trigger")
        assert told["STATUS"] == "requests of good:1 wait although an instance is free"
        assert "deciding once more" in server.log()
        server.process.kill()
