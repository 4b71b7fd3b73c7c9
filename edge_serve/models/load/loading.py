"""Loads a version: plans, describes, checks, opens, and warms it up, and runs its golden test."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, nullcontext
from dataclasses import field
from pathlib import Path

from google.protobuf import text_format

from edge_serve.aio.offload import offload
from edge_serve.backends.base import ModelSpec
from edge_serve.backends.onnxruntime.libraries import has_cuda
from edge_serve.backends.packs import Packs
from edge_serve.backends.tensorrt.plan import BUILT_PLAN, PLATFORM
from edge_serve.clock import Clock
from edge_serve.config.checks.checks import refuse_runtime
from edge_serve.config.checks.io import check_inputs_and_outputs
from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.config.model.json_form import model_config_to_json
from edge_serve.config.model.layout import advice_on_config, advice_on_versions
from edge_serve.config.model.normalise import PYTHON_RUNTIME, is_python
from edge_serve.config.model.notes import notes_on
from edge_serve.config.model.parameters import parameter
from edge_serve.config.signature import read_labels, signature_of
from edge_serve.config.stages import check_files, load_model_config, merge_completed, settle_instances
from edge_serve.devices.device import LEAST_COMPUTE_CAPABILITY, Gpu, Gpus
from edge_serve.engines.cache import EngineLease
from edge_serve.errors import EdgeServeError
from edge_serve.golden.reader import read_golden
from edge_serve.messages.log_fields import model_fields
from edge_serve.messages.signature import Signature
from edge_serve.messages.statistics import ModelStatistics
from edge_serve.models.ensemble.ensemble import EnsembleRunner, member_labels
from edge_serve.models.ensemble.flight import Ensemble, Lookup
from edge_serve.models.extras.cached_runner import MARKS_PERSONAL, CachedRunner
from edge_serve.models.extras.rate_limit import LimitedModel, RateLimitGate
from edge_serve.models.extras.response_cache import ResponseCache
from edge_serve.models.load.dependencies import members_of
from edge_serve.models.load.device_memory import DeviceMemory
from edge_serve.models.load.engines import EngineBuilds
from edge_serve.models.load.golden import prove, prove_with
from edge_serve.models.load.load_plan import LoadPlan
from edge_serve.models.load.memory import Way
from edge_serve.models.load.warmup import WarmupListener, warm_up
from edge_serve.models.repository.override import Override
from edge_serve.models.repository.repository import (
    FoundModel,
    fingerprint,
    plain_name,
    versions,
)
from edge_serve.models.repository.version_policy import choose
from edge_serve.models.run.controls import Controls
from edge_serve.models.run.decoupled import DecoupledDriver
from edge_serve.models.run.driver import Driver, Order
from edge_serve.models.run.first_response import FirstResponseTimer
from edge_serve.models.run.sequence_driver import IterativeDecoupledDriver, IterativeDriver, SequenceDriver
from edge_serve.models.run.statistics import bounds_of, new_statistics
from edge_serve.models.versions.instance_group import Placed, place_instances
from edge_serve.models.versions.served import Served
from edge_serve.records import frozen
from edge_serve.scheduling.ensemble import ensemble_plan
from edge_serve.scheduling.keys import shape_key_for
from edge_serve.scheduling.ordering import ResponseOrder
from edge_serve.scheduling.policy import scheduler_for
from edge_serve.scheduling.start_delay import NO_DELAY, StartDelay
from edge_serve.workers.front.hangs import KILL_SECONDS
from edge_serve.workers.front.workers import Workers
from edge_serve.workers.launch.cgroups import MEMORY_PARAMETER
from edge_serve.workers.memory.arena import Arena, Budget

log = logging.getLogger(__name__)

#: model parameter: `own` or `shared`, whether a compiled model gets a worker process of its own
WORKER_PARAMETER = "EDGE_SERVE_WORKER"
_WORKERS = {"own": True, "shared": False}
#: backends that never run on a GPU of NVIDIA
ON_CPU = frozenset({"fil", "openvino", "tensorflow"})


@frozen
class LoaderOptions:
    """The settings that concern loading.

    Attributes:
        backend_settings: returns the `--backend-config` settings of a backend.
        packs: where backends are looked for that are not part of edge-serve.
        proves: returns whether a load runs the golden test of a model, by name.
        least_compute_capability: GPUs below it are not used.
        start_delay: how many requests schedulers wait for before their first batch.
    """

    auto_complete: bool = True
    config_name: str | None = None
    backend_settings: Callable[[str], dict[str, str]] = lambda backend: {}
    summaries: bool = False
    histograms: bool = False
    packs: Packs = field(default_factory=Packs)
    proves: Callable[[str], bool] = lambda name: True
    least_compute_capability: float = LEAST_COMPUTE_CAPABILITY
    start_delay: StartDelay = NO_DELAY


class Loader:
    """Opens and closes versions.

    Args:
        cache: the server's response cache, or None.
        gate: the server's rate limiter, or None.
        device_memory: the memory of the GPUs; None = it is not watched.

    Attributes:
        devices: the GPUs, set before the first load.
        builds: the engines that are built at load.
        cache: as given.
    """

    def __init__(
        self,
        workers: Workers,
        budget: Budget,
        clock: Clock,
        options: LoaderOptions,
        cache: ResponseCache | None = None,
        gate: RateLimitGate | None = None,
        device_memory: DeviceMemory | None = None,
    ) -> None:
        self.devices = Gpus()
        self.builds = EngineBuilds(lambda: options.backend_settings(PLATFORM), lambda own: workers.interpreter_for(own))
        self._workers = workers
        self._budget = budget
        self._clock = clock
        self._options = options
        self.cache = cache
        self._gate = gate
        self._device_memory = device_memory

    def plan(self, found: FoundModel, override: Override | None) -> LoadPlan:
        """Read the configuration and choose the versions.

        Raises:
            EdgeServeError: the configuration cannot be read, or cannot be served.
            UnreadableEntry: the directory cannot be read.
        """
        own = plain_name(found.name)
        print = fingerprint(found.directory)  # first: it has limits, and a later change must differ from it
        kept = override.directory(own) if override is not None else None
        directory = Path(kept.name, own) if kept is not None else found.directory
        with ExitStack() as undo:
            if kept is not None:
                undo.callback(kept.cleanup)
            config = load_model_config(
                directory,
                auto_complete=self._options.auto_complete,
                config_name=self._options.config_name,
                override=override.config if override is not None else None,
                name=own,
            )
            chosen = choose(config.version_policy, versions(directory))
            check_files(directory, config, chosen)
            pack = self._options.packs.find(config.backend, found.name, config.runtime)
            if pack is not None and pack.is_python_based:
                config.runtime = PYTHON_RUNTIME
            elif config.runtime == PYTHON_RUNTIME and config.backend != "python":
                refuse_runtime(config)
            advice = "" if chosen else _advice_on_versions(directory, config)
            if override is None and (stray := advice_on_config(directory, own)):
                log.warning("model %s: %s", found.name, stray, extra=model_fields(found.name))
            golden = read_golden(directory)
            own_worker = parameter(config, WORKER_PARAMETER, _WORKERS.__getitem__, None, "own or shared")
            undo.pop_all()
        return LoadPlan(found.name, directory, config, chosen, print, override, kept, advice, golden, own_worker, pack)

    def joins(self, plan: LoadPlan, *, own_worker: bool) -> bool:
        """Return whether `open` would load the model into a worker that already runs."""
        alone = plan.gets_own_worker(own_worker) or MEMORY_PARAMETER in plan.config.parameters or is_python(plan.config)
        on_gpus = bool(self.gpus(plan.config))
        return not alone and self._workers.runs(plan.config.backend, plan.pack, on_gpus=on_gpus)

    async def open(self, plan: LoadPlan, version: int, *, own_worker: bool) -> Served:
        """Load one version in a worker, warm it up, and run its golden test.

        Raises:
            EdgeServeError: the version cannot be served.
        """
        started = time.monotonic()
        try:
            async with AsyncExitStack() as resources:
                async with self._measured(plan) as taken:
                    served = await self._open(plan, version, own_worker, resources)
                    if self._device_memory is not None:
                        await self._device_memory.check_limits(served.instances.values(), self.devices)
                served.gpu_memory = taken
                served.on_close.push_async_callback(resources.pop_all().aclose)
        except BaseException:
            await self._workers.release_reserved(self.spec(plan, plan.config, version))
            raise
        served.kept = plan.acquire_files()
        served.load_seconds = time.monotonic() - started
        return served

    def stop(self, plan: LoadPlan, reason: str) -> None:
        """Let `open` of versions of this plan fail, unless their worker is shared."""
        self.builds.cancel(plan.name)
        self._workers.stop_loading(plan.directory, reason)

    async def open_ensemble(self, plan: LoadPlan, version: int, lookup: Lookup) -> Served:
        """Load one version of an ensemble whose members serve. It has no worker and no memory of its own.

        Raises:
            EdgeServeError: the labels cannot be read, or it fails its golden test.
        """
        started = time.monotonic()
        config = plan.config
        check_inputs_and_outputs(config)
        layout = ensemble_plan(config)
        labels = {**member_labels(layout, lookup), **await offload(read_labels, config, plan.directory)}
        signature = signature_of(config, config.name, version, labels)
        statistics = self._new_statistics(config)
        most_calls = config.ensemble_scheduling.max_inflight_requests

        def runner(counters: ModelStatistics) -> EnsembleRunner:
            return EnsembleRunner(Ensemble(layout, signature, counters, lookup, self._clock, most_calls))

        served = Served(
            config.name, str(version), config, signature, runner(statistics), statistics,
            shape_key=shape_key_for(signature), identity=plan.name, directory=plan.directory, golden=plan.golden,
        )  # fmt: skip
        if plan.golden is not None and self._options.proves(plan.name):
            await prove_with(served, plan.golden, self._proof_seconds, runner(self._new_statistics(config)))
        served.kept = plan.acquire_files()
        served.load_seconds = time.monotonic() - started
        self._add_front(served)
        return served

    def settle(self, config: pb.ModelConfig) -> pb.ModelConfig:
        """Return a configuration with its instance groups filled in for the GPUs of this machine.

        Raises:
            InvalidArgument: as `settle_instances`.
        """
        least = self._options.least_compute_capability
        auto = config.backend not in ON_CPU and (
            config.backend != "onnxruntime" or not self.devices.found or has_cuda()
        )
        return settle_instances(config, self.devices.ids(least), least, self.devices.lack(least), auto=auto)

    def _measured(self, plan: LoadPlan) -> AbstractAsyncContextManager[dict[str, int]]:
        if self._device_memory is None or not (gpus := self.gpus(plan.config)):
            return nullcontext({})
        return self._device_memory.measured(plan.name, gpus)

    def admit_to_gpus(
        self, plan: LoadPlan, files: int, *, joins: bool, replaces: bool, awaited: asyncio.Event
    ) -> AbstractAsyncContextManager[Way]:
        """Promise memory of GPUs to the load of a plan. See `DeviceMemory.admit`."""
        if self._device_memory is None or not (gpus := self.gpus(plan.config)):
            return nullcontext(Way.BESIDE)
        return self._device_memory.admit(plan.name, gpus, files, joins=joins, replaces=replaces, awaited=awaited)

    def gpus(self, config: pb.ModelConfig) -> list[Gpu]:
        """Return the GPUs that the instances of a configuration would be on; none if it cannot be served."""
        if not self.devices.found:
            return []
        try:
            used = {one.spec.device_id for one in place_instances(self.settle(config)) if one.spec.kind == "GPU"}
        except EdgeServeError:  # `open` says why
            return []
        return [gpu for gpu in self.devices.found if gpu.id in used]

    def _gpu_uuid(self, instances: Sequence[Placed]) -> str:
        """Return the GPU that all instances are on; "" = they are on the CPU, or on several GPUs."""
        used = {one.spec.device_id if one.spec.kind == "GPU" else -1 for one in instances}
        return self.devices.uuid(used.pop()) if len(used) == 1 else ""

    async def _open(self, plan: LoadPlan, version: int, own_worker: bool, resources: AsyncExitStack) -> Served:
        """Open a version, and push whatever is to be closed with it to `resources`."""
        if plan.pack is not None and plan.pack.name != plan.config.backend:
            text, extra = "model %s: backend '%s' is served by the pack '%s'", model_fields(plan.name)
            log.info(text, plan.name, plan.config.backend, plan.pack.name, extra=extra)
        arena = Arena(f"{plan.name}-{version}", self._budget)
        resources.callback(arena.close)
        config = self.settle(plan.config)
        own = plan.gets_own_worker(own_worker)
        spec = self.spec(plan, config, version)
        engine = await self.builds.open(plan.name, spec, self.devices)
        if engine is not None:
            resources.callback(engine.release)
            spec = self.spec(plan, config, version, engine)
        if self._options.auto_complete:
            document = await self._workers.describe(spec, config.backend, own_worker=own)
            config = self.settle(merge_completed(config, document))
            spec = self.spec(plan, config, version, engine)
        for note in notes_on(config):
            log.warning("model %s: %s", plan.name, note, extra=model_fields(plan.name))
        labels = await offload(read_labels, config, plan.directory)
        signature = signature_of(config, config.name, version, labels)
        instances = place_instances(config)
        limited = self._gate.admit(instances) if self._gate is not None else None
        if limited is not None:
            resources.callback(limited.close)
        driver, warmup = self._driver(config, signature, limited, self._options.start_delay), WarmupListener()
        specs = [one.spec for one in instances]
        opened = await self._workers.open(spec, config.backend, specs, warmup, arena, own_worker=own)
        resources.push_async_callback(opened.close)
        await warm_up(config, signature, plan.directory, opened, warmup)
        served = Served(
            config.name, str(version), config, signature, driver, driver.statistics, opened, arena,
            shape_key=shape_key_for(signature), identity=plan.name, directory=plan.directory,
            golden=plan.golden, instances=dict(enumerate(instances)), engine=engine, limited=limited,
        )  # fmt: skip
        if plan.golden is not None and self._options.proves(plan.name):
            await prove(served, plan.golden, self._proof_seconds, self._driver(config, signature, None))
        if limited is None:
            driver.join(opened)
            opened.listener = driver
        else:
            limited.join(driver, opened)
        served.gpu_uuid = self._gpu_uuid(instances)
        self._add_front(served)
        # the model's own `is_ready` counts from the start, as in Triton
        await served.health.check(opened, served.name, served.version)
        return served

    @property
    def _proof_seconds(self) -> float:
        """The timeout of a golden sample. A worker that hangs is killed just before, which gives the better error
        message."""
        return self._workers.load_seconds + KILL_SECONDS

    def _add_front(self, served: Served) -> None:
        """Put a timer of first responses before the runner if the server's settings say so, and a response cache if the
        model's configuration does, too."""
        if served.statistics.first_response is not None:
            served.first_responses = FirstResponseTimer(served.statistics, self._clock)
        config, cache = served.config, self.cache
        if cache is None or not config.response_cache.enable or served.signature.decoupled:
            return
        is_ensemble = config.HasField("ensemble_scheduling")
        served.cache = CachedRunner(
            served.runner, served.signature, served.statistics, cache, self._clock,
            personal=is_ensemble or not (config.backend in MARKS_PERSONAL or is_python(config)),
            keep_parameters=not is_ensemble, ordered=config.dynamic_batching.preserve_ordering,
        )  # fmt: skip
        served.on_close.callback(served.cache.close)

    def spec(
        self, plan: LoadPlan, config: pb.ModelConfig, version: int, engine: EngineLease | None = None
    ) -> ModelSpec:
        """Return the specification of a version for its workers.

        Args:
            engine: that was built for it; None = its files are served.
        """
        built = {BUILT_PLAN: engine.plan} if engine is not None else {}
        return ModelSpec(
            config.name,
            version,
            plan.directory,
            plan.directory / str(version),
            model_config_to_json(config),
            {**self._options.backend_settings(config.backend), **built},
            plan.pack,
        )

    def _new_statistics(self, config: pb.ModelConfig) -> ModelStatistics:
        options = self._options
        bounds = bounds_of(config.model_metrics)
        return new_statistics(summaries=options.summaries, histograms=options.histograms, first_response_bounds=bounds)

    def _driver(
        self,
        config: pb.ModelConfig,
        signature: Signature,
        limited: LimitedModel | None,
        start_delay: StartDelay = NO_DELAY,
    ) -> Driver:
        instances = place_instances(config)
        passive = {number for number, one in enumerate(instances) if one.group.passive}
        order: Order | None = ResponseOrder() if config.dynamic_batching.preserve_ordering else None
        scheduler = scheduler_for(config, len(instances), passive, start_delay)
        if limited is not None:
            scheduler.prefer(limited.rank)
        iterative = config.sequence_batching.iterative_sequence
        kind: type[Driver] = IterativeDriver if iterative else SequenceDriver
        if signature.decoupled:
            kind = IterativeDecoupledDriver if iterative else DecoupledDriver
        elif not signature.has_sequence_batching:
            kind = Driver
        name, version, loop = signature.model_name, signature.model_version, asyncio.get_running_loop()
        driver = kind(name, version, scheduler, self._new_statistics(config), self._clock, loop, order)
        driver.counts_responses = not is_python(config)
        driver.controls = Controls(config) if signature.has_sequence_batching else None
        return driver

    async def close(self, served: Served) -> None:
        """Close the model in its worker and release its memory. Never raises."""
        try:
            await served.on_close.aclose()
        except EdgeServeError as error:
            text, extra = "model %s version %s did not close cleanly: %s", model_fields(served.name, served.version)
            log.warning(text, served.name, served.version, error.message, extra=extra)
        finally:
            if served.kept is not None:
                await served.kept.release()


def _advice_on_versions(directory: Path, config: pb.ModelConfig) -> str:
    policy = text_format.MessageToString(config.version_policy, as_one_line=True)
    return advice_on_versions(directory, config.name, ensemble=bool(members_of(config)), policy=policy)
