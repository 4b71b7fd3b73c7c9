"""Which policy a worker's thread has, and that nothing but its own clients changes it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

from edge_serve.workers.wire.thread_policy import Waking
from tests.workers.harness import request, run, serving

OTHER, BATCH = os.SCHED_OTHER, os.SCHED_BATCH


def in_a_thread(does: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def main() -> None:
        try:
            does()
        except BaseException as failure:  # for the test's thread
            failures.append(failure)

    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def test_patient_from_several_requests_at_a_time_until_many_came_alone() -> None:
    told: list[int] = []
    waking = Waking(told.append)
    for requests in (1, 1, 2, 1, 3):
        waking.asked(requests)
    assert told == [BATCH]
    for _ in range(63):
        waking.asked(1)
    waking.asked(2)  # it was just about to change
    for _ in range(63):
        waking.asked(1)
    assert told == [BATCH]
    waking.asked(1)
    assert told == [BATCH, OTHER]
    waking.asked(1)
    waking.asked(8)
    assert told == [BATCH, OTHER, BATCH]


def test_the_kernel_knows_of_the_thread_and_of_no_other() -> None:
    def thread() -> None:
        Waking().asked(2)
        assert os.sched_getscheduler(0) == BATCH

    in_a_thread(thread)
    assert os.sched_getscheduler(0) == OTHER


def test_a_policy_that_somebody_chose_stays() -> None:
    def thread() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        Waking().asked(2)
        assert os.sched_getscheduler(0) == os.SCHED_IDLE

    in_a_thread(thread)


def test_where_it_is_forbidden_it_is_asked_for_once() -> None:
    asked = []

    def forbidden(policy: int) -> None:
        asked.append(policy)
        raise PermissionError

    waking = Waking(forbidden)
    for requests in (2, *[1] * 64, 2):
        waking.asked(requests)
    assert asked == [BATCH]


def test_a_worker_that_serves_several_clients(tmp_path: Path) -> None:
    async def check() -> None:
        async with serving(tmp_path) as served:
            (worker,) = served.workers.facts()

            def policies() -> set[int]:
                return {os.sched_getscheduler(int(thread)) for thread in os.listdir(f"/proc/{worker.pid}/task")}

            await served.ask(request())
            assert policies() == {OTHER}
            await served.ask(request(), request())
            while BATCH not in policies():  # once the answer is sent
                await asyncio.sleep(0.01)

    run(check())
