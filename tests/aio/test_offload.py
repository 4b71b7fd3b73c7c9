"""Blocking work runs beside the event loop, in threads that nothing waits for."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time

import pytest

from edge_serve.aio.offload import Threads, offload
from tests.stories import played


def test_the_result_comes_back_and_so_does_the_exception() -> None:
    async def story() -> int:
        with pytest.raises(ZeroDivisionError):
            await offload(divmod, 1, 0)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await offload(next, iter(()))
        return await offload(max, 1, 7)

    assert asyncio.run(story()) == 7


@played
async def test_the_loop_runs_meanwhile() -> None:
    go_on = threading.Event()
    waiting = asyncio.ensure_future(offload(go_on.wait))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    go_on.set()
    assert await waiting


def test_a_caller_that_is_cancelled_does_not_wait_for_its_function() -> None:
    go_on = threading.Event()

    async def story() -> None:
        began = time.monotonic()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(offload(go_on.wait), 0.05)
        assert time.monotonic() - began < 5

    asyncio.run(story())  # its end does not wait either
    go_on.set()


def test_at_most_so_many_functions_run_and_a_cancelled_one_never_begins() -> None:
    threads = Threads("test", 2)
    go_on, began = threading.Event(), []

    def work(number: int) -> None:
        began.append(number)
        go_on.wait()

    async def story() -> None:
        futures = [threads.start(work, number) for number in range(5)]
        await asyncio.sleep(0.05)
        assert sorted(began) == [0, 1]
        futures[2].cancel()
        go_on.set()
        await asyncio.gather(*futures, return_exceptions=True)
        assert sorted(began) == [0, 1, 3, 4]

    asyncio.run(story())


def test_idle_threads_serve_again() -> None:
    threads = Threads("test", 8)

    async def story() -> set[int]:
        found = set()
        for _ in range(20):
            found.add(await threads.start(threading.get_ident))
            await asyncio.sleep(0.002)
        return found

    assert len(asyncio.run(story())) <= 2


def test_the_process_ends_although_a_function_hangs() -> None:
    text = (
        "import asyncio, threading\n"
        "from edge_serve.aio.offload import offload\n"
        "async def main():\n"
        "    task = asyncio.ensure_future(offload(threading.Event().wait))\n"
        "    await asyncio.sleep(0.05)\n"
        "    task.cancel()\n"
        "asyncio.run(main())\n"
    )
    assert subprocess.run([sys.executable, "-c", text], timeout=20).returncode == 0


def test_a_machine_without_threads_is_an_error_until_it_has_some_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def story() -> None:
        threads, go_on = Threads("test", 2), threading.Event()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            for _ in range(3):
                with pytest.raises(OSError, match="no thread can be started"):
                    threads.start(go_on.set)
        first = threads.start(go_on.wait)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            second = threads.start(max, 1, 7)  # waits for the thread that there is
        assert not go_on.is_set(), "a function whose caller got the error is not called"
        go_on.set()
        assert await asyncio.wait_for(second, 20) == 7
        assert await first

    asyncio.run(story())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_starts_its_own_threads() -> None:
    """`fork` copies the pool's counts and none of its threads."""
    assert asyncio.run(_asked()) == 7
    pid = os.fork()
    if not pid:
        status = 1
        try:
            asyncio.run(asyncio.wait_for(_asked(), 5))
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


async def _asked() -> int:
    return await offload(max, 1, 7)
