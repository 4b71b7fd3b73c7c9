"""Processes that a model starts end with its worker, and with the server, whatever those die of."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.server.running import PATIENCE, Running, python_model, running
from tests.server.test_bad_python_models import CONFIG, MODEL, infer

#: each waits until its child is where it is to be: a copy has done what follows a fork, a program runs
CHILDREN = {
    "forked": "r, w = os.pipe()\nif not (pid := os.fork()): os.write(w, b'x'); time.sleep(1000)\nos.read(r, 1)",
    "forked, in a session of its own": (
        "r, w = os.pipe()\nif not (pid := os.fork()): os.setsid(); os.write(w, b'x'); time.sleep(1000)\nos.read(r, 1)"
    ),
    "forked by a forked one that is gone": (
        "r, w = os.pipe()\n"
        "if not (middle := os.fork()):\n"
        "    os.setsid()\n"
        "    if not os.fork(): os.write(w, b'%d' % os.getpid()); time.sleep(1000)\n"
        "    os._exit(0)\n"
        "pid = int(os.read(r, 9))\nos.waitpid(middle, 0)"
    ),
    "multiprocessing": (  # a daemon, or else it is waited for
        "import multiprocessing\n"
        "p = multiprocessing.get_context('fork').Process(target=time.sleep, args=(1000,), daemon=True)\n"
        "p.start()\npid = p.pid"
    ),
    "a program": "import subprocess\npid = subprocess.Popen(['sleep', '1000']).pid",
}


def kill_server_of_a_stopped_worker(server: Running, worker: int) -> None:
    os.kill(worker, signal.SIGSTOP)
    server.process.kill()


ENDS: dict[str, Callable[[Running, int], object]] = {
    "the model is unloaded": lambda server, _: server.post("/v2/repository/models/ordinary/unload"),
    "the worker is killed": lambda _, worker: psutil.Process(worker).kill(),
    "the worker crashes": lambda server, _: infer(server, "os.abort()"),
    "the worker is stopped": lambda _, worker: psutil.Process(worker).suspend(),
    "the server is killed": lambda server, _: psutil.Process(server.process.pid).kill(),
    "the server is killed, the worker stopped": kill_server_of_a_stopped_worker,
    "the server stops": lambda server, _: server.stop(),
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    python_model(tmp_path, "ordinary", MODEL.replace("RESULT", "[answer()]"), CONFIG)
    flags = ("--model-control-mode=explicit", "--load-model=*", "--worker-heartbeat-timeout-secs=2")
    with running(f"--model-repository={tmp_path}", *flags) as started:
        yield started


#: like another end to the children; tests/workers/launch/test_lifetime_pipe.py has a worker that is stopped
ALIKE = {
    "the model is unloaded",
    "the server stops",
    "the worker crashes",
    "the worker is stopped",
    "the server is killed, the worker stopped",
}


@pytest.mark.parametrize("end", [pytest.param(end, marks=[pytest.mark.slow] if end in ALIKE else []) for end in ENDS])
def test_child_processes_end_with_the_worker(server: Running, end: str) -> None:
    worker = psutil.Process(pid_from(server, "pid = os.getpid()"))
    started = {kind: psutil.Process(pid_from(server, deed)) for kind, deed in CHILDREN.items()}
    assert all(child.is_running() for child in started.values())

    ENDS[end](server, worker.pid)

    _, left = psutil.wait_procs([worker, *started.values()], timeout=PATIENCE)
    found = {kind for kind, child in started.items() if child in left}
    for process in left:
        process.kill()
    assert not found
    assert not left


def test_a_thread_that_ends_leaves_alone_what_it_has_forked(server: Running) -> None:
    deed = (
        "r, w = os.pipe()\nq, v = os.pipe()\n"
        "def fork(r, v): os.fork() or (os.read(r, 1), os.write(v, b'y'), os._exit(0))\n"
        "t = threading.Thread(target=fork, args=(r, v))\n"
        "t.start()\nt.join()\nos.write(w, b'x')\nos.close(v)\nresult = [answer(len(os.read(q, 1)))]"
    )

    assert infer(server, deed) == (200, "[1]")


def pid_from(server: Running, deed: str) -> int:
    """`pid` after the deed."""
    status, text = infer(server, deed + "\nresult = [answer(pid)]")
    assert status == 200, text
    return int(text.strip("[]"))
