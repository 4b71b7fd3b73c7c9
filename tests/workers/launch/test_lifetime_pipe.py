"""Processes tied to a lifetime pipe end with it. `tests/server/test_children_of_models.py` has whole servers."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil

from edge_serve.workers.launch.lifetime_pipe import LifetimePipe
from tests.workers.harness import PATIENCE

ROOT = Path(__file__).parents[3]
IMPORTS = "import os, sys, time\nfrom edge_serve.workers.child.lifetime_guard import LifetimeGuard\n"
START = IMPORTS + "tied = LifetimeGuard(int(sys.argv[1]))\n"
WAIT = START + "print('tied', flush=True)\ntime.sleep(1000)"
#: the model has closed what it did not know, and has a pipe of its own there
REPLACED = (
    START
    + """
r, w = os.pipe()
os.dup2(r, int(sys.argv[1]))
tied.tie_child()
os.write(w, b"x")
print("alive")
"""
)
#: a program that has the server in it, and forks; prints whom it has tied, and its child
HOST = """
import os, subprocess, sys, time
from edge_serve.workers.launch.lifetime_pipe import LifetimePipe
pipe = LifetimePipe()
fd = pipe.theirs.fileno()
command = [sys.executable, "-c", sys.argv[1], str(fd)]
tied = subprocess.Popen(command, pass_fds=[fd], start_new_session=True, stdout=subprocess.PIPE)
pipe.theirs.close()
tied.stdout.readline()
r, w = os.pipe()
child = os.fork()
if not child:
    os.write(w, b"x")
    time.sleep(1000)
os.read(r, 1)
print(tied.pid, child, flush=True)
time.sleep(1000)
"""


def tie(pipe: LifetimePipe, program: str) -> subprocess.Popen[bytes]:
    """A process that is to tie itself."""
    with pipe.theirs as theirs:
        command = [sys.executable, "-c", program, str(theirs.fileno())]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, pass_fds=[theirs.fileno()], start_new_session=True, cwd=ROOT
        )


def test_the_kernel_kills_what_is_tied_though_it_does_not_run() -> None:
    pipe = LifetimePipe()
    with tie(pipe, WAIT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"tied\n"
        process.send_signal(signal.SIGSTOP)
        assert process.poll() is None
        pipe.close()
        assert process.wait(PATIENCE) == -signal.SIGKILL


def test_a_process_tied_too_late_ends() -> None:
    pipe = LifetimePipe()
    pipe.close()
    with tie(pipe, WAIT) as process:
        assert process.wait(PATIENCE) == 1


def test_a_descriptor_that_a_model_opened_in_its_place_is_left_alone() -> None:
    pipe = LifetimePipe()
    with tie(pipe, REPLACED) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b"alive\n"
        assert process.wait(PATIENCE) == 0
    pipe.close()


def test_a_process_that_the_servers_own_program_forks_does_not_hold_it() -> None:
    command = [sys.executable, "-c", HOST, WAIT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as host:
        assert host.stdout is not None
        tied, child = (psutil.Process(int(pid)) for pid in host.stdout.readline().split())
        host.kill()
        try:
            tied.wait(PATIENCE)
            assert child.is_running()
        finally:
            child.kill()
