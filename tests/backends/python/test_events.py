"""When the event loop of a model is at rest: only then is the host told."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from edge_serve.backends.python.events import EventLoop
from tests.backends.hosting import RecordingHost, installed


class Host(RecordingHost):
    """Counts how often it was told; it did not take notice the first `deaf` times."""

    def __init__(self) -> None:
        super().__init__()
        self.told = threading.Event()
        self.times = 0
        self.deaf = 0

    def report_idle(self, still: Callable[[], bool]) -> bool:
        if still():
            self.times += 1
            if self.times <= self.deaf:
                return False
            self.told.set()
        return True


@pytest.fixture
def host() -> Iterator[Host]:
    with installed(made := Host()):
        yield made


@pytest.fixture
def events() -> Iterator[EventLoop]:
    made = EventLoop("m_0_0")
    yield made
    made.close()


async def woken_once_told(host: Host) -> str:
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    threading.Thread(target=lambda: (host.told.wait(), loop.call_soon_threadsafe(woken.set))).start()
    await woken.wait()
    return "woken"


def test_a_loop_that_only_another_thread_can_wake_is_at_rest(host: Host, events: EventLoop) -> None:
    assert events.run(woken_once_told(host), alone=True) == "woken"
    assert host.times == 1


def test_an_idle_report_is_repeated_if_the_host_could_not_know(host: Host, events: EventLoop) -> None:
    """A thread that ends a moment later, such as that of a load, might have woken the loop."""
    host.deaf = 2
    assert events.run(woken_once_told(host), alone=True) == "woken"
    assert host.times == 3


@pytest.mark.timeout(10)
def test_a_call_of_another_thread_does_not_end_the_reports(host: Host, events: EventLoop) -> None:
    async def wait() -> str:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        threading.Thread(target=lambda: (events.run(asyncio.sleep(0)), loop.call_soon_threadsafe(ended.set))).start()
        await ended.wait()
        return await woken_once_told(host)

    assert events.run(wait(), alone=True) == "woken"


def test_a_timer_is_no_rest(host: Host, events: EventLoop) -> None:
    events.run(asyncio.sleep(0.1), alone=True)
    assert host.times == 0


def test_nor_is_a_socket(host: Host, events: EventLoop) -> None:
    async def wait() -> bytes:
        near, far = socket.socketpair()
        with near, far:
            near.setblocking(False)
            threading.Timer(0.1, far.send, (b"x",)).start()
            return await asyncio.get_running_loop().sock_recv(near, 1)

    assert events.run(wait(), alone=True) == b"x"
    assert host.times == 0


def test_a_loop_without_a_waiting_caller_is_not_reported(host: Host, events: EventLoop) -> None:
    async def wait() -> None:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        threading.Timer(0.1, loop.call_soon_threadsafe, (woken.set,)).start()
        await woken.wait()

    events.run(wait())
    assert host.times == 0


class _Loop(asyncio.SelectorEventLoop):
    """Of another kind."""


class _Policy(asyncio.DefaultEventLoopPolicy):
    """As a model may install one."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return _Loop()


def test_a_model_may_choose_another_kind_of_loop(events: EventLoop) -> None:
    async def kind() -> type[object]:
        return type(asyncio.get_running_loop())

    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(_Policy())
    try:
        assert events.run(kind(), alone=True) is _Loop
    finally:
        asyncio.set_event_loop_policy(before)


@pytest.mark.timeout(10)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_sys_exit_in_a_task_does_not_end_the_loop(events: EventLoop) -> None:
    async def leave() -> None:
        sys.exit(3)

    async def leave_in_background() -> None:
        task = asyncio.create_task(leave())
        await asyncio.wait([task])
        with pytest.raises(SystemExit):
            task.result()

    with pytest.raises(SystemExit, match="3"):
        events.run(leave(), alone=True)
    events.run(leave_in_background(), alone=True)
    events.run(asyncio.sleep(0), alone=True)
