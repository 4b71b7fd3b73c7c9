"""One load of several models: concurrently, but each after the models that it needs.

A Python model may call others, and its configuration does not say which. If it has a golden test, which sends it
requests before it serves, it is loaded after the models that have none. If it fails then, and another such model has
been loaded, it is tried again: it may call that one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

from edge_serve.errors import EdgeServeError, Internal
from edge_serve.messages.log_fields import model_fields
from edge_serve.models.load.dependencies import circles, dependents, members_of
from edge_serve.models.load.loading import LoadPlan

log = logging.getLogger(__name__)

#: model -> why it was not loaded; None if it was, or did not need to be
Results = dict[str, "EdgeServeError | None"]


class LoadBatch:
    """The models of one load request, or of the server's start.

    Args:
        plans: every model that could be read.
        results: the errors of those that could not.

    Attributes:
        results: the results so far; a model's members are in it before the model is loaded.
        changed: models of which a new version or configuration serves.
    """

    def __init__(self, plans: Mapping[str, LoadPlan], results: Results) -> None:
        self._plans = plans
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.results: Results = dict(results)
        self.changed: set[str] = set()

    def members_changed(self, plan: LoadPlan) -> bool:
        """Return whether a member was loaded in this batch."""
        return not self.changed.isdisjoint(members_of(plan.config))

    async def run(self, load: Callable[[LoadPlan], Awaitable[None]]) -> Results:
        """Load all of them with `load`, whose errors become results."""
        needs = {name: members_of(plan.config) for name, plan in self._plans.items()}
        for name, failure in circles(needs).items():
            log.error("failed to load '%s': %s", name, failure.reason, extra=model_fields(name))
            self.results[name] = failure
        create = asyncio.get_running_loop().create_task
        callers = {name for name, plan in self._plans.items() if plan.golden is not None and _may_call(plan)}
        late = callers | dependents(callers, needs)
        left = set(self._plans) - self.results.keys()
        while left:
            self._tasks = {
                name: create(self._load(self._plans[name], load, callers, late), name=f"load {name}")
                for name in self._plans
                if name in left
            }
            await asyncio.gather(*self._tasks.values())
            loaded = {name for name in left if self.results[name] is None}
            left = late & (left - loaded) if callers & loaded else set()
        return self.results

    async def _load(
        self,
        plan: LoadPlan,
        load: Callable[[LoadPlan], Awaitable[None]],
        callers: Collection[str],
        late: Collection[str],
    ) -> None:
        needed = set(members_of(plan.config))
        if plan.name in callers:
            needed.update(name for name in self._tasks if name not in late)
        before = [self._tasks[name] for name in needed if name in self._tasks]
        if before:
            await asyncio.wait(before)
        try:
            await load(plan)
        except EdgeServeError as error:
            self.results[plan.name] = error
        except Exception as error:  # a bug fails this model, not those that are loaded with it
            log.exception("failed to load '%s'", plan.name, extra=model_fields(plan.name))
            self.results[plan.name] = Internal(f"load failed for model '{plan.name}': {type(error).__name__}: {error}")
        else:
            self.results[plan.name] = None


def _may_call(plan: LoadPlan) -> bool:
    """Whether the model may send requests to others (business logic scripting)."""
    return plan.config.backend == "python"
