"""When a worker that died is started again: at once, and ever later while it keeps dying; and not without its GPUs.

The policy is pure: time is an argument.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

#: seconds before the second question to the driver of GPUs that are lost
_FIRST_QUESTION = 0.5
#: the longest time between two of them, and between two starts of a worker that keeps losing its GPUs
LONGEST_WITHOUT_GPU = 60.0
#: crashes within a window from which on restarts are delayed
_BURST, _WINDOW_NS = 3, 10_000_000_000
#: the first delay, and the longest
_FIRST_NS, _LONGEST_NS = 250_000_000, 5_000_000_000
#: a worker that serves for so long is in no crash loop
_SETTLED_NS = 500_000_000


class RestartPolicy:
    """Back-off of one worker.

    The first crashes restart at once. From the third within 10 s on the delay doubles up to 5 s, while the worker dies
    within half a second of serving: one that lives longer is in no crash loop. One that lives for 10 s is forgiven.
    """

    def __init__(self) -> None:
        self._crashes: list[int] = []
        self._delays = 0
        self._started_ns: int | None = None

    def started(self, now_ns: int) -> None:
        """Note that the worker serves."""
        self._started_ns = now_ns

    def crashed(self, now_ns: int, longest_ns: int = 0) -> int:
        """Note that the worker died. Return the nanoseconds to wait before it is started again.

        Args:
            longest_ns: in place of 5 s; 0 = it is not.
        """
        started, self._started_ns = self._started_ns, None
        lived_ns = now_ns - started if started is not None else 0
        if lived_ns >= _WINDOW_NS:
            self._crashes.clear()
        if lived_ns >= _SETTLED_NS:
            self._delays = 0
        self._crashes = [at for at in self._crashes if now_ns - at < _WINDOW_NS] + [now_ns]
        if not self._delays and len(self._crashes) < _BURST:
            return 0
        delay = min(_FIRST_NS << min(self._delays, 40), longest_ns or _LONGEST_NS)
        self._delays += 1
        return delay


async def await_gpus(ask: Callable[[], Awaitable[str]], given_up: asyncio.Event, notify: Callable[[str], None]) -> None:
    """Wait until the driver finds GPUs that are lost: before, each new process would only fail again.

    Args:
        ask: returns why it does not find them, "" = it does. Waits as long as the driver hangs.
        given_up: ends the wait.
        notify: takes each new reason, and "" once the GPUs are there again.
    """
    waiting = asyncio.ensure_future(given_up.wait())
    delay, known = _FIRST_QUESTION, ""
    while not waiting.done():
        asking = asyncio.ensure_future(ask())
        await asyncio.wait({asking, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            asking.cancel()
            break
        trouble = asking.result()
        if trouble != known:
            notify(trouble)
            known = trouble
        if not trouble:
            break
        await asyncio.wait({waiting}, timeout=delay)
        delay = min(2 * delay, LONGEST_WITHOUT_GPU)
    waiting.cancel()
