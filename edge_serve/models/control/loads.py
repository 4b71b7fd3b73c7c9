"""Loads models and the ensembles that need them.

Each model has a lock. A load or unload holds it while it changes that model, and waits for no other lock meanwhile: a
model that hangs delays only loads of itself and of ensembles that need it, and no two of them wait for each other. A
load that has the lock may wait for a slot and for memory, unless a model that has these waits for the lock. A
load reads the configurations first; if another load of a model comes between, it reads that model again.

Texts follow triton-inference-server/core src/model_repository_manager/ (model_repository_manager.cc,
model_lifecycle.cc).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.errors import EdgeServeError, Internal, NotFound, UnreadableEntry, with_advice
from edge_serve.messages.log_fields import model_fields
from edge_serve.models.control.records import ModelRecord
from edge_serve.models.control.version_swap import VersionSwapper
from edge_serve.models.load.batch import LoadBatch, Planner, Results
from edge_serve.models.load.dependencies import LoadFailure, MemberFacts, check_members, members_of
from edge_serve.models.load.load_history import LoadHistory
from edge_serve.models.load.load_plan import LoadPlan
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
        #: those that are under way
        self._batches: set[LoadBatch] = set()

    async def load(self, batch: LoadBatch) -> Results:
        """Load models, and reload the ensembles that need one of them. Return the error of each model, or None."""
        self._batches.add(batch)
        try:
            await self._read(batch)
            for name in batch.plans:
                self._models.setdefault(name, ModelRecord(name)).loads.add(batch)
            await batch.run(partial(self._load_one, batch))
            for name, failure in batch.circles.items():
                self._record_reason(name, failure)
            return batch.results
        finally:
            self._batches.discard(batch)
            self._load_history.returning.difference_update(batch.wanted)
            for name, plan in batch.plans.items():
                if name in self._models:
                    self._models[name].loads.discard(batch)
                await plan.release_files()

    async def _read(self, batch: LoadBatch) -> None:
        """Read the configurations of the wanted models, and of all that they need."""
        left = list(batch.wanted)
        while left:
            name = left.pop()
            if name in batch.plans or name in batch.results:
                continue
            try:
                plan = await self._plan(name, batch)
            except EdgeServeError as error:
                batch.results[name] = error
                self._record_reason(name, error)
                continue
            if plan is None:
                batch.results[name] = None
            else:
                batch.plans[name] = plan
                left += members_of(plan.config)

    async def _plan(self, name: str, batch: LoadBatch) -> LoadPlan | None:
        """Read the plan of a model; None: it was found by a scan, and is gone since then."""
        wanted = name in batch.wanted
        return await self._planner.plan(name, batch.override if wanted else None, scanned=batch.scanned and wanted)

    def _record_reason(self, name: str, error: EdgeServeError | None) -> None:
        """Record why a load failed; None = it did not."""
        cause = error.__cause__ if error is not None else None
        if isinstance(cause, NotFound):  # clients may send any name
            return
        record = self._models.setdefault(name, ModelRecord(name))
        if error is None or isinstance(cause, UnreadableEntry):  # the repository keeps its reason while it lasts
            record.failure = ""
        else:
            record.failure = (cause if isinstance(cause, EdgeServeError) else error).message.strip()

    def cancel(self, name: str, *, asked: bool = True) -> None:
        """Let the loads that are under way not load a model any more: it is being unloaded.

        Args:
            name: its key in the registry, or its plain name.
            asked: whether it was named in the request to unload. If not, the loads that may need it go on.
        """
        for batch in self._batches:
            if asked or not batch.may_need(name):
                batch.unloaded.add(name)

    def needed(self) -> set[str]:
        """Return the models that loads under way are still to load, and those that these need."""
        return set().union(*(batch.needed() for batch in self._batches))

    def needs(self) -> dict[str, set[str]]:
        """Return the members of each ensemble: by its plan, and by the one that is being loaded."""
        needs: dict[str, set[str]] = {}
        for name, record in self._models.items():
            for plan in (record.plan, record.next):
                if plan is not None and plan.config.HasField("ensemble_scheduling"):
                    needs.setdefault(name, set()).update(members_of(plan.config))
        return needs

    async def _load_one(self, batch: LoadBatch, name: str) -> None:
        """Load a model whose members are loaded already.

        Raises:
            EdgeServeError: the versions that serve stay, unless they are an ensemble that does not fit its members.
        """
        record = self._models[name]
        try:
            async with record.locked(nested=batch.nested):
                for other in self._batches - {batch}:
                    other.overtaken.add(name)
                await self._load_locked(record, batch)
        except EdgeServeError as error:
            if not batch.is_unloaded(name):  # else nobody wants it any more
                self._record_reason(name, error)
            raise
        except Exception as error:  # a bug fails this model, not those that are loaded with it
            log.exception("failed to load '%s'", name, extra=model_fields(name))
            failure = Internal(f"load failed for model '{name}': {type(error).__name__}: {error}")
            self._record_reason(name, failure)
            raise failure from error
        finally:
            record.loads.discard(batch)

    async def _load_locked(self, record: ModelRecord, batch: LoadBatch) -> None:
        name = record.name
        plan = await self._wanted_plan(record, batch) if name in batch.plans else record.plan
        if plan is None:
            return
        members = members_of(plan.config)
        if batch.changed.isdisjoint(members):
            if name not in batch.plans:  # an ensemble of which no member has changed after all
                return
            if record.serves(plan):
                log.info("model %s is unchanged, nothing to load", name, extra=model_fields(name))
                self._record_success(record)
                return
        record.next = plan
        before = record.serving().keys()
        try:
            changed = await self._replace(record, plan, batch)
        except LoadFailure as error:
            if members:
                self._fail_ensemble(record, plan, batch, error)
            if record.serving().keys() != before:  # a version was unloaded first, or the ensemble does not fit any more
                self._mark_changed(name, batch)
            raise
        finally:
            record.next = None
        if name in batch.plans:
            self._record_success(record)
        else:
            self._record_reason(name, None)
        if changed:
            self._mark_changed(name, batch)

    async def _wanted_plan(self, record: ModelRecord, batch: LoadBatch) -> LoadPlan | None:
        """Return the plan that `batch` has for a model, read again if another load came first; None: the model is gone.

        Raises:
            LoadFailure: the model was unloaded meanwhile.
            Internal: it cannot be read any more.
        """
        name = record.name
        if batch.is_unloaded(name):
            raise LoadFailure(name, "it was unloaded while its load was under way")
        record.explicit |= name in batch.wanted
        plan = batch.plans[name]
        if name in batch.overtaken:
            batch.overtaken.discard(name)
            fresh = await self._plan(name, batch)
            if fresh is None:
                return None
            batch.plans[name] = fresh
            await plan.release_files()
            plan = fresh
        if record.plan is not None and plan.preserves_override(record.plan):
            log.info("model %s keeps the configuration of its last load request: its files did not change", name,
                     extra=model_fields(name))  # fmt: skip
            return record.plan
        return plan

    async def _replace(self, record: ModelRecord, plan: LoadPlan, batch: LoadBatch) -> bool:
        """Load the versions of a plan, and swap them in. Return whether ensembles must be made anew.

        Raises:
            EdgeServeError: a version cannot be loaded, or there is none.
        """
        if members_of(plan.config):
            plan = self._fit(plan, batch.results)
        if not plan.versions:
            record.barren = True
            text = f"at least one version must be available under the version policy of model '{plan.name}'"
            failure = LoadFailure(plan.name, with_advice(text, plan.advice))
            if not members_of(plan.config):
                log.error("failed to load '%s': %s", plan.name, failure.reason, extra=model_fields(plan.name))
            raise failure
        if plan.name in batch.plans:
            await self._planner.run_agents(plan)
        return await self._swapper.swap(record, plan, batch)

    def _record_success(self, record: ModelRecord) -> None:
        self._record_reason(record.name, None)
        if record.plan is not None:
            record.dismiss(record.plan.versions)

    def _mark_changed(self, name: str, batch: LoadBatch) -> None:
        batch.changed.add(name)
        batch.reload_dependents(name, self.needs(), partial(self._load_one, batch))

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

    def _fail_ensemble(self, record: ModelRecord, plan: LoadPlan, batch: LoadBatch, error: LoadFailure) -> None:
        """Log the failed load of an ensemble. Unload the ensemble that serves if it no longer fits its members."""
        log.error("failed to load '%s': %s", record.name, error.reason, extra=model_fields(record.name))
        if record.plan is None:
            if plan.override is None:  # a configuration that never served does not stay
                record.plan = plan  # it is tried again when a member is loaded
            return
        try:
            self._fit(record.plan, batch.results)
        except LoadFailure as unfit:
            if record.ready():
                self._swapper.retire(record, unfit)
