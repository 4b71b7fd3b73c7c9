"""One load of several models: reads their configurations, and loads each after the models that it needs.

A Python model may call others, and its configuration does not say which. If it has a golden test, which sends it
requests before it serves, it is loaded after the models that have none. If it fails then, and another such model has
been loaded, it is tried again: it may call that one.

Texts follow triton-inference-server/core src/model_repository_manager/model_repository_manager.cc.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial

from edge_serve.aio.offload import Threads, offload
from edge_serve.config.model.normalise import is_python
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, NotFound, UnreadableEntry
from edge_serve.messages.log_fields import model_fields
from edge_serve.models.load.dependencies import LoadFailure, Needs, circles, dependents, members_of, needed_by
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
#: loads one model, by name
Load = Callable[[str], Awaitable[None]]


class LoadBatch:
    """The models of one load request, or of the server's start.

    Args:
        wanted: the models that were asked for.
        override: the configuration and files that came for them.
        own_worker: whether their versions get worker processes of their own, unless the configuration says so.
        scanned: whether `wanted` comes from a scan: a model that is gone since then was removed, and did not fail.
        nested: whether a model that is loading asked for it. The load of that model has a slot and a promise of memory,
            and waits for this one.
        unload_first: whether the versions of `wanted` that serve are unloaded before their successors are loaded,
            although memory may hold both. Requests wait.

    Attributes:
        plans: of each model that could be read: `wanted`, and all that they need.
        results: the results so far; a model's members are in it before the model is loaded.
        changed: models of which a new version or configuration serves, and ensembles that had to stop serving.
        overtaken: models that another load has begun to load since this one began, so that their plans may be old.
        unloaded: names of models that were unloaded since it began.
        circles: the errors of models that need themselves.
    """

    def __init__(
        self,
        wanted: Sequence[str] = (),
        override: Override | None = None,
        *,
        own_worker: bool = False,
        scanned: bool = False,
        nested: bool = False,
        unload_first: bool = False,
    ) -> None:
        self.wanted = wanted
        self.override = override
        self.own_worker = own_worker
        self.scanned = scanned
        self.nested = nested
        self.unload_first = unload_first
        self.plans: dict[str, LoadPlan] = {}
        self.results: Results = {}
        self.changed: set[str] = set()
        self.overtaken: set[str] = set()
        self.unloaded: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        #: only grows, so that no two models ever wait for each other
        self._needs: dict[str, Collection[str]] = {}
        self.circles: dict[str, LoadFailure] = {}

    def needed(self) -> set[str]:
        """Return the models of `wanted` that are still to load, and all that they need, as far as they were read."""
        left = [one for one in self.wanted if one not in self.results and not self.is_unloaded(one)]
        needs = {name: members_of(plan.config) for name, plan in self.plans.items()}
        return set().union(*(needed_by(one, needs) for one in left))

    def may_need(self, name: str) -> bool:
        """Return whether `needed` has a model, or may have it when all configurations are read."""
        found = self.needed()
        return name in found or not found <= self.plans.keys() | self.results.keys()

    def is_unloaded(self, name: str) -> bool:
        """Return whether a model was unloaded since the load began."""
        return not self.unloaded.isdisjoint((name, plain_name(name)))

    async def run(self, load: Load) -> None:
        """Load all models of `plans` with `load`, whose errors become results."""
        needs = {name: set(members_of(plan.config)) for name, plan in self.plans.items()}
        self.circles = circles(needs)
        for name, failure in self.circles.items():
            log.error("failed to load '%s': %s", name, failure.reason, extra=model_fields(name))
            self.results[name] = failure
        golden = {name: plan for name, plan in self.plans.items() if plan.golden is not None}
        callers = {name for name, plan in golden.items() if is_python(plan.config)}  # these may call others
        late = callers | dependents(callers, needs)
        self._needs = {**needs, **{name: needs[name] | (self.plans.keys() - late) for name in callers}}
        left = self.plans.keys() - self.results.keys()
        while left:
            self._tasks = {}
            self._start([name for name in self.plans if name in left], load)
            await self._finish()
            loaded = {name for name in left if self.results[name] is None}
            left = late & (left - loaded) if callers & loaded else set()

    def reload_dependents(self, name: str, needs: Needs, load: Load) -> None:
        """Load the ensembles that need a model again, because it has changed: each once, after all its members.

        Args:
            needs: of all models.
        """
        names = sorted(dependents({name}, needs) - self._tasks.keys() - self.circles.keys())
        for one in names:
            self._needs.setdefault(one, needs[one])
        self._start(names, load)

    def _start(self, names: Iterable[str], load: Load) -> None:
        create = asyncio.get_running_loop().create_task
        self._tasks.update({name: create(self._load(name, load), name=f"load {name}") for name in names})

    async def _finish(self) -> None:
        try:
            while running := [task for task in self._tasks.values() if not task.done()]:
                await asyncio.wait(running)
        except asyncio.CancelledError:
            for task in running:
                task.cancel()
            await asyncio.wait(running)
            raise

    async def _load(self, name: str, load: Load) -> None:
        while before := [task for task in self._before(name) if not task.done()]:
            await asyncio.wait(before)
        try:
            await load(name)
        except EdgeServeError as error:
            self.results[name] = error
        else:
            self.results[name] = None

    def _before(self, name: str) -> list[asyncio.Task[None]]:
        """Return the tasks of what a model needs, but for models that need it in turn."""
        found = needed_by(name, self._needs)
        needed = [one for one in found if one in self._tasks and name not in needed_by(one, self._needs)]
        return [self._tasks[one] for one in needed]


#: how fast the files of a load request are written at least, bytes a second
_SLOWEST_DISK = 1 << 20
#: how long the repository agents may take to read the files of one model, seconds
_AGENT_SECONDS = 600.0
#: threads of their own, because reading all files of large models takes minutes, and other work must not wait for that
_agents = Threads("repository agents", 4)


class Planner:
    """Reads the configurations of models.

    Args:
        load_history: knows which models are left out.
    """

    def __init__(self, repository: Repository, loader: Loader, load_history: LoadHistory) -> None:
        self._repository = repository
        self._loader = loader
        self._load_history = load_history

    async def plan(self, name: str, override: Override | None, *, scanned: bool = False) -> LoadPlan | None:
        """Return the plan of a model; None: it is gone since a scan found it.

        Args:
            scanned: whether a scan found it.

        Raises:
            Internal: it cannot be read.
        """
        try:
            plan = await self._find_and_read(name, override)
            if members_of(plan.config):
                await offload(self._repository.bind, plan.config, name)
        except UnreadableEntry as error:  # the repository has logged it
            raise _unreadable(name, error.message) from error
        except (EdgeServeError, OSError) as error:
            if scanned and await self._is_gone(name):
                log.info("model %s is gone from the repository since the scan", name, extra=model_fields(name))
                return None
            log.error("failed to load '%s': %s", name, error, extra=model_fields(name))
            raise _unreadable(name, str(error)) from error
        except Exception as error:  # a bug fails this model, not those that are loaded with it
            log.exception("failed to load '%s'", name, extra=model_fields(name))
            raise _unreadable(name, f"{type(error).__name__}, see the server's log") from error
        return plan

    async def _find_and_read(self, name: str, override: Override | None) -> LoadPlan:
        found = await offload(self._repository.find, name)
        if found is None and override is not None and override.files:
            found = FoundModel(name, self._repository.roots[0] / plain_name(name))  # all files came with the request
        if found is None:
            raise NotFound(await self._nowhere(name))
        if found.ambiguous:
            raise InvalidArgument(f"model '{name}' appears in two or more repositories")
        self._load_history.check(name)
        return await self._read(found, override)

    async def _is_gone(self, name: str) -> bool:
        try:
            return await offload(self._repository.find, name) is None
        except EdgeServeError:  # it exists
            return False

    async def _nowhere(self, name: str) -> str:
        """Return the reason for a model that is in no repository, with the name that may be meant."""
        like = await offload(self._repository.like, name)
        places = ", ".join(map(str, self._repository.roots))
        return f"no directory '{name}' in {places}" + (f", did you mean '{like}'?" if like else "")

    async def _read(self, found: FoundModel, override: Override | None) -> LoadPlan:
        """Read the directory of a model in a thread: it may be large, and its disk slow."""
        written = sum(map(len, override.files.values())) if override is not None else 0
        seconds = READ_SECONDS + written / _SLOWEST_DISK
        return await offload(self._repository.read, found, partial(self._loader.plan, found, override), seconds)

    async def run_agents(self, plan: LoadPlan) -> None:
        """Run the repository agents of a model, which read all its files.

        Raises:
            Internal: they refuse the files, or cannot read them in time.
        """
        if not plan.config.model_repository_agents.agents:
            return
        try:
            await asyncio.wait_for(_agents.start(run_agents, plan.config, plan.directory), _AGENT_SECONDS)
        except asyncio.TimeoutError:
            reason = f"the files of model '{plan.name}' could not be read within {_AGENT_SECONDS:g} s"
            raise _refused(plan, reason) from None
        except (EdgeServeError, OSError) as error:
            raise _refused(plan, str(error)) from error


def _unreadable(name: str, reason: str) -> Internal:
    """Return Triton's text, which does not have the reason, followed by the reason."""
    return Internal(f"failed to load '{name}', failed to poll from model repository: {reason}")


def _refused(plan: LoadPlan, reason: str) -> Internal:
    log.error("failed to load '%s': %s", plan.name, reason, extra=model_fields(plan.name))
    return _unreadable(plan.name, reason)
