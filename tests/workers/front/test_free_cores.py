"""Load of other programs: the decision from given figures, and the measurement of a real program."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

import pytest

from edge_serve.workers.front import busy_poll
from edge_serve.workers.front.busy_poll import CpuSample, FreeCores, PollPolicy, free_between, idle_seconds


@pytest.mark.parametrize(
    ("cores", "idle_s", "own_s", "left"),
    [
        (2, 0.5, 0.0, 2),  # nobody works
        (2, 0.0, 0.5, 2),  # this server alone does
        (2, 0.05, 0.35, 2),  # and a client that takes some of a core
        (2, 0.0, 0.25, 1),  # another program has one of them
        (2, 0.15, 0.1, 1),
        (2, 0.0, 0.05, 1),  # or both
        (6, 1.0, 0.25, 5),
        (2, 0.6, 0.0, 2),  # the kernel counts in steps of 10 ms
        (2, 0.0, -3.0, 1),  # a worker has ended, with all that it had computed
    ],
)
def test_the_cores_that_are_left_are_idle_or_the_servers_own(
    cores: int, idle_s: float, own_s: float, left: int
) -> None:
    assert free_between(cores, CpuSample(7.0, 30.0, 40.0), CpuSample(7.25, 30.0 + idle_s, 40.0 + own_s)) == left


class Machine:
    """Two cores on which something happens."""

    def __init__(self) -> None:
        self.now = self.idle = self.own = 0.0
        self.looks = 0

    def seconds_idle(self, cores: Collection[int]) -> float:
        assert cores == {0, 1}
        self.looks += 1
        return self.idle

    def work(self, seconds: float, own: float = 0.0, others: float = 0.0) -> None:
        """Time goes by, in which some cores worked."""
        self.now += seconds
        self.own += own * seconds
        self.idle += (2 - own - others) * seconds


def test_idle_cores_are_measured_four_times_a_second() -> None:
    machine = Machine()
    free_cores = FreeCores((0, 1), lambda: machine.own, machine.seconds_idle, lambda: machine.now)
    assert free_cores.count() == 2  # nobody knows yet
    left = []
    for others in (0.1, 1.0, 1.0, 0.2):
        for _ in range(25):
            machine.work(0.01, 0.9, others)
            left.append(free_cores.count())
    assert (left[24], left[49], left[74], left[99]) == (2, 1, 1, 2)
    assert machine.looks == 5
    machine.work(3600, 0, 2)  # nobody asked anything for an hour: that says nothing of now
    assert free_cores.count() == 2
    machine.work(0.3, 0, 1.5)
    assert free_cores.count() == 1


def test_where_that_is_not_to_be_known_all_cores_are_taken_for_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("", "cpu0 nothing to see here, really\n", "cpu0 1 2\n"):
        broken = tmp_path / f"stat{len(text)}"
        if text:
            broken.write_text(text)
        monkeypatch.setattr(busy_poll, "_STAT", broken)
        found = FreeCores((0, 1))
        assert (found.count(), found.count()) == (2, 2)


def test_monitoring_continues_after_a_moment_without_descriptors() -> None:
    machine = Machine()

    def seconds_idle(cores: Collection[int]) -> float:
        if len(left) == 2:
            raise OSError
        return machine.seconds_idle(cores)

    found = FreeCores((0, 1), lambda: machine.own, seconds_idle, lambda: machine.now)
    left: list[int] = []
    for _ in range(5):
        left.append(found.count())
        machine.work(0.3, 0.5, 1.0)
    assert left == [2, 1, 2, 2, 1]


def test_idle_time_is_that_of_the_cores_in_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    stat.write_text(
        "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 400 50 6 7 8 9 10\ncpu1 1 1 1 1 1 1 1 1 1 1\n"
        "cpu10 0 0 0 700 0 0 0 0 0 0\nintr 5 6 7\ncpu11 is no line of this file\n"
    )
    monkeypatch.setattr(busy_poll, "_STAT", stat)
    ticks = os.sysconf("SC_CLK_TCK")
    assert idle_seconds({0, 10}) == pytest.approx((400 + 50 + 700) / ticks)


def test_workers_do_not_poll_on_a_core_of_another_program() -> None:
    machine = Machine()
    found = FreeCores((0, 1), lambda: machine.own, machine.seconds_idle, lambda: machine.now)
    policy = PollPolicy(50, 2, free_cores=found)
    assert [policy.worker_us(7, 1) for _ in range(2)] == [0, 50]
    machine.work(0.3, 0.7, 1.0)
    assert policy.worker_us(7, 1) == 0
    policy.out = 1
    assert policy.front_end_ns() == 0
    policy.out = 0
    machine.work(0.3, 0.7, 0.1)
    assert policy.worker_us(7, 1) == 50


def test_a_program_that_computes_is_seen() -> None:
    core = min(os.sched_getaffinity(0))
    text = f"import os\nos.sched_setaffinity(0, {{{core}}})\nprint(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as program:
        try:
            assert program.stdout is not None
            program.stdout.readline()
            before = CpuSample(time.monotonic(), idle_seconds({core}), 0.0)
            time.sleep(0.25)
            now = CpuSample(time.monotonic(), idle_seconds({core}), 0.0)
        finally:
            program.kill()
    assert now.idle - before.idle < 0.125
    assert free_between(2, before, now) == 1
