"""Whether a worker's thread, when it is woken, takes the core from whoever runs on it (ADR 18)."""

from __future__ import annotations

import os
from collections.abc import Callable

#: so many lone requests in a row, and it is woken as everybody else again
_LONE = 64


def _set_policy(policy: int) -> None:
    os.sched_setscheduler(0, policy, os.sched_param(0))  # 0: this thread


class Waking:
    """The scheduling policy of the thread that makes this object, and calls it (sched(7)).

    Where several requests come at a time, who runs on the core is often the front end, with answers to send and the
    next batches to make: all wait for it in the end, so a worker under SCHED_BATCH lets it go on. A lone client waits
    for the worker only. A thread that somebody has given another policy keeps it.

    Args:
        set_policy: of this thread; raises OSError where that is forbidden.
    """

    __slots__ = ("_is_patient", "_lone", "_set_policy")

    def __init__(self, set_policy: Callable[[int], None] = _set_policy) -> None:
        self._set_policy: Callable[[int], None] | None = (
            set_policy if os.sched_getscheduler(0) == os.SCHED_OTHER else None
        )
        self._is_patient = False
        self._lone = 0

    def asked(self, requests: int) -> None:
        """A batch of so many requests has come."""
        if requests > 1:
            self._lone = 0
            if not self._is_patient:
                self._become(True)
        elif self._is_patient:
            self._lone += 1
            if self._lone >= _LONE:
                self._become(False)

    def _become(self, is_patient: bool) -> None:
        self._is_patient = is_patient
        if self._set_policy is not None:
            try:
                self._set_policy(os.SCHED_BATCH if is_patient else os.SCHED_OTHER)
            except OSError:  # it works without, only a little slower
                self._set_policy = None
