"""The restart policy with a simulated clock."""

from __future__ import annotations

import asyncio

import pytest

from edge_serve.workers.front import restart
from edge_serve.workers.front.restart import RestartPolicy, await_gpus
from tests.stories import played

SECOND = 1_000_000_000


def delays(policy: RestartPolicy, times: list[float], *, uptime: float | None = None) -> list[float]:
    """Delays in seconds after crashes at `times`; before each the worker was up for `uptime` seconds."""
    found = []
    for at in times:
        if uptime is not None:
            policy.started(round((at - uptime) * SECOND))
        found.append(policy.crashed(round(at * SECOND)) / SECOND)
    return found


def test_the_first_crashes_restart_at_once_then_the_delay_doubles() -> None:
    assert delays(RestartPolicy(), [1, 2, 3, 4, 5, 6, 8, 11, 17]) == [0, 0, 0.25, 0.5, 1, 2, 4, 5, 5]


def test_rare_crashes_restart_at_once() -> None:
    assert delays(RestartPolicy(), [0, 9, 11, 20, 22, 31]) == [0, 0, 0, 0, 0, 0]


def test_three_in_ten_seconds_wait() -> None:
    assert delays(RestartPolicy(), [0, 5, 9.9]) == [0, 0, 0.25]


def test_short_lives_between_long_delays_are_not_forgiven() -> None:
    policy = RestartPolicy()
    delays(policy, [1, 2, 3, 4, 5, 6, 7, 8])
    assert delays(policy, [20, 40], uptime=0.4) == [5, 5]


def test_a_worker_that_keeps_losing_its_gpu_waits_for_up_to_a_minute() -> None:
    policy = RestartPolicy()
    found = [policy.crashed(second * SECOND, 60 * SECOND) / SECOND for second in range(1, 13)]
    assert found == [0, 0, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 60, 60]


def test_a_worker_that_serves_for_a_while_is_in_no_crash_loop() -> None:
    policy = RestartPolicy()
    assert delays(policy, [1, 2, 3, 4, 5]) == [0, 0, 0.25, 0.5, 1]
    assert delays(policy, [8, 10, 12], uptime=1) == [0.25, 0.25, 0.25]


def test_a_long_life_is_forgiven() -> None:
    policy = RestartPolicy()
    delays(policy, [1, 2, 3, 4, 5])
    assert delays(policy, [30], uptime=10) == [0]
    assert delays(policy, [31, 32], uptime=0.5) == [0, 0.25]


def test_the_delay_never_overflows() -> None:
    policy = RestartPolicy()
    assert delays(policy, [0.001 * i for i in range(200)])[-1] == 5


def test_lost_gpus_are_asked_for_until_they_are_there_and_each_reason_is_reported_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restart, "_FIRST_QUESTION", 0.001)
    answers, told = ["gone", "gone", "replaced", ""], list[str]()

    async def ask() -> str:
        return answers.pop(0)

    asyncio.run(asyncio.wait_for(await_gpus(ask, asyncio.Event(), told.append), 5))

    assert (answers, told) == ([], ["gone", "replaced", ""])


def test_a_gpu_that_is_there_is_no_news() -> None:
    async def ask() -> str:
        return ""

    asyncio.run(await_gpus(ask, asyncio.Event(), lambda text: pytest.fail(text)))


@pytest.mark.parametrize("hangs", [True, False], ids=["the driver hangs", "the GPU stays lost"])
@played
async def test_an_end_of_the_worker_waits_for_no_driver(hangs: bool) -> None:
    async def ask() -> str:
        if hangs:
            await asyncio.Event().wait()
        return "gone"

    given_up = asyncio.Event()
    asyncio.get_running_loop().call_later(0.02, given_up.set)
    await asyncio.wait_for(await_gpus(ask, given_up, lambda text: None), 5)
