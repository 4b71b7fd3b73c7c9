"""The health of a loaded version, beside that of its workers: the model's own `is_ready`, and the self-tests."""

from __future__ import annotations

import asyncio
import logging

from edge_serve.aio.tasks import start_task
from edge_serve.messages.log_fields import model_fields
from edge_serve.records import entity
from edge_serve.workers.front.workers import OpenedModel

log = logging.getLogger(__name__)

#: how long a model's own `is_ready` may take (TRITON.md 6.2)
HEALTH_SECONDS = 5.0


@entity
class VersionHealth:
    """The answers that a version gave to the server's own questions.

    Attributes:
        failure: why it failed a self-test that it passed before (`self_inference`); "" = it passes.
        failed_self_tests: how many self-tests failed.
    """

    failure: str = ""
    failed_self_tests: int = 0
    #: `opened.restarts` when the model last reported that it is not ready; -1 = it reported ready
    _refused_at: int = -1
    #: the model's reason
    _refusal: str = ""
    _check: asyncio.Task[None] | None = None

    def is_good(self, opened: OpenedModel | None) -> bool:
        """Return whether every instance has a worker, the model reported ready, and the last self-test passed."""
        return not self.failure and (opened is None or (opened.complete and self._refused_at != opened.restarts))

    @property
    def reason(self) -> str:
        """The reason why the version is not healthy although its workers run."""
        return self.failure or self._refusal

    def report_success(self) -> None:
        """Record that the version passed a self-test, or answered a client."""
        self.failure = ""

    def report_failure(self, reason: str) -> None:
        """Record that the version failed a self-test that it passed before."""
        self.failure = reason
        self.failed_self_tests += 1

    def start_check(self, opened: OpenedModel, name: str, version: str) -> None:
        """Start `check`, unless the last one has not ended."""
        if self._check is None or self._check.done():
            self._check = start_task(self.check(opened, name, version), f"health of {name}")

    async def check(self, opened: OpenedModel, name: str, version: str) -> None:
        """Ask every instance whether the model is ready. An answer is valid for that worker process only, not for its
        successor."""
        if opened.complete:
            restarts = opened.restarts
            refusal = await opened.refusal(HEALTH_SECONDS)
            if refusal and refusal != self._refusal and opened.complete:
                log.warning("model %s is not ready: %s", name, refusal, extra=model_fields(name, version))
            self._refusal, self._refused_at = refusal, restarts if refusal else -1
