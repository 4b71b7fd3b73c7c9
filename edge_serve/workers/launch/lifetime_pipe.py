"""Kills a worker's child processes when the worker or the front end dies. One pipe per worker; only the front end holds
the write end.

A worker's children must end with it, however it ends, and all of them with the front end, also by SIGKILL. The kernel
does that: when the last writer is gone it sends the owner of the reading end a signal of our choice (fcntl(2):
F_SETOWN, F_SETSIG, O_ASYNC). The owner is the worker's process group, so programs that models start are in it. A
process that a model forks ties itself besides, because it may leave the group (`setsid`). A program that leaves the
group is out of reach here; it ends where workers have control groups.

Why not PR_SET_PDEATHSIG: it ends the worker alone. In the worker's children it would come with the end of the *thread*
that forked, and kill a pool's processes though the pool goes on. And a worker that it kills before the pipe closes
takes along what ends its children. Why no thread that reads the pipe: it would not run while a model holds the
interpreter's lock, and a fork does not copy it.
"""

from __future__ import annotations

import os
import weakref


class LifetimePipe:
    """A pipe, as the front end has it.

    Attributes:
        theirs: the worker's end, to hand over and close.
    """

    def __init__(self) -> None:
        theirs, ours = os.pipe()
        self.theirs = open(theirs, "rb", buffering=0)  # noqa: SIM115  # closed once the worker has it
        self._ours = open(ours, "wb", buffering=0)  # noqa: SIM115  # by `close`
        _pipes.add(self)

    def close(self) -> None:
        """Close the pipe, so that the kernel kills all that is tied to it."""
        self._ours.close()


_pipes: weakref.WeakSet[LifetimePipe] = weakref.WeakSet()


def _close_in_child() -> None:
    """Close all pipes: a fork of the server's own program must not keep the workers alive (docs/in_process.md)."""
    for pipe in list(_pipes):
        pipe.close()


os.register_at_fork(after_in_child=_close_in_child)
