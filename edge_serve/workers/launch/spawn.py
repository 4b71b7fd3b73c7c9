"""Starts the process of a worker, with the front end's ends of its control channel and of its lifetime pipe."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess

from edge_serve.records import entity
from edge_serve.workers.launch.interpreter import Interpreter
from edge_serve.workers.launch.lifetime_pipe import LifetimePipe

#: what a worker runs
WORKER = "edge_serve.workers.child.main"
#: signs of life that a worker sends in the time after which it counts as stuck
_SIGNS = 6


@entity
class Spawned:
    """A process that runs, and that nothing watches yet.

    Attributes:
        interpreter: what it was started with.
        backend: what it imports before it is asked for a model; "" = nothing.
        popen: its standard output and error are one pipe.
        channel: the control channel.
    """

    interpreter: Interpreter
    backend: str
    popen: subprocess.Popen[bytes]
    channel: socket.socket
    pipe: LifetimePipe

    def kill(self) -> None:
        """Kill the process, and wait for its end."""
        self.popen.kill()  # first: it would end by itself when the others close
        self.channel.close()
        self.pipe.close()
        self.popen.wait()
        if self.popen.stdout is not None:
            self.popen.stdout.close()


def spawn(interpreter: Interpreter, module: str, silence: float, backend: str = "") -> Spawned:
    """Start a process that speaks the protocol of workers (`wire/`).

    Args:
        silence: seconds without a sign of life after which it counts as stuck.
        backend: what a worker is to import before it is asked for a model.

    Raises:
        OSError, ValueError: the machine lets no process start now, or the interpreter is gone.
    """
    if interpreter.program:  # that it is gone must not look like the crash of a process
        os.stat(interpreter.program)
    ours, theirs = socket.socketpair()
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as handed_over:
        handed_over.enter_context(theirs)
        undo.callback(ours.close)
        pipe = LifetimePipe()
        handed_over.enter_context(pipe.theirs)
        undo.callback(pipe.close)
        descriptors = theirs.fileno(), pipe.theirs.fileno()
        popen = subprocess.Popen(
            [*interpreter.command, module, *map(str, descriptors), str(silence / _SIGNS), backend],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=descriptors,
            env=interpreter.variables,
            start_new_session=True,  # Ctrl-C in a terminal is for the front end
            bufsize=0,
        )
        undo.pop_all()
    return Spawned(interpreter, backend, popen, ours, pipe)
