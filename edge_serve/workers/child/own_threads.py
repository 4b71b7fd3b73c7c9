"""Threads of a worker that run no code of a model's."""

from __future__ import annotations

import threading
from collections.abc import Callable


class OwnThread(threading.Thread):
    """A daemon thread of the worker itself. Any other thread may be the model's own, whatever its name is."""

    def __init__(self, target: Callable[[], object], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)


def model_has_threads() -> bool:
    """Return whether any thread runs beside the main thread, the current one, and the worker's own."""
    known = (threading.current_thread(), threading.main_thread())
    return any(one not in known and not isinstance(one, OwnThread) for one in threading.enumerate())
