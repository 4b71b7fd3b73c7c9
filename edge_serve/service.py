"""Every operation of the protocol once, on plain values; the doors in `transport/` call it.

Arguments hold no socket and no loop. Long operations take a `done` callback; inference takes `on_response`, called
exactly once (an error is inside the response), so that a request costs no task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeVar

from edge_serve.aio.tasks import gathered
from edge_serve.config.model.model_config_pb2 import ModelConfig
from edge_serve.errors import (
    Cancelled,
    EdgeServeError,
    Internal,
    InvalidArgument,
    Unavailable,
    Unparsable,
    Unsupported,
)
from edge_serve.messages.infer import InferRequest, InferResponse, Room
from edge_serve.messages.metadata import IndexEntry, ModelMetadata, ServerMetadata, TensorMetadata
from edge_serve.messages.settings import LogSettings, ServerLog, TraceChanges, TraceSettings
from edge_serve.messages.shared_memory import CudaRegionStatus, RegionStatus
from edge_serve.messages.signature import TensorSpec
from edge_serve.messages.statistics import ModelStatistics
from edge_serve.messages.trace import Arrival
from edge_serve.models.control.poller import ModelReload, Poller
from edge_serve.models.control.registry import Registry
from edge_serve.models.repository.names import check_name, parse_version
from edge_serve.models.repository.override import Override
from edge_serve.models.run.runner import ANSWERED, OnResponse, Ticket
from edge_serve.models.versions.lifecycle import VersionState
from edge_serve.models.versions.served import Served
from edge_serve.observe.tracing.tracing import Tracing
from edge_serve.protocol.inference.validate import validate
from edge_serve.records import slotted
from edge_serve.workers.memory.regions import SharedMemoryRegions

T = TypeVar("T")

log = logging.getLogger(__name__)

#: TRITON.md 1.11; fixed at start
EXTENSIONS = (
    "classification", "sequence", "model_repository", "model_repository(unload_dependents)", "schedule_policy",
    "model_configuration", "system_shared_memory", "cuda_shared_memory", "binary_tensor_data", "parameters",
    "statistics", "trace", "logging",
)  # fmt: skip

#: between two looks at the models while the server starts, seconds
_MOMENT = 0.05

#: the version of Triton whose protocol this server speaks, as clients read it from the server metadata
TRITON_VERSION = "2.51.0"

Done = Callable[["EdgeServeError | None"], None]
OnIndex = Callable[["list[IndexEntry] | EdgeServeError"], None]
#: called with the status document (observe/status/collect.py), or the reason why there is none
OnStatus = Callable[["dict[str, Any] | EdgeServeError"], None]
OnReload = Callable[["list[ModelReload] | EdgeServeError"], None]


@slotted
class ServiceOptions:
    """The settings that concern the operations."""

    server_id: str = "triton"
    explicit: bool = False
    strict_readiness: bool = True
    allow_client_shm: bool = False


@slotted
class Service:
    """The operations.

    Attributes:
        started: whether the initial models are loaded, failed to load, or make no progress.
        stopping: whether SIGTERM came, and no new requests are accepted.
        regions: shared memory of clients, in which decoders look up the regions that requests name.
        log_control: the server's log; None when another program that embeds the server owns the log.
        status_source: calls back with the status document, now or soon; None when no document is collected.
        safe_mode_exit: loads the models that safe mode left out, and returns their names.
        poller: scans the model repositories for changes; None = models are loaded on request only.
    """

    registry: Registry
    options: ServiceOptions = field(default_factory=ServiceOptions)
    log_control: ServerLog | None = None
    tracing: Tracing = field(default_factory=Tracing)
    regions: SharedMemoryRegions = field(default_factory=SharedMemoryRegions)
    status_source: Callable[[OnStatus], None] | None = None
    safe_mode_exit: Callable[[], list[str]] = list
    poller: Poller | None = None
    started: bool = False
    stopping: bool = False
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _loads: set[asyncio.Task[None]] = field(default_factory=set)

    def stop(self) -> None:
        """Accept no new requests, and cancel loads under way, because no request would ever use their models."""
        self.stopping = True
        for task in self._loads:
            task.cancel()

    # ---- health and metadata ------------------------------------------------------------------------------------

    def live(self) -> bool:
        """Return whether the process is not shutting down."""
        return not self.stopping

    def ready(self) -> bool:
        """Return whether all models that count can answer."""
        running = self.started and not self.stopping and not self.registry.load_history.unreadable
        return running and (not self.options.strict_readiness or self.registry.is_ready())

    def server_metadata(self) -> ServerMetadata:
        """Return the answer to GET /v2."""
        return ServerMetadata(self.options.server_id, TRITON_VERSION, EXTENSIONS)

    def lookup(self, name: str, version: str) -> Served:
        """Return the version for a request; errors as in `Registry.lookup`, and Unavailable while starting."""
        self._check_running()
        return self.registry.lookup(name, version)

    def model_ready(self, name: str, version: str) -> bool:
        """Return whether a version can answer.

        Raises:
            InvalidArgument, NotFound, Unavailable: as `lookup`.
        """
        return self.lookup(name, version).healthy

    def model_metadata(self, name: str, version: str) -> ModelMetadata:
        """Return the answer to GET /v2/models/{m}; errors as in `lookup`."""
        served = self.lookup(name, version)
        signature = served.signature
        batched = signature.max_batch_size > 0
        return ModelMetadata(
            served.name,
            (served.version,) if version else self.registry.ready_versions(name),
            signature.platform,
            tuple(_tensor_metadata(spec, batched) for spec in signature.inputs.values()),
            tuple(_tensor_metadata(spec, batched) for spec in signature.outputs.values()),
        )

    def model_config(self, name: str, version: str) -> ModelConfig:
        """Return the completed configuration; errors as in `lookup`."""
        return self.lookup(name, version).config

    def model_statistics(self, name: str, version: str) -> list[tuple[str, str, ModelStatistics]]:
        """Return (name, version, statistics) of one version, of all of a model, or of every model when `name` is "".

        As in Triton, a version without a name is ignored.

        Raises:
            InvalidArgument: the model or version does not serve.
        """
        self._check_running()
        if not name:
            return [(served.name, served.version, served.statistics) for served in self.registry.served()]
        if version:
            parse_version(version)
        rows = [
            (served.name, served.version, served.statistics)
            for served in self.registry.served()
            if served.name == name and (not version or int(served.version) == int(version))
        ]
        if not rows:
            raise InvalidArgument(
                f"requested model version is not available for model '{name}'"
                if version and self.registry.ready_versions(name)
                else f"requested model '{name}' is not available"
            )
        return rows

    async def read_repository_index(self, ready_only: bool = False) -> list[IndexEntry]:
        """Return the repository index; the disk is read in a thread.

        While the server starts, the index shows the models that are loading, and waits at moments when none is: clients
        take an index without such models for the end of the start.

        Raises:
            Unavailable: while stopping; with `ready_only` while starting, too.
            InvalidArgument: a repository cannot be read.
        """
        if ready_only:
            self._check_running()
        while not self.stopping:
            if self.started or self._is_loading(self.registry.index(ready_only=False)):
                found = None if ready_only else await self.registry.scan()
                entries = await gathered(self.registry.index(ready_only=ready_only, found=found))
                if self.started or self._is_loading(entries):
                    return entries
            await asyncio.sleep(_MOMENT)
        raise Unavailable("Server exiting")

    @staticmethod
    def _is_loading(entries: Iterable[IndexEntry]) -> bool:
        return any(entry.state == VersionState.LOADING.value for entry in entries)

    def repository_index(self, ready_only: bool, done: OnIndex) -> None:
        """Carry out POST /v2/repository/index; `done` gets the entries, or the error of `read_repository_index`."""
        self._start(self.read_repository_index(ready_only), done)

    def status(self, done: OnStatus) -> None:
        """Carry out GET /edge-serve/status, in every state of the server.

        Raises:
            Unavailable: this server has no collector.
        """
        if self.status_source is None:
            raise Unavailable("this server collects no status")
        self.status_source(done)

    def leave_safe_mode(self) -> list[str]:
        """Carry out POST /edge-serve/safe-mode/leave, also while models load. Return the models that were left out.

        Raises:
            Unavailable: the server is draining.
        """
        if self.stopping:
            raise Unavailable("Server exiting")
        return self.safe_mode_exit()

    def reload(self, names: Sequence[str], unload_first: bool, done: OnReload) -> None:
        """Carry out POST /edge-serve/reload: load the changes in the repositories. `done` gets the results, or the
        error.

        Raises:
            Unavailable: the server starts or stops. InvalidArgument: models are loaded on request here.
        """
        self._check_running()
        if self.poller is None:
            text = "models are loaded on request here (--model-control-mode=explicit)"
            raise InvalidArgument(f"{text}: use POST /v2/repository/models/NAME/load")
        self._start_load(self.poller.reload(names, unload_first=unload_first), done)

    # ---- settings -----------------------------------------------------------------------------------------------

    def log_settings(self) -> LogSettings:
        """Return the answer to GET /v2/logging.

        Raises:
            Unavailable: the log is not the server's.
        """
        return self._log_control().settings()

    def update_log_settings(self, settings: LogSettings) -> None:
        """Apply `settings` from the next line on; raises as `log_settings`."""
        self._log_control().update(settings)

    def _log_control(self) -> ServerLog:
        if self.log_control is None:
            raise Unavailable("the server does not support dynamic logging")
        return self.log_control

    def trace_settings(self, model: str) -> TraceSettings:
        """Return the trace settings of a model; "" = of models without their own. Raises as `_check_traceable`."""
        self._check_traceable(model)
        return self.tracing.settings(model)

    def update_trace_settings(self, model: str, changes: TraceChanges) -> None:
        """Change the trace settings of a model, or those of all when "".

        Raises:
            InvalidArgument: the settings would trace nothing, or the model is not ready. Unsupported: see
                `Tracing.update`.
        """
        self._check_traceable(model)
        self.tracing.update(model, changes)

    def _check_traceable(self, model: str) -> None:
        """Check that a client may ask for the settings of `model`, or of all models when "".

        Raises:
            InvalidArgument: it is not ready, in Triton's words (server src/http_server.cc, HandleTrace).
        """
        try:
            if model:
                self.lookup(model, "")
        except EdgeServeError:
            raise InvalidArgument(f"Request for unknown model : {model}") from None

    # ---- shared memory of clients -------------------------------------------------------------------------------

    def system_shm_status(self, name: str) -> list[RegionStatus]:
        """Return one region, or all when "".

        Raises:
            NotFound: no region has this name.
        """
        return self.regions.status(name)

    def register_system_shm(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register a part of a POSIX shared memory object, which requests may then use.

        Raises:
            Unsupported: the server does not allow it. EdgeServeError: as `SharedMemoryRegions.register`.
        """
        self.check_shm()
        self.regions.register(name, key, offset, byte_size)

    def unregister_system_shm(self, name: str) -> None:
        """Remove one region, or all when ""; an unknown one is no error.

        Raises:
            Unsupported: the server does not allow shared memory.
        """
        self.check_shm()
        self.regions.unregister(name)

    def cuda_shm_status(self, name: str) -> list[CudaRegionStatus]:
        """Return one region of a GPU's memory, or all when "". See `system_shm_status`."""
        return self.regions.cuda_status(name)

    def register_cuda_shm(self, name: str, handle: bytes, device: int, byte_size: int, done: Done) -> None:
        """Register memory of a GPU by its IPC handle; `done` gets None, or the error of
        `SharedMemoryRegions.register_cuda`.

        Raises:
            Unsupported: the server does not allow it.
        """
        self.check_shm()
        self._start(self.regions.register_cuda(name, handle, device, byte_size), done)

    def unregister_cuda_shm(self, name: str) -> None:
        """Remove one region of a GPU's memory, or all when "". See `unregister_system_shm`."""
        self.check_shm()
        self.regions.unregister_cuda(name)

    def check_shm(self) -> None:
        """Check that clients may register shared memory.

        Raises:
            Unsupported: they may not.
        """
        if not self.options.allow_client_shm:
            raise Unsupported(
                "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
            )

    # ---- model control ------------------------------------------------------------------------------------------

    def load_model(self, name: str, parameters: Mapping[str, Any], done: Done, *, nested: bool = False) -> None:
        """Load or reload a model; `done` gets None or the error.

        Args:
            nested: whether another load waits for this one, because its model asked for it.
        """
        self._start_load(self._load(name, parameters, nested), done)

    def unload_model(self, name: str, unload_dependents: bool, done: Done) -> None:
        """Unload a model; `done` gets None or the error."""
        self._start(self._unload(name, unload_dependents), done)

    def start_unload(self, name: str, unload_dependents: bool, done: Done) -> None:
        """Unload a model; `done` is called once the unload has started, because it may wait for the caller."""
        waiting = [done]

        def notify_once(error: EdgeServeError | None = None) -> None:
            if waiting:
                waiting.pop()(error)

        self._start(self._unload(name, unload_dependents, notify_once), notify_once)

    async def _load(self, name: str, parameters: Mapping[str, Any], nested: bool) -> None:
        self._check_running()
        check_name(name)
        self._check_explicit()
        await self.registry.load(name, Override.parse(name, parameters), nested=nested)

    async def _unload(self, name: str, unload_dependents: bool, begun: Callable[[], None] | None = None) -> None:
        self._check_running()
        self._check_explicit()
        await self.registry.unload(name, unload_dependents=unload_dependents, begun=begun)

    def _check_explicit(self) -> None:
        if not self.options.explicit:
            raise Unavailable("explicit model load / unload is not allowed if polling is enabled")

    def _start_load(self, work: Coroutine[Any, Any, T], done: Callable[[T | EdgeServeError], None]) -> None:
        """Start work that loads models, which `stop` cancels."""
        task = self._start(work, done)
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)

    def _start(self, work: Coroutine[Any, Any, T], done: Callable[[T | EdgeServeError], None]) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                result = await work
            except EdgeServeError as error:
                done(error)
            except Exception as error:  # a bug must not leave the client without an answer
                log.exception("model control failed")
                done(Internal(f"{type(error).__name__}: {error}"))
            else:
                done(result)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if task.cancelled():  # perhaps before its first step, so that `run` knows nothing of it
                work.close()
                done(Unavailable("Server exiting"))

        task = asyncio.get_running_loop().create_task(run(), name="model control")
        self._tasks.add(task)
        task.add_done_callback(ended)
        return task

    # ---- inference ----------------------------------------------------------------------------------------------

    def lease(self, name: str, version: str, nbytes: int) -> Room | None:
        """Return memory for a request body, or None for ordinary memory (a small body, or a model that does not serve).

        Raises:
            Unavailable: the server's tensor memory is used up.
        """
        try:
            served = self.lookup(name, version)
        except EdgeServeError:
            return None
        return served.lease(nbytes)

    def infer(
        self, served: Served, request: InferRequest, on_response: OnResponse, arrival: Arrival | None = None
    ) -> Ticket:
        """Run one request. `on_response` is called exactly once for an ordinary model; never raises.

        Args:
            served: the version that was looked up when the request arrived, and was acquired if that was not just now.
                It accepted the request, even if it was swapped, unloaded or stopped since. A request of a sequence
                still goes to the version that started it.
            arrival: the timestamps that the door has recorded for a trace; None = none.
        """
        if request.correlation_id:
            served = self.registry.sequence_version(
                served, request.model_version, request.correlation_id, request.flags
            )
        if request.validated is not served.signature:
            try:
                validate(request, served.signature)
            except EdgeServeError as error:
                if request.lease is not None:
                    request.lease.release()
                on_response(InferResponse(request.model_name, request.model_version, request.id, error=error))
                return ANSWERED
        if self.tracing.on:
            on_response = self.tracing.watch(request, served.name, served.version, on_response, arrival)
        return served.submit(request, on_response)

    def count_client_error(self, name: str, version: str, error: EdgeServeError) -> None:
        """Count a request that a door answers with `error`, if that is an error of the client.

        One that names a version which does not serve counts for the model's highest. Models that do not serve, and
        names that are none, have no counter.
        """
        of_client = 400 <= error.http_status < 500 and not isinstance(error, Cancelled)
        if of_client or isinstance(error, Unparsable):
            served = self.registry.serving(name, version) or self.registry.serving(name, "")
            if served is not None:
                served.statistics.client_errors += 1

    def _check_running(self) -> None:
        if self.stopping:
            raise Unavailable("Server exiting")
        if not self.started:
            raise Unavailable("Server not ready")


def _tensor_metadata(spec: TensorSpec, batched: bool) -> TensorMetadata:
    return TensorMetadata(spec.name, spec.datatype.name, (-1, *spec.dims) if batched else spec.dims)
