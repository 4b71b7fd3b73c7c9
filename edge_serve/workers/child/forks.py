"""Handlers for forks of a worker process, by `os.fork` or by `multiprocessing`.

The child is a copy of the worker with one thread.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from edge_serve.workers.child.process import SIGNALS


class Forks:
    """Blocks signals around each fork of this process, and resets the signal handlers in the child.

    Signals wait from before the fork until the child has put them back to what they do by default. One that came in
    between would meet the worker's handlers, which do nothing, and be lost: `Pool.terminate` sends SIGTERM to children
    that it may just have forked and waits for their end, while they wait for a lock of the pool that it keeps.

    Args:
        in_child: is called in each child before anything of the model's.
    """

    def __init__(self, in_child: Callable[[], None]) -> None:
        self._in_child = in_child
        self._masks = threading.local()  # several threads may be about to fork

    def watch(self) -> None:
        """Handle forks from now on. Models' own handlers, which come later, run farther from the fork than these."""
        os.register_at_fork(before=self._before, after_in_parent=self._restore, after_in_child=self._after_in_child)

    def _before(self) -> None:
        self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def _restore(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.before)

    def _after_in_child(self) -> None:
        try:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            self._in_child()
        finally:
            self._restore()
