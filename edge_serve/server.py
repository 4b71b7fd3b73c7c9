"""The composition root: makes the parts of the server from its settings, starts them in order, stops them in reverse.

The doors open before the first model is loaded, so `/v2/health/live` answers from the start, and a port in use is
reported at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from edge_serve import __version__
from edge_serve.aio.offload import offload
from edge_serve.aio.tasks import gathered, repeat
from edge_serve.backends.onnxruntime.libraries import has_cuda
from edge_serve.backends.packs import Packs, notes_on_backends
from edge_serve.clock import MonotonicClock
from edge_serve.config.model.layout import advice_on_repository
from edge_serve.config.settings.server import ServerConfig
from edge_serve.devices.device import Gpu
from edge_serve.devices.watch import DeviceWatch
from edge_serve.door_settings import DoorGuards, quarter_of_memory, raise_file_limit
from edge_serve.doors import WAIT_BEFORE_DOORS, Doors
from edge_serve.draining import DrainReport
from edge_serve.errors import EdgeServeError, with_advice
from edge_serve.first_workers import sandbox_of
from edge_serve.messages.log_fields import DISPLAY, model_fields
from edge_serve.models.control.poller import Poller
from edge_serve.models.control.registry import Registry
from edge_serve.models.extras.calls import ModelCalls
from edge_serve.models.extras.rate_limit import RateLimitGate
from edge_serve.models.extras.response_cache import ResponseCache
from edge_serve.models.load.device_memory import DeviceMemory
from edge_serve.models.load.loading import Loader, LoaderOptions
from edge_serve.models.load.memory import Memory
from edge_serve.models.repository.names import shown
from edge_serve.models.repository.repository import FoundModel, Repository, plain_name
from edge_serve.models.versions.unloading_versions import join_names
from edge_serve.observe.log.log import LogControl
from edge_serve.observe.metrics.custom import CustomMetrics
from edge_serve.observe.metrics.options import parse_options
from edge_serve.observe.metrics.source import StatisticsSource
from edge_serve.observe.status.collect import Collector, StatusSources
from edge_serve.observe.status.probe import Probe
from edge_serve.observe.tracing.tracing import Tracing
from edge_serve.records import compile_records
from edge_serve.scheduling.rate_limiter import RateLimiter
from edge_serve.scheduling.start_delay import REQUESTS, StartDelay, read_delay
from edge_serve.service import Service, ServiceOptions
from edge_serve.supervision.safe_mode import CrashWatch
from edge_serve.supervision.self_inference import SelfInference
from edge_serve.supervision.supervisor import Supervisor
from edge_serve.systemd.activation import inherit
from edge_serve.transport.door.listeners import advice_on_listening
from edge_serve.workers.codec.codec import Codec
from edge_serve.workers.front.busy_poll import PollingSelector, PollPolicy, make_poll_policy
from edge_serve.workers.front.workers import Hooks, ProcessLimits, Workers
from edge_serve.workers.launch.environments import Environments
from edge_serve.workers.launch.interpreter import environment_cache
from edge_serve.workers.launch.sandbox import make_undumpable
from edge_serve.workers.launch.spawn import Spawned
from edge_serve.workers.memory.arena import Budget, trim_idle

log = logging.getLogger(__name__)

#: exit statuses, as Triton's
CLEAN, FAILED = 0, 1

#: seconds between two checks of the health of models, and of the files of certificates and tokens
HOUSEKEEPING_SECONDS = 1.0
#: seconds after which NumPy is imported though models still load
IMPORT_AFTER = 3.0

#: seconds after which a worker that is left at the end is killed
LAST_GRACE = 1.0


class ServerProcess:
    """One server. `run` is for a process of its own; `start`, `stop`, and `close` are for programs that contain one.

    Attributes:
        service: all operations, for callers inside the process.
        addresses: addresses of the open doors by name (`HTTP`, `gRPC`, `metrics`, `admin`).
    """

    def __init__(
        self,
        config: ServerConfig,
        log_control: LogControl | None = None,
        poll_policy: PollPolicy | None = None,
        first: Sequence[Spawned] = (),
    ) -> None:
        self._config = config
        self._clock = MonotonicClock()
        self._budget = Budget(config.tensor_memory_bytes or quarter_of_memory())
        self._stop = asyncio.Event()
        self._loaded = asyncio.Event()
        self._force = asyncio.Event()
        self._stop_hint = "a second SIGTERM ends the server at once"
        self._loading: asyncio.Task[list[str]] | None = None
        self._background: list[asyncio.Task[None]] = []
        custom = CustomMetrics()
        silence, memory = config.worker_heartbeat_timeout_secs, config.worker_memory_max_bytes
        limits = ProcessLimits(silence=silence, hang=config.hang_timeout_secs, memory=memory)
        self._devices = DeviceWatch()
        hooks = Hooks(metric=custom.apply, gone=custom.gone, gpu_trouble=self._devices.trouble)
        self._sandbox = sandbox_of(config)
        environments = Environments(environment_cache(config.execution_env_directory, os.environ), self._sandbox)
        poll_policy = poll_policy or make_poll_policy(config.busy_poll_microseconds)
        self._workers = Workers(limits, self._clock, hooks, environments, poll_policy, first)
        self._codec = Codec(self._budget, limits)
        admission = Memory(config.memory_reserve_bytes)
        self._loader = self._make_loader(config, admission)
        repository = Repository(list(map(Path, config.model_repository)), namespaced=config.model_namespacing)
        self._repository = repository
        self._registry = Registry(
            repository, self._loader, config.required_model, max(1, config.model_load_thread_count),
            config.swap_drain_secs, config.model_load_retry_count,
            admission if config.memory_admission else None, config.swap_queue_size,
        )  # fmt: skip
        self._crashes = CrashWatch(self._registry, repository)
        explicit = config.model_control_mode == "explicit"
        interval = config.repository_poll_secs if config.model_control_mode == "poll" else None
        self._poller = None if explicit else Poller(repository, self._registry, interval)
        options = ServiceOptions(config.id, explicit, config.strict_readiness, config.allow_client_shm)
        self.service = Service(
            self._registry, options, log_control, Tracing(config.trace_config),
            safe_mode_exit=self._crashes.leave_safe_mode, poller=self._poller,
        )  # fmt: skip
        self._supervisor = Supervisor(self.service, self._registry, self._workers, self._crashes, self._clock)
        self._guards = DoorGuards(config, lambda: self._budget.refused)
        self._doors = Doors(config, self.service, self._guards, self._codec, self._clock, self._found_gpus)
        self.addresses = self._doors.addresses
        self._statistics = self._make_statistics(custom)
        self._log_control = log_control
        #: of `run`, for the record of crashes; "" = none is kept
        self._state_directory = ""
        # set late, because of circles: workers call models, and models run in workers; the service and the poller call
        # objects that are made from them
        calls = ModelCalls(self._registry.lookup, self.service)
        hooks.infer, hooks.control, hooks.report_idle = calls.infer, calls.control, calls.report_idle
        self.service.status_source = self._make_collector(self._statistics).read
        if self._poller is not None:
            self._poller.on_settled = self._supervisor.notify_reloaded

    def _make_statistics(self, custom: CustomMetrics) -> StatisticsSource:
        registry, budget = self._registry, self._budget
        return StatisticsSource(
            models=registry.series,
            readiness=registry.readiness,
            engine_builds=self._loader.builds.running,
            http=self._doors.series,
            tensor_memory=lambda: budget.used,
            pinned_memory=lambda: (budget.pinned.limit, budget.pinned.used),
            cache=lambda: self._loader.cache,
            custom=custom.families,
        )

    def _make_loader(self, config: ServerConfig, memory: Memory) -> Loader:
        metrics = parse_options(config.metrics_config)
        options = LoaderOptions(
            auto_complete=not config.disable_auto_complete_config,
            config_name=config.model_config_name or None,
            backend_settings=config.backend_settings,
            summaries=metrics.summaries,
            histograms=metrics.histograms,
            packs=Packs(Path(config.backend_directory).absolute() if config.backend_directory else None),
            least_compute_capability=config.min_supported_compute_capability,
            start_delay=_read_start_delay(),
        )
        cache = None if config.cache_config is None else ResponseCache(config.cache_config)
        gate = None if config.rate_limit == "off" else RateLimitGate(RateLimiter(config.rate_limit_resource))
        device_memory = DeviceMemory(memory, dict(config.model_load_gpu_limit))
        return Loader(self._workers, self._budget, self._clock, options, cache, gate, device_memory)

    def _make_collector(self, statistics: StatisticsSource) -> Collector:
        config, log_control = self._config, self._log_control
        sources = StatusSources(
            service=self.service,
            registry=self._registry,
            statistics=statistics,
            workers=lambda: [*self._workers.facts(), *self._codec.facts()],
            doors=self.addresses,
            memory_limit=self._budget.limit,
            required=config.required_model,
            events=log_control.events if log_control is not None else None,
            safe_mode=lambda: self._supervisor.safe_mode,
        )
        probe = Probe(
            self._repository.scan,
            gpu=config.allow_gpu_metrics,
            updates=config.ota_status_file,
            system=config.device_status_file,
            found=self._found_gpus,
        )
        return Collector(sources, probe, self._clock)

    async def run(self) -> int:
        """Serve until a signal. Return the exit status."""
        by_own_fault = False
        self._supervisor.use_service_manager(os.environ)
        self._watch_signals()
        raise_file_limit()
        try:
            self._doors.inherited = inherit(os.environ, os.getpid(), self._config)
            inherited_directory = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
            self._state_directory = self._config.state_directory or inherited_directory
            self._background.append(asyncio.create_task(self._settle(), name="end of the start"))
            failures = await self.start()
            if failures and self._config.exit_on_error and not self._supervisor.safe_mode:
                text = "exiting because %d model(s) failed to load: %s; --exit-on-error=false serves the others"
                log.error(text, len(failures), ", ".join(map(plain_name, sorted(self._registry.load_history.failed))))
                self._supervisor.notify_failed(f"{len(failures)} model(s) failed to load: {failures[0].strip()}")
                await self._drain_unless_forced(FAILED)
                return FAILED
            await self._stop.wait()
            return await self._drain_unless_forced(CLEAN)
        except (EdgeServeError, OSError) as error:
            reason, number = (error.strerror, error.errno) if isinstance(error, OSError) else ("", None)
            self._supervisor.notify_failed(reason or str(error), number)
            raise
        except Exception:
            by_own_fault = not self._stop.is_set()
            if by_own_fault:
                self._crashes.freeze_record()  # it counts for safe mode: a model may be what leads to it
            raise
        finally:
            await self.close()
            if not by_own_fault:
                self._crashes.record_clean_stop()

    async def start(self) -> list[str]:
        """Open the doors and load the models. Return an error text for each model that failed.

        Raises:
            EdgeServeError: a repository that cannot be read. OSError: a door that cannot be opened.
        """
        started = time.monotonic()
        await self._doors.open(self._statistics)
        if self._sandbox is not None:
            self._background.append(asyncio.create_task(offload(self._sandbox.log_gaps), name="sandbox"))
        self._background.append(asyncio.create_task(self._log_absent_backends(), name="absent backends"))
        self._start_periodic_tasks()
        failures = await self._load(started)
        if self._config.self_inference_interval_secs:
            asking = SelfInference(self._registry.each_served, self._config.self_inference_interval_secs)
            self._background.append(asyncio.create_task(asking.run(), name="self-inference"))
        if self._poller is not None:
            self._background.append(asyncio.create_task(self._poller.run(), name="polling"))
        return failures

    async def _log_absent_backends(self) -> None:
        names = [setting.backend for setting in self._config.backend_config]
        for note in await offload(notes_on_backends, names, self._config.backend_directory):
            log.warning("%s", note)

    async def stop(self) -> list[str]:
        """Refuse new requests, answer the accepted ones, and unload all models. Return texts about unfinished work."""
        self._refuse_requests()
        self._stop.set()
        return await self._drain(float(self._config.exit_timeout_secs))

    async def close(self) -> None:
        """Stop the processes that are left, whether or not they are busy."""
        self._cancel_background()
        await self._codec.stop(LAST_GRACE)
        await self._workers.stop(LAST_GRACE)
        self.service.tracing.close()

    def _cancel_background(self) -> None:
        for task in self._background:
            task.cancel()
        self._background.clear()

    # ---- start --------------------------------------------------------------------------------------------------

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self._on_hang_up)

    def _on_hang_up(self) -> None:
        """Scan the repositories for changes now."""
        self._supervisor.notify_reloading()
        if self._poller is not None:
            self._poller.request_scan()
        else:
            log.warning("SIGHUP: nothing to do, because models are loaded and unloaded on request here "
                        "(--model-control-mode=explicit)")  # fmt: skip
            self._supervisor.notify_reloaded()

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            busy = join_names(self._registry.busy())
            unanswered = f"; not answered: {busy}" if busy else ""
            log.warning("%s again: ending now%s", signal.Signals(number).name, unanswered)
            self._force.set()
        else:
            log.info("%s: draining, at most %d s", signal.Signals(number).name, self._config.exit_timeout_secs)
            if number is signal.SIGINT:
                self._stop_hint = "press Ctrl-C again to end at once"
            if self._doors.inherited:
                self._doors.stop_accepting()
            else:
                self._refuse_requests()
            self._supervisor.notify_stopping(self._config.exit_timeout_secs)
            self._stop.set()

    async def _load(self, started: float) -> list[str]:
        """Load the models of the start, and begin to serve. Return an error text for each model that failed.

        A model whose load makes no progress is left to load by itself, unless its failure would end the server.
        """
        config = self._config
        loading = self._loading = asyncio.create_task(self._load_models(config.named_models), name="load models")
        await self._wait_for_models(loading)
        if not loading.done() and self._stop.is_set():
            return []  # `_drain` ends it
        failures, found = [], {}
        try:
            failures = loading.result() if loading.done() else []
            found = await self._registry.scan()  # in mode explicit nothing has read the repositories before
        except EdgeServeError as error:
            if config.exit_on_error:
                raise
            self._note_unreadable(error)
        self.service.started = True
        await self._doors.admit_clients()
        serves = not (failures and config.exit_on_error) or bool(self._supervisor.safe_mode)
        if serves:
            await self._supervisor.notify_ready()
        if not self._registry.load_history.unreadable:
            await self._log_table(found)
            if serves:
                self._log_ready(time.monotonic() - started)
        if loading.done():
            self._loaded.set()
        else:
            log.warning("the models above that are loading make no progress; the others are served without them")
            self._background.append(asyncio.create_task(self._await_late(loading), name="models that load late"))
        return failures

    async def _wait_for_models(self, loading: asyncio.Task[list[str]]) -> None:
        """Wait until the models are loaded, make no progress, or the server stops. Clients that a service manager holds
        are admitted before."""
        stopping = asyncio.create_task(self._stop.wait())
        waiting = {loading, stopping}
        if not self._config.exit_on_error:
            waiting.add(asyncio.create_task(self._supervisor.stalled.wait()))
        doors = WAIT_BEFORE_DOORS if self._doors.is_closed else None
        ended, _ = await asyncio.wait(waiting, timeout=doors, return_when=asyncio.FIRST_COMPLETED)
        if not ended:
            await self._doors.admit_clients()
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting - {loading}:
            task.cancel()

    async def _await_late(self, loading: asyncio.Task[list[str]]) -> None:
        while not loading.done():
            stall = self._supervisor.stall_seconds
            self._registry.load_beside_late(time.monotonic() - stall)
            await asyncio.wait({loading}, timeout=stall)
        error = None if loading.cancelled() else loading.exception()
        if isinstance(error, EdgeServeError):
            self._note_unreadable(error)
            if self._poller is not None:
                self._poller.request_scan()
        elif error is not None:
            log.error("the load of the models ended unexpectedly", exc_info=error)
        self._loaded.set()

    def _note_unreadable(self, error: EdgeServeError) -> None:
        self._registry.load_history.unreadable = error.message
        log.error("%s; --exit-on-error=false: the server is live, and not ready until it can be read", error)

    async def _settle(self) -> None:
        """Import NumPy and compile records, so that no request waits for them, and then freeze all objects.

        Loads that take long do not delay the import, because requests may come meanwhile.
        """
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._loaded.wait(), IMPORT_AFTER)
        try:
            await offload(import_module, "numpy")
        except Exception as error:  # no model is to blame; and each request that needs it says so
            log.error("NumPy cannot be imported: %s; install edge-serve again", error)
        await offload(compile_records)
        await self._loaded.wait()
        _freeze()

    async def _load_models(self, names: Sequence[str] | None) -> list[str]:
        """Load `names`, or all models if None. Return an error text for each that failed.

        Raises:
            EdgeServeError: a repository cannot be read.
        """
        if self._state_directory:
            await self._crashes.open(Path(self._state_directory), self._clock.now_ns())
        await self._find_devices()
        if self._poller is not None:
            await self._poller.scan_first()
        with contextlib.suppress(EdgeServeError):  # loading fails of the same, and says so
            await self._registry.find_required()
        try:
            return await self._registry.load_all(names)
        finally:
            self._workers.kill_unused()

    async def _find_devices(self) -> None:
        devices = self._loader.devices = self.service.regions.gpus = await self._devices.start()
        if devices.found:
            self._budget.pinned.limit = self._config.pinned_memory_pool_byte_size
            await self._loader.builds.make_directory()
        for device in devices.found:
            log.info("%s", device)
        if devices.found and not await offload(has_cuda):  # it reads files, once
            log.info("ONNX models run on the CPU: for the GPU put onnxruntime-gpu[cuda,cudnn] in place of onnxruntime")
        if devices.reason:
            log.warning("no GPU is used: %s", with_advice(devices.reason, devices.advice))

    def _found_gpus(self) -> tuple[Gpu, ...]:
        return self._devices.at_start.found

    async def _log_table(self, found: Mapping[str, FoundModel]) -> None:
        entries = self._registry.index(ready_only=False, found=found)
        rows = await gathered((shown(entry.name), entry.version, entry.state, entry.reason) for entry in entries)
        for root in () if rows else self._repository.roots:
            log.warning("%s", advice_on_repository(root))
        width = max([5, *(len(row[0]) for row in rows)])
        log.info("%-*s  %7s  %s", width, "MODEL", "VERSION", "STATE", extra={DISPLAY: True})

        def write(row: tuple[str, str, str, str]) -> None:
            name, version, state, reason = row
            text, extra = f": {reason}" if reason else "", {DISPLAY: True, **model_fields(name, version)}
            log.info("%-*s  %7s  %s%s", width, name, version or "-", state or "-", text, extra=extra)

        await gathered(map(write, rows))

    def _log_ready(self, seconds: float) -> None:
        served, failed = len(self._registry.served()), len(self._registry.load_history.failed)
        models = f"{served} {'model' if served == 1 else 'models'}"
        left = f"; {failed} failed: see the table" if failed else ""
        log.info("edge-serve %s ready in %.2f s with %s%s", __version__, seconds, models, left)

    # ---- while it runs ------------------------------------------------------------------------------------------

    def _start_periodic_tasks(self) -> None:
        """Start the periodic tasks, one for each job, so that a job that hangs delays no other."""
        jobs: dict[str, Coroutine[Any, Any, None]] = {
            "supervision": self._supervisor.run(),
            "trimming": trim_idle(self._budget),
            "health": repeat("asking models for their health", HOUSEKEEPING_SECONDS, self._registry.check_health),
            "versions": repeat("looking for failed versions", HOUSEKEEPING_SECONDS, self._registry.dismiss_removed),
            "guards": repeat("reloading certificates and tokens", HOUSEKEEPING_SECONDS, self._guards.reload_changed),
        }
        if self._log_control is not None:
            jobs["log"] = repeat("housekeeping of the log", HOUSEKEEPING_SECONDS, self._log_control.tick)
        self._background += [asyncio.create_task(job, name=name) for name, job in jobs.items()]

    # ---- stop ---------------------------------------------------------------------------------------------------

    async def _drain_unless_forced(self, status: int) -> int:
        """Drain, at most until a second signal. Return the exit status: FAILED if work was unfinished."""
        if not self._doors.inherited:
            self.service.stop()
        timeout = float(self._config.exit_timeout_secs)
        draining = asyncio.create_task(self._drain(timeout))
        forced = asyncio.create_task(self._force.wait())
        report = DrainReport(self._registry, self._supervisor.notify_stop_progress, timeout, self._stop_hint)
        reporting = asyncio.create_task(report.run(), name="report of the stop")
        await asyncio.wait({draining, forced}, return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()
        reporting.cancel()
        if not draining.done():
            draining.cancel()
            return FAILED
        unfinished = draining.result()
        if unfinished:
            text = "after %d s there still were %s; raise --exit-timeout-secs if loads and answers take longer"
            log.error(text, timeout, " and ".join(unfinished))
            return FAILED
        log.info("all requests answered, all models unloaded")
        return status

    def _refuse_requests(self) -> None:
        """Answer new requests with 503 from now on."""
        self.service.stop()
        self._doors.announce_close()

    async def _drain(self, timeout: float) -> list[str]:
        """Stop in order, within `timeout` seconds. Return texts about unfinished work."""
        end = time.monotonic() + timeout
        if self._loading is not None:
            self._loading.cancel()
        if self._doors.inherited:  # new clients wait for the next process; connected ones notice nothing
            await self._doors.retire(timeout / 2)
        self._refuse_requests()
        self._cancel_background()
        unfinished = []
        if self._loading is not None and not self._loading.done():
            _, late = await asyncio.wait({self._loading}, timeout=max(0.1, end - time.monotonic()))
            if late:
                unfinished.append("models loading")
        busy = await self._registry.close(max(0.1, end - time.monotonic()))
        if busy:
            unfinished.append(f"{busy} busy model version(s): {join_names(self._registry.busy())}")
        cut_off = await self._doors.drain(max(0.1, end - time.monotonic()))
        if cut_off:
            unfinished.append(f"{cut_off} connection(s) with an unfinished answer")
        return unfinished


def _freeze() -> None:
    """Freeze the objects that exist after the start, so that later collections skip them, and collect the garbage of
    the start."""
    gc.collect()
    gc.freeze()
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _read_start_delay() -> StartDelay:
    delay = read_delay(os.environ)
    if delay.requests:
        text = "%s=%d: each scheduler waits for so many requests before its first batch; unset it, except in tests"
        log.warning(text, REQUESTS, delay.requests)
    return delay


def serve(config: ServerConfig, log_control: LogControl | None = None, first: Sequence[Spawned] = ()) -> int:
    """Run a server to its end. Return the exit status.

    Args:
        first: workers that run already (`first_workers`).
    """
    poll_policy = make_poll_policy(config.busy_poll_microseconds)
    if config.worker_sandbox:
        make_undumpable()

    async def main() -> int:
        try:
            return await ServerProcess(config, log_control, poll_policy, first).run()
        except EdgeServeError as error:
            log.error("%s", error.message)
        except OSError as error:
            log.error("%s; %s", error.strerror or error, advice_on_listening(error))
        return FAILED

    make_loop = partial(asyncio.SelectorEventLoop, PollingSelector(poll_policy))
    if sys.version_info >= (3, 11):
        with asyncio.Runner(loop_factory=make_loop) as runner:
            return runner.run(main())
    loops = asyncio.DefaultEventLoopPolicy()
    loops.new_event_loop = make_loop  # type: ignore[method-assign]
    asyncio.set_event_loop_policy(loops)
    return asyncio.run(main())
