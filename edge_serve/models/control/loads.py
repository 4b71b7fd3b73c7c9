"""Loads models and the ensembles that need them, and locks them against other loads and unloads meanwhile.

Texts follow triton-inference-server/core src/model_repository_manager/ (model_repository_manager.cc,
model_lifecycle.cc).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.errors import EdgeServeError, NotFound, UnreadableEntry, with_advice
from edge_serve.messages.log_fields import model_fields
from edge_serve.models.control.records import ModelRecord
from edge_serve.models.control.version_swap import VersionSwapper
from edge_serve.models.load.batch import LoadBatch, Planner, Results
from edge_serve.models.load.dependencies import LoadFailure, MemberFacts, check_members, dependents, members_of
from edge_serve.models.load.load_history import LoadHistory
from edge_serve.models.load.load_plan import LoadPlan
from edge_serve.models.repository.override import Override
from edge_serve.models.versions.served import ServedVersions

log = logging.getLogger(__name__)


class ModelLoads:
    """The loads of a registry.

    Args:
        models: the registry's records; loads add to them.
        serving: the table of versions for requests.
    """

    def __init__(
        self,
        models: dict[str, ModelRecord],
        planner: Planner,
        swapper: VersionSwapper,
        serving: ServedVersions,
        load_history: LoadHistory,
    ) -> None:
        self._models = models
        self._planner = planner
        self._swapper = swapper
        self._serving = serving
        self._load_history = load_history

    async def load(self, wanted: Sequence[str], override: Override | None, *, own_worker: bool) -> Results:
        """Load models, and reload the ensembles that need one of them. Return the error of each model, or None."""
        try:
            return await self._load_planned(wanted, override, own_worker=own_worker)
        finally:
            self._load_history.returning.difference_update(wanted)

    async def _load_planned(self, wanted: Sequence[str], override: Override | None, *, own_worker: bool) -> Results:
        plans, results = await self._planner.plans(wanted, override)
        try:
            return await self._load_plans(plans, results, wanted, own_worker)
        finally:
            for name, plan in plans.items():
                loaded = self._models[name].plan
                if loaded is None or loaded.kept is not plan.kept:
                    await plan.remove_files()

    async def _load_plans(
        self, plans: dict[str, LoadPlan], results: Results, wanted: Sequence[str], own_worker: bool
    ) -> Results:
        for name in plans:
            self._models.setdefault(name, ModelRecord(name))
        async with self.locked(plans) as needing:
            others = {name: plan for name in needing if (plan := self._models[name].plan) is not None}
            batch = LoadBatch({**others, **plans}, results)
            for name in wanted:
                if name in plans:
                    self._models[name].explicit = True
            await batch.run(lambda plan: self._load_one(plan, batch, own_worker=own_worker))
            self._record_reasons(batch.results)
            for name in plans:
                record = self._models[name]
                if batch.results[name] is None and record.plan is not None:
                    record.dismiss(record.plan.versions)
            return batch.results

    def _record_reasons(self, results: Results) -> None:
        for name, error in results.items():
            cause = error.__cause__ if error is not None else None
            if error is None and name in self._models and not self._models[name].ready():
                continue  # an ensemble that failed before, and was not tried because its members did not change
            if error is None or isinstance(cause, UnreadableEntry):  # the repository keeps its reason while it lasts
                self._load_history.reasons.pop(name, None)
            elif not isinstance(cause, NotFound):  # clients may send any name
                self._load_history.reasons[name] = (
                    cause if isinstance(cause, EdgeServeError) else error
                ).message.strip()

    @contextlib.asynccontextmanager
    async def locked(self, names: Iterable[str]) -> AsyncIterator[set[str]]:
        """Lock `names` and every model that depends on them, against other loads and unloads. Yield the dependents."""
        while True:
            needing = dependents(set(names), self.needs())
            locks = [self._models[name].lock for name in sorted(needing.union(names))]
            async with contextlib.AsyncExitStack() as stack:
                for lock in locks:
                    await stack.enter_async_context(lock)
                now = dependents(set(names), self.needs())
                if now <= needing:  # else an ensemble was loaded while this waited
                    yield now
                    return

    def needs(self) -> dict[str, dict[str, set[int]]]:
        """Return the members of each ensemble, and their versions."""
        plans = {name: record.plan.config for name, record in self._models.items() if record.plan is not None}
        return {name: members for name, config in plans.items() if (members := members_of(config))}

    async def _load_one(self, plan: LoadPlan, batch: LoadBatch, *, own_worker: bool) -> None:
        """Load a model whose members are loaded already.

        Raises:
            LoadFailure: the versions that serve stay, unless they are an ensemble that does not fit its members.
        """
        record = self._models[plan.name]
        if record.plan is not None and plan.preserves_override(record.plan):
            log.info("model %s keeps the configuration of its last load request: its files did not change", plan.name,
                     extra=model_fields(plan.name))  # fmt: skip
            plan = record.plan
        if batch.changed.isdisjoint(members_of(plan.config)) and record.plan is not None and plan.same_as(record.plan):
            if plan is record.plan:  # loaded only because of its members, which did not change
                return
            if record.ready():
                log.info("model %s is unchanged, nothing to load", plan.name, extra=model_fields(plan.name))
                return
        try:
            if members_of(plan.config):
                plan = self._fit(plan, batch.results)
            if not plan.versions:
                record.barren = True
                text = f"at least one version must be available under the version policy of model '{plan.name}'"
                raise LoadFailure(plan.name, with_advice(text, plan.advice))
            changed = await self._swapper.swap(record, plan, own_worker=own_worker)
        except LoadFailure as error:
            if members_of(plan.config):
                self._fail_ensemble(record, plan, batch.results, error)
            elif not plan.versions:
                log.error("failed to load '%s': %s", plan.name, error.reason, extra=model_fields(plan.name))
            raise
        if changed:
            batch.changed.add(plan.name)

    def _fit(self, plan: LoadPlan, results: Results) -> LoadPlan:
        """Complete the plan of an ensemble from its members.

        Raises:
            LoadFailure: the ensemble cannot work with them.
        """
        config = pb.ModelConfig()
        config.CopyFrom(plan.config)
        config.model_transaction_policy.decoupled = check_members(config, lambda name: self._member(name, results))
        return replace(plan, config=config)

    def _member(self, name: str, results: Results) -> MemberFacts:
        record, served = self._models.get(name), self._serving.highest.get(name)
        known = record is not None and (record.plan is not None or isinstance(results.get(name), LoadFailure))
        return MemberFacts(
            served.config if served is not None else None,
            [version.version for version in record.ready()] if record is not None else (),
            results.get(name),
            known,
        )

    def _fail_ensemble(self, record: ModelRecord, plan: LoadPlan, results: Results, error: LoadFailure) -> None:
        """Log the failed load of an ensemble. Unload the ensemble that serves if it no longer fits its members."""
        log.error("failed to load '%s': %s", record.name, error.reason, extra=model_fields(record.name))
        if record.plan is None:
            record.plan = plan  # it is tried again when a member is loaded
            return
        try:
            self._fit(record.plan, results)
        except LoadFailure:
            self._swapper.retire(record)
