"""The health of a version: which answers count, and for how long."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from edge_serve.models.versions.health import VersionHealth
from edge_serve.workers.front.workers import OpenedModel


class FakeOpened:
    """The part of an opened model that answers."""

    def __init__(self, refusal: str = "") -> None:
        self.complete, self.restarts = True, 0
        self.answer = refusal

    async def refusal(self, seconds: float) -> str:
        return self.answer


def checked(health: VersionHealth, opened: FakeOpened) -> bool:
    asyncio.run(health.check(cast(OpenedModel, opened), "m", "1"))
    return health.is_good(cast(OpenedModel, opened))


def test_a_model_that_is_not_ready_is_logged_once_until_it_is(caplog: pytest.LogCaptureFixture) -> None:
    health, opened = VersionHealth(), FakeOpened("no licence")
    assert [checked(health, opened) for _ in range(2)] == [False, False]
    assert health.reason == "no licence"
    assert caplog.messages == ["model m is not ready: no licence"]
    opened.answer = ""
    assert checked(health, opened)


def test_an_answer_is_not_valid_for_the_next_worker_process() -> None:
    health, opened = VersionHealth(), FakeOpened("no licence")
    assert not checked(health, opened)
    opened.restarts += 1
    assert health.is_good(cast(OpenedModel, opened))


def test_a_failed_self_test_counts_until_one_passes() -> None:
    health = VersionHealth()
    health.report_failure("it fails")
    assert (health.is_good(None), health.reason, health.failed_self_tests) == (False, "it fails", 1)
    health.report_success()
    assert (health.is_good(None), health.reason, health.failed_self_tests) == (True, "", 1)
