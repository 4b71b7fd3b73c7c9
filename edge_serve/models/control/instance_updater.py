"""Carries out changes of `instance_group` alone: adds and removes instances of a version that serves; the others stay.

As in Triton (core src/backend_model.cc, UpdateInstanceGroup): new instances are opened and warmed up beside those that
serve. Then they get work, and those that no group asks for any more get none. A removed instance finishes its batch,
and its open sequences continue in it to their end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path

from edge_serve.backends.base import ModelSpec
from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.errors import EdgeServeError, Unavailable
from edge_serve.messages.log_fields import model_fields
from edge_serve.models.load.dependencies import LoadFailure
from edge_serve.models.load.load_plan import LoadPlan
from edge_serve.models.load.loading import Loader
from edge_serve.models.load.memory import Memory
from edge_serve.models.load.warmup import WarmupListener, warm_up
from edge_serve.models.run.driver import Driver
from edge_serve.models.versions.instance_group import Placed, compare, place_instances
from edge_serve.models.versions.served import Served
from edge_serve.workers.front.workers import OpenedModel

log = logging.getLogger(__name__)


class InstanceUpdater:
    """Changes the instances of versions that serve, for all models of the server.

    Args:
        drain_seconds: how long a removed instance may take to finish its batch and its sequences.
        memory: decides whether new instances fit; None = all are admitted.
    """

    def __init__(self, loader: Loader, drain_seconds: float, memory: Memory | None) -> None:
        self._loader = loader
        self._drain_seconds = drain_seconds
        self._memory = memory

    @contextlib.asynccontextmanager
    async def prepared(
        self, plan: LoadPlan, versions: Mapping[int, Served], awaited: asyncio.Event
    ) -> AsyncIterator[list[InstanceUpdate]]:
        """Open the new instances of each version. If the context ends with an error, they are closed again.

        Args:
            awaited: see `ModelRecord`.

        Raises:
            LoadFailure: an instance failed to open; nothing has changed.
        """
        prepared: list[InstanceUpdate] = []
        async with contextlib.AsyncExitStack() as undo:
            for version, served in versions.items():
                try:
                    update = self._plan(served, plan)
                    undo.push_async_callback(update.cancel)
                    await self._prepare(plan, update, awaited)
                except EdgeServeError as error:
                    text = "failed to change the instances of '%s' version %d: %s"
                    log.error(text, plan.name, version, error.as_triton(), extra=model_fields(plan.name, version))
                    reason = f"version {version} is at READY state: {error.as_triton()};"
                    raise LoadFailure(plan.name, reason) from error
                prepared.append(update)
            yield prepared
            undo.pop_all()

    def _plan(self, served: Served, plan: LoadPlan) -> InstanceUpdate:
        """Plan the change of instances that the plan's `instance_group` asks for; everything else stays.

        Raises:
            InvalidArgument: a group asks for what the machine does not have.
        """
        config = pb.ModelConfig()
        config.CopyFrom(served.config)
        del config.instance_group[:]
        config.instance_group.extend(plan.config.instance_group)
        config = self._loader.settle(config)
        spec = self._loader.spec(plan, config, int(served.version), served.engine)
        return InstanceUpdate(served, config, spec, plan.directory)

    async def _prepare(self, plan: LoadPlan, update: InstanceUpdate, awaited: asyncio.Event) -> None:
        opened, count = update.served.opened, len(update.added)
        if self._memory is None or not count or opened is None:
            await update.prepare()
            return
        each = opened.memory_bytes() // max(1, len(opened.numbers))
        name = f"{plan.name} ({count} more instances)"
        async with self._memory.admit(name, each * count, 0, joins=True, awaited=awaited):
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
        await update.remove(number, late)


class InstanceUpdate:
    """One change of one version: `prepare`, then `commit` or `cancel`.

    Args:
        config: completed, with the new groups.
        spec: with that configuration, for the new instances.
        directory: of the model's files.
    """

    def __init__(self, served: Served, config: pb.ModelConfig, spec: ModelSpec, directory: Path) -> None:
        assert served.opened is not None, "an ensemble has no instances"
        assert isinstance(served.runner, Driver), "an ensemble has no instances"
        self.served = served
        self._opened = served.opened
        self._config = config
        self._spec = spec
        self._directory = directory
        self._driver = served.runner
        self._limited = served.limited
        self._kept, added, self.removed = compare(served.instances, place_instances(config))
        self.added: dict[int, Placed] = dict(zip(self._opened.next_numbers(), added, strict=False))
        self._fresh: OpenedModel | None = None

    async def prepare(self) -> None:
        """Open the new instances and warm them up, while the others serve.

        Raises:
            EdgeServeError: a new instance cannot serve, and `cancel` is to be called.
        """
        if not self.added:
            return
        if self._limited is not None:
            self._limited.add(self.added)
        warmup, specs = WarmupListener(), {number: one.spec for number, one in self.added.items()}
        self._fresh = await self._opened.add(self._spec, specs, warmup)
        await warm_up(self._config, self.served.signature, self._directory, self._fresh, warmup)

    async def cancel(self) -> None:
        """Close the instances that `prepare` has opened, if any."""
        if self._fresh is not None:
            await self._fresh.close()
        for number in self.added:
            self._release(number)

    def commit(self, on_free: Callable[[int], None]) -> None:
        """Give work to the new instances, and none to removed ones. `on_free` is called once one of those has finished
        its work."""
        if self._fresh is not None:
            self._opened.join(self._fresh)
        for number, one in self.added.items():
            self._driver.add_instance(number, passive=one.group.passive)
        for number in self.removed:
            self._driver.retire_instance(number, partial(on_free, number))
        self.served.change_instances(self._config, {**self._kept, **self.added})

    async def remove(self, number: int, error: EdgeServeError | None) -> None:
        """Close an instance that has finished its work. If it took too long, `error` fails its unfinished requests."""
        await self._opened.remove(number)
        if error is not None:
            self._opened.listener.on_lost({number: error})
        self._release(number)

    def _release(self, number: int) -> None:
        if self._limited is not None:
            self._limited.remove(number)
