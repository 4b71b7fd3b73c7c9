"""Runs a blocking call with a timeout, for calls that have none, such as a name look-up or a reply that arrives byte by
byte.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def run_within(
    seconds: float, act: Callable[[], Value], discard: Callable[[Value], None] = lambda value: None
) -> Value:
    """Return the result of `act`, or raise its error.

    The call runs in a daemon thread. After the limit the thread goes on alone; `discard` receives its late result.

    Raises:
        TimeoutError: it took longer than `seconds`.
    """
    outcome: queue.Queue[tuple[Value | None, BaseException | None]] = queue.Queue()
    lock = threading.Lock()
    late = False

    def run() -> None:
        try:
            value = act()
        except BaseException as error:
            outcome.put((None, error))
            return
        with lock:
            if not late:
                outcome.put((value, None))
                return
        discard(value)

    threading.Thread(target=run, daemon=True, name="edge-ota request").start()
    try:
        value, error = outcome.get(timeout=seconds)
    except queue.Empty:
        with lock:
            late = True
            if outcome.empty():
                raise TimeoutError from None
        value, error = outcome.get()
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # without an error there is a value
