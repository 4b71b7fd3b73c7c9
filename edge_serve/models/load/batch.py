"""One load of several models: reads their configurations, and loads each after the models that it needs.

A Python model may call others, and its configuration does not say which. If it has a golden test, which sends it
requests before it serves, it is loaded after the models that have none. If it fails then, and another such model has
been loaded, it is tried again: it may call that one.

Texts follow triton-inference-server/core src/model_repository_manager/model_repository_manager.cc.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial

from edge_serve.aio.offload import offload
from edge_serve.config.model.normalise import is_python
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, NotFound, UnreadableEntry
from edge_serve.messages.log_fields import model_fields
from edge_serve.models.load.dependencies import circles, dependents, members_of
from edge_serve.models.load.load_history import LoadHistory
from edge_serve.models.load.load_plan import LoadPlan
from edge_serve.models.load.loading import Loader
from edge_serve.models.repository.agents import run_agents
from edge_serve.models.repository.override import Override
from edge_serve.models.repository.reading import READ_SECONDS
from edge_serve.models.repository.repository import FoundModel, Repository, plain_name

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

    async def run(self, load: Callable[[LoadPlan], Awaitable[None]]) -> Results:
        """Load all of them with `load`, whose errors become results."""
        needs = {name: members_of(plan.config) for name, plan in self._plans.items()}
        for name, failure in circles(needs).items():
            log.error("failed to load '%s': %s", name, failure.reason, extra=model_fields(name))
            self.results[name] = failure
        create = asyncio.get_running_loop().create_task
        golden = {name: plan for name, plan in self._plans.items() if plan.golden is not None}
        callers = {name for name, plan in golden.items() if is_python(plan.config)}  # these may call others
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


#: how fast the files of a load request are written at least, bytes a second
_SLOWEST_DISK = 1 << 20
#: how long the repository agents may take to read the files of one model, seconds
_AGENT_SECONDS = 600.0


class Planner:
    """Reads the configurations of models.

    Args:
        load_history: knows which models are left out.
    """

    def __init__(self, repository: Repository, loader: Loader, load_history: LoadHistory) -> None:
        self._repository = repository
        self._loader = loader
        self._load_history = load_history
        #: one at a time, in the order of the load requests, so that the last one to read is the last one to load
        self._turn = asyncio.Lock()

    async def plans(self, wanted: Iterable[str], override: Override | None) -> tuple[dict[str, LoadPlan], Results]:
        """Return the plans of models and of all that they need, and the errors of those that cannot be read."""
        async with self._turn:
            return await self._plans(wanted, override)

    async def _plans(self, wanted: Iterable[str], override: Override | None) -> tuple[dict[str, LoadPlan], Results]:
        plans: dict[str, LoadPlan] = {}
        errors: Results = {}
        left = list(wanted)
        while left:
            name = left.pop()
            if name in plans or name in errors:
                continue
            try:
                plan = plans[name] = await self._plan(name, override)
            except EdgeServeError as error:
                errors[name] = error
            else:
                self._repository.bind(plan.config, name)
                left += members_of(plan.config)
            override = None  # it is for the model that was asked for
        return plans, errors

    async def _plan(self, name: str, override: Override | None) -> LoadPlan:
        try:
            found = await offload(self._repository.find, name)
            if found is None and override is not None and override.files:
                found = FoundModel(
                    name, self._repository.roots[0] / plain_name(name)
                )  # all files came with the request
            if found is None:
                raise NotFound(await self._nowhere(name))
            if found.ambiguous:
                raise InvalidArgument(f"model '{name}' appears in two or more repositories")
            self._load_history.check(name)
            return await self._read(found, override)
        except UnreadableEntry as error:  # the repository has logged it
            raise _unreadable(name, error.message) from error
        except (EdgeServeError, OSError) as error:
            log.error("failed to load '%s': %s", name, error, extra=model_fields(name))
            raise _unreadable(name, str(error)) from error
        except Exception as error:  # a bug fails this model, not those that are loaded with it
            log.exception("failed to load '%s'", name, extra=model_fields(name))
            raise _unreadable(name, f"{type(error).__name__}, see the server's log") from error

    async def _nowhere(self, name: str) -> str:
        """Return the reason for a model that is in no repository, with the name that may be meant."""
        like = await offload(self._repository.like, name)
        places = ", ".join(map(str, self._repository.roots))
        return f"no directory '{name}' in {places}" + (f", did you mean '{like}'?" if like else "")

    async def _read(self, found: FoundModel, override: Override | None) -> LoadPlan:
        """Read the directory of a model in a thread: it may be large, and its disk slow."""
        written = sum(map(len, override.files.values())) if override is not None else 0
        seconds = READ_SECONDS + written / _SLOWEST_DISK
        plan = await offload(self._repository.read, found, partial(self._loader.plan, found, override), seconds)
        if plan.config.model_repository_agents.agents:
            try:
                await self._run_agents(plan)
            except BaseException:
                await plan.remove_files()
                raise
        return plan

    async def _run_agents(self, plan: LoadPlan) -> None:
        try:
            await asyncio.wait_for(offload(run_agents, plan.config, plan.directory), _AGENT_SECONDS)
        except asyncio.TimeoutError:
            raise Internal(f"the files of model '{plan.name}' could not be read within {_AGENT_SECONDS:g} s") from None


def _unreadable(name: str, reason: str) -> Internal:
    """Return Triton's text, which does not have the reason, followed by the reason."""
    return Internal(f"failed to load '{name}', failed to poll from model repository: {reason}")
