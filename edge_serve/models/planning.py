"""From names to plans: the models that are asked for and all that they need, as they lie on disk.

Texts follow triton-inference-server/core src/model_repository_manager/model_repository_manager.cc.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from edge_serve.errors import EdgeServeError, Internal, InvalidArgument, NotFound
from edge_serve.messages.about import about
from edge_serve.models.agents import run_agents
from edge_serve.models.batch import Results
from edge_serve.models.dependencies import members_of
from edge_serve.models.incidents import Incidents
from edge_serve.models.loading import Loader, Plan
from edge_serve.models.override import Override
from edge_serve.models.repository import Found, Repository, plain_name

log = logging.getLogger(__name__)


class Planner:
    """Reads the configurations of models.

    Args:
        incidents: says which models the server does not load any more.
    """

    def __init__(self, repository: Repository, loader: Loader, incidents: Incidents) -> None:
        self._repository = repository
        self._loader = loader
        self._incidents = incidents
        #: one at a time, in the order in which they were asked for: who reads last loads last
        self._turn = asyncio.Lock()

    async def plans(self, wanted: Iterable[str], override: Override | None) -> tuple[dict[str, Plan], Results]:
        """The plans of models and of all that they need, and the errors of those that cannot be read."""
        async with self._turn:
            return await self._plans(wanted, override)

    async def _plans(self, wanted: Iterable[str], override: Override | None) -> tuple[dict[str, Plan], Results]:
        plans: dict[str, Plan] = {}
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

    async def _plan(self, name: str, override: Override | None) -> Plan:
        found = self._repository.find(name)
        try:
            if found is None and override is not None and override.files:
                found = Found(name, self._repository.roots[0] / plain_name(name))  # all of it came with the request
            if found is None:
                raise NotFound(f"no directory '{name}' in {', '.join(map(str, self._repository.roots))}")
            if found.ambiguous:
                raise InvalidArgument(f"model '{name}' appears in two or more repositories")
            self._incidents.check(name)
            # a thread: files that came along may be large, and the disk slow
            return await asyncio.to_thread(self._read, found, override)
        except (EdgeServeError, OSError) as error:
            log.error("failed to load '%s': %s", name, error, extra=about(name))
            raise Internal(f"failed to load '{name}', failed to poll from model repository") from error
        except Exception as error:  # a fault of ours costs this model, not those that are loaded with it
            log.exception("failed to load '%s'", name, extra=about(name))
            raise Internal(f"failed to load '{name}', failed to poll from model repository") from error

    def _read(self, found: Found, override: Override | None) -> Plan:
        plan = self._loader.plan(found, override)
        run_agents(plan.config, plan.directory)
        return plan
