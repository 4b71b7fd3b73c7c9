"""Carries out changes of `instance_group` alone: admits their memory, opens new instances, and drains removed ones."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping

from edge_serve.errors import EdgeServeError, Unavailable
from edge_serve.messages.log_fields import model_fields
from edge_serve.models.load.dependencies import LoadFailure
from edge_serve.models.load.instance_update import InstanceUpdate
from edge_serve.models.load.loading import Loader, LoadPlan
from edge_serve.models.load.memory import Memory
from edge_serve.models.versions.served import Served

log = logging.getLogger(__name__)


class InstanceUpdater:
    """Changes the instances of versions that serve, for all models of the server.

    Args:
        drain_seconds: how long a removed instance may take to finish its batch and its sequences.

    Attributes:
        memory: decides whether new instances fit; None = all are admitted.
    """

    def __init__(self, loader: Loader, drain_seconds: float) -> None:
        self._loader = loader
        self._drain_seconds = drain_seconds
        self.memory: Memory | None = None

    @contextlib.asynccontextmanager
    async def prepared(self, plan: LoadPlan, versions: Mapping[int, Served]) -> AsyncIterator[list[InstanceUpdate]]:
        """Open the new instances of each version. If the context ends with an error, they are closed again.

        Raises:
            LoadFailure: an instance failed to open; nothing has changed.

        """
        prepared: list[InstanceUpdate] = []
        try:
            for version, served in versions.items():
                try:
                    update = self._loader.plan_instance_update(served, plan)
                    await self._prepare(plan, update)
                except EdgeServeError as error:
                    text, extra = (
                        "failed to change the instances of '%s' version %d: %s",
                        model_fields(plan.name, version),
                    )
                    log.error(text, plan.name, version, error.as_triton(), extra=extra)
                    reason = f"version {version} is at READY state: {error.as_triton()};"
                    raise LoadFailure(plan.name, reason) from error
                prepared.append(update)
            yield prepared
        except BaseException:
            for one in prepared:
                await one.abandon()
            raise

    async def _prepare(self, plan: LoadPlan, update: InstanceUpdate) -> None:
        opened, count = update.served.opened, len(update.added)
        if self.memory is None or not count or opened is None:
            await update.prepare()
            return
        each = opened.memory_bytes() // max(1, len(opened.numbers))
        async with self.memory.admit(f"{plan.name} ({count} more instances)", each * count, 0, joins=True):
            await update.prepare()

    def commit(self, update: InstanceUpdate) -> list[asyncio.Task[None]]:
        """Give work to the new instances. Return a task for each removed instance, done when it is closed."""
        free = {number: asyncio.Event() for number in update.removed}
        update.commit(lambda number: free[number].set())
        served = update.served
        text, extra = "model %s version %s: %d instances added, %d removed", model_fields(served.name, served.version)
        log.info(text, served.name, served.version, len(update.added), len(free), extra=extra)
        create = asyncio.get_running_loop().create_task
        return [create(self._remove(update, *one), name=f"remove {served.name}") for one in free.items()]

    async def _remove(self, update: InstanceUpdate, number: int, free: asyncio.Event) -> None:
        served, late = update.served, None
        try:
            await asyncio.wait_for(free.wait(), self._drain_seconds)
        except asyncio.TimeoutError:
            late = Unavailable(
                f"an instance of model '{served.name}' was removed, and this request was not done "
                f"{self._drain_seconds:g} s later (--swap-drain-secs)"
            )
            text = "model %s version %s: an instance that was removed still has work after %g s, and is closed"
            extra = model_fields(served.name, served.version)
            log.warning(text, served.name, served.version, self._drain_seconds, extra=extra)
        await update.remove(number)
        if late is not None:
            update.fail_instance(number, late)
