"""A change of `instance_group` alone: adds and removes instances of a version that serves; the others stay as they are.

As in Triton (core src/backend_model.cc, UpdateInstanceGroup): new instances are opened and warmed up beside those that
serve. Then they get work, and those that no group asks for any more get none. A removed instance finishes its batch,
and its open sequences continue in it to their end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from edge_serve.backends.base import ModelSpec
from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.errors import EdgeServeError
from edge_serve.models.extras.rate_limit import LimitedModel
from edge_serve.models.load.warmup import WarmupListener, warm_up
from edge_serve.models.run.driver import Driver
from edge_serve.models.versions.instance_group import Placed, compare, placed
from edge_serve.models.versions.served import Served
from edge_serve.workers.front.pool import OpenedModel


class InstanceUpdate:
    """One change of one version: `prepare`, then `commit` or `abandon`.

    Args:
        config: completed, with the new groups.
        spec: with that configuration, for the new instances.
        directory: of the model's files.
    """

    def __init__(self, served: Served, config: pb.ModelConfig, spec: ModelSpec, directory: Path) -> None:
        assert served.opened is not None, "an ensemble has no instances"
        self.served = served
        self._opened = served.opened
        self._driver = driver_of(served)
        self._config = config
        self._spec = spec
        self._directory = directory
        change = compare(served.instances, placed(config))
        self._kept, self.removed = change.kept, change.removed
        self.added: dict[int, Placed] = dict(zip(self._opened.next_numbers(), change.added, strict=False))
        self._fresh: OpenedModel | None = None

    @property
    def _limited(self) -> LimitedModel | None:
        listener = self._opened.listener
        return listener if isinstance(listener, LimitedModel) else None

    async def prepare(self) -> None:
        """Open the new instances and warm them up, while the others serve.

        Raises:
            EdgeServeError: a new instance cannot serve; nothing has changed.
        """
        if not self.added:
            return
        if self._limited is not None:
            self._limited.add(self.added)
        try:
            warmup, specs = WarmupListener(), {number: one.spec for number, one in self.added.items()}
            self._fresh = await self._opened.add(self._spec, specs, warmup)
            await warm_up(self._config, self._directory, self._fresh, warmup)
        except BaseException:
            await self.abandon()
            raise

    async def abandon(self) -> None:
        """Close the instances that `prepare` has opened."""
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
        self.served.instances = {**self._kept, **self.added}
        self.served.config = self._config

    async def remove(self, number: int) -> None:
        """Close an instance that has finished its work, or that took too long."""
        await self._opened.remove(number)
        self._release(number)

    def fail_instance(self, number: int, error: EdgeServeError) -> None:
        """Fail the unfinished requests of an instance that is closed."""
        self._opened.listener.on_lost(number, error)

    def _release(self, number: int) -> None:
        if self._limited is not None:
            self._limited.remove(number)


def driver_of(served: Served) -> Driver:
    """Return the driver of a version that is no ensemble."""
    assert isinstance(served.runner, Driver), "an ensemble has no instances"
    return served.runner
