"""Busy polling: which loops poll, for how long, and that they miss no event."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from selectors import EVENT_READ, EVENT_WRITE, EpollSelector

import pytest

from edge_serve.workers.child.instance import Receiver
from edge_serve.workers.front import busy_poll
from edge_serve.workers.front.busy_poll import (
    PollingSelector,
    PollPolicy,
    has_cpu_quota,
    is_on_battery,
    make_poll_policy,
)
from edge_serve.workers.wire.frames import FrameKind, frame
from edge_serve.workers.wire.polling_wait import PollingWait
from tests.stories import played
from tests.workers.front.test_channel import output, peer
from tests.workers.harness import request

MS = 1_000_000
#: longer than any test takes
LONG_US = 60_000_000


def test_a_wait_is_polled_through_when_the_one_before_it_was_short() -> None:
    wait = PollingWait()
    assert wait.poll_ns(MS) == 0  # nobody knows yet
    wait.note(MS, MS)
    assert wait.poll_ns(MS) == MS
    wait.note(MS * 3 // 2, MS)  # it was polled for, came a little late, and the sleeper had to be woken
    assert wait.poll_ns(MS) == MS
    wait.note(2 * MS, MS)
    assert wait.poll_ns(MS) == 0


@pytest.mark.parametrize(
    ("cores", "out", "front_end", "worker"),
    [(1, 0, 0, 0), (1, 1, 0, 0), (2, 0, 0, 50), (2, 1, 50_000, 0), (2, 2, 0, 0), (6, 4, 50_000, 50), (6, 5, 50_000, 0)],
)
def test_never_more_at_work_and_polling_than_cores(cores: int, out: int, front_end: int, worker: int) -> None:
    policy = PollPolicy(50, cores, out)
    assert policy.worker_us(7, 1) == 0  # it was not asked lately
    assert (policy.front_end_ns(), policy.worker_us(7, 1)) == (front_end, worker)
    assert policy.worker_us(7, 2) == 0  # clients wait already
    never = PollPolicy(0, cores, out)
    assert (never.front_end_ns(), never.worker_us(7, 1), never.worker_us(7, 1)) == (0, 0, 0)


@pytest.mark.parametrize(("cores", "polling"), [(1, 0), (2, 0), (3, 0), (4, 3), (8, 3)])
def test_instances_that_are_asked_in_turn_poll_where_each_has_a_core(cores: int, polling: int) -> None:
    policy = PollPolicy(50, cores)
    for _ in range(3):
        left = [policy.worker_us(step, 1) for step in range(3)]
    assert left == [50] * polling + [0] * (3 - polling)


class Asked:
    """Stands in for the kernel behind a selector; a reply comes at once, or after `empty` polls."""

    def __init__(self) -> None:
        self.timeouts: list[float | None] = []
        self.empty = 0
        self.fd = -1

    def fromfd(self, fd: int) -> Asked:
        os.close(fd)
        return self

    def close(self) -> None:
        pass

    def poll(self, timeout: float | None, most: int) -> list[tuple[int, int]]:
        self.timeouts.append(timeout)
        self.empty -= 1
        return [] if self.empty >= 0 and timeout == 0 else [(self.fd, select.EPOLLIN)]

    def by(self, selector: PollingSelector, timeout: float | None = None, empty: int = 0) -> list[float | None]:
        """Timeouts that one `select` asks with, when polls find nothing `empty` times."""
        self.timeouts, self.empty = [], empty
        ((key, events),) = selector.select(timeout)
        assert (key.fd, events) == (self.fd, EVENT_READ)
        return self.timeouts


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    made = Asked()
    monkeypatch.setattr(select, "epoll", made)
    return made


@contextlib.contextmanager
def watching(policy: PollPolicy, asked: Asked) -> Iterator[PollingSelector]:
    here, there = socket.socketpair()
    with here, there, PollingSelector(policy) as selector:
        selector.register(here, EVENT_READ)
        asked.fd = here.fileno()
        yield selector


def test_the_loop_polls_for_a_reply_and_for_nothing_else(asked: Asked) -> None:
    policy = PollPolicy(LONG_US, 2)
    with watching(policy, asked) as selector:
        assert asked.by(selector) == [None]
        policy.out = 1
        assert asked.by(selector) == [None]  # the first wait shows that waits are short
        assert asked.by(selector, empty=2) == [0, 0, 0]
        assert asked.by(selector, 0) == [0]  # callbacks are due
        assert asked.by(selector, 1e9, empty=2) == [0, 0, 0]
        policy.out = 2
        assert asked.by(selector) == [None]
        policy.out = 0
        assert asked.by(selector) == [None]


def test_the_loop_sleeps_when_nothing_came_while_it_polled(asked: Asked) -> None:
    with watching(PollPolicy(1000, 2, 1), asked) as selector:
        asked.by(selector)
        *polls, last = asked.by(selector, 7.0, empty=1 << 30)
        assert (set(polls), last) == ({0}, 7.0)


def test_a_timer_of_the_loop_ends_polling() -> None:
    with PollingSelector(PollPolicy(LONG_US, 2, 1)) as selector:
        here, there = socket.socketpair()
        with here, there:
            selector.register(here, EVENT_READ)
            there.send(b"x")
            assert len(selector.select()) == 1
            assert here.recv(1) == b"x"
            assert selector.select(0.001) == []


@pytest.mark.parametrize("timeout", [None, 1.0, 0, -1])
def test_the_loop_gets_the_events_of_any_selector(timeout: float | None) -> None:
    pairs = [socket.socketpair() for _ in range(300)]  # more than it asks for at a time
    with PollingSelector(PollPolicy()) as selector, EpollSelector() as plain, contextlib.ExitStack() as stack:
        for index, (here, there) in enumerate(pairs):
            stack.enter_context(here)
            stack.enter_context(there)
            for one in (selector, plain):
                one.register(here, (EVENT_READ, EVENT_WRITE, EVENT_READ | EVENT_WRITE)[index % 3], index)
                if index % 5 == 0:
                    one.modify(here, EVENT_READ, -index)
                if index % 7 == 0:
                    one.unregister(here)
            if index % 2:
                there.send(b"x")
            elif index % 11 == 0:
                there.close()
        expected = {(key.data, events) for key, events in plain.select(timeout)}
        heard: set[tuple[int, int]] = set()
        for _ in range(10):
            heard |= {(key.data, events) for key, events in selector.select(timeout)}
        assert heard == expected
        assert len(expected) > 150


def test_a_selector_leaves_no_descriptor_open() -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = count()
    with PollingSelector(PollPolicy()):
        assert count() == before + 2
    assert count() == before


@pytest.mark.parametrize("pieces", [1, 2, 40])
def test_the_worker_polls_and_gets_every_frame_whole(pieces: int) -> None:
    here, there = socket.socketpair()
    frames = [frame(FrameKind.EXECUTE, number, bytes(range(number))) for number in range(40)]
    stream = b"".join(frames)
    size = -(-len(stream) // pieces)

    def send() -> None:
        for start in range(0, len(stream), size):
            there.sendall(stream[start : start + size])
        there.shutdown(socket.SHUT_WR)

    with here, there:
        receiver = Receiver(here)
        sender = threading.Thread(target=send)
        sender.start()
        got = []
        while (received := receiver.receive(LONG_US)) is not None:
            got.append(bytes(received))
        sender.join()
    assert got == frames


@played
async def test_batches_that_are_out_are_counted_however_they_end() -> None:
    async with peer() as here:
        policy = here.link.poll_policy = PollPolicy(300, 2)
        policy.recent = [id(here.channel)]
        here.channel.execute(1, [request()])
        assert policy.out == 1
        batch = await here.receive()
        assert batch.poll_us == 300
        here.theirs.sendall(here.reply(batch, [output(64)]))
        await here.listener.reply(0)
        assert policy.out == 0
        here.channel.execute(2, [request(), request()])
        assert (policy.out, (await here.receive()).poll_us) == (1, 0)
    assert policy.out == 0  # the channel was closed


@pytest.mark.parametrize(
    ("files", "on_battery"),
    [
        ({}, False),
        ({"AC/type": "Mains", "AC/online": "1", "BAT0/type": "Battery", "BAT0/status": "Charging"}, False),
        ({"BAT0/type": "Battery", "BAT0/status": "Full"}, False),
        ({"AC/type": "Mains", "BAT0/type": "Battery", "BAT0/status": "Discharging"}, True),
        ({"mouse/type": "Battery", "mouse/status": "Discharging", "mouse/scope": "Device"}, False),
    ],
)
def test_battery_is_in_use_when_it_discharges(tmp_path: Path, files: dict[str, str], on_battery: bool) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert is_on_battery(tmp_path) is on_battery


@pytest.mark.parametrize(
    ("own", "above", "limited"),
    [
        ("max 100000", "max 100000", False),
        ("150000 100000", "max 100000", True),
        ("max 100000", "50000 100000", True),
        ("200000 100000", "400000 100000", False),  # as much as both cores compute
        ("", "", False),
        ("soon", "-1 -1", False),
    ],
)
def test_quota_is_found_in_the_own_control_group_and_above(tmp_path: Path, own: str, above: str, limited: bool) -> None:
    (tmp_path / "groups/system.slice/edge.service").mkdir(parents=True)
    (tmp_path / "membership").write_text("1:cpu:/\n0::/system.slice/edge.service\n")
    for folder, text in (("system.slice/edge.service", own), ("system.slice", above)):
        if text:
            (tmp_path / "groups" / folder / "cpu.max").write_text(text + "\n")
    assert has_cpu_quota(2, tmp_path / "membership", tmp_path / "groups") is limited
    assert not has_cpu_quota(2, tmp_path / "none", tmp_path / "none")


@pytest.mark.parametrize("fault", ["battery", "quota"])
def test_server_on_battery_or_under_a_quota_never_polls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(busy_poll, "is_on_battery", lambda: fault == "battery")
    monkeypatch.setattr(busy_poll, "has_cpu_quota", lambda cores: fault == "quota")
    with caplog.at_level("DEBUG"):
        assert make_poll_policy(300).poll_us == 0
    reason = "on battery" if fault == "battery" else "under a CPU quota"
    assert f"busy polling is off: the server was started {reason}" in caplog.text
    monkeypatch.setattr(busy_poll, "is_on_battery", lambda: False)
    monkeypatch.setattr(busy_poll, "has_cpu_quota", lambda cores: False)
    assert make_poll_policy(300).poll_us == 300
    assert make_poll_policy(0).poll_us == 0
