"""Describes and opens models in worker processes, and decides which of them share one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from edge_serve.aio.offload import offload
from edge_serve.aio.tasks import start_task
from edge_serve.backends.base import InstanceSpec, ModelSpec
from edge_serve.backends.packs import Pack
from edge_serve.backends.parameters import parameters_of
from edge_serve.backends.tensorrt.plan import BUILT_PLAN, meta_path
from edge_serve.clock import Clock, MonotonicClock
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument
from edge_serve.messages.log_fields import model_fields
from edge_serve.messages.status import WorkerFacts
from edge_serve.workers.front.bls_broker import Hooks
from edge_serve.workers.front.busy_poll import PollPolicy
from edge_serve.workers.front.frames.batch import BatchReply
from edge_serve.workers.front.hangs import HANG_PARAMETER
from edge_serve.workers.front.link import Link, ModelListener
from edge_serve.workers.front.opened import OpenedModel, PlacedInstances
from edge_serve.workers.front.placement import InstanceRecord, ModelPlacement
from edge_serve.workers.front.process import ProcessLimits
from edge_serve.workers.front.worker import Worker
from edge_serve.workers.launch.cgroups import MEMORY_PARAMETER, ControlGroup, Groups, parse_bytes
from edge_serve.workers.launch.environments import Environments
from edge_serve.workers.launch.interpreter import Environment, Interpreter, own_interpreter
from edge_serve.workers.launch.spawn import Spawned
from edge_serve.workers.memory.arena import Arena
from edge_serve.workers.wire.layout import TensorLayout

log = logging.getLogger(__name__)

__all__ = ["BatchReply", "Hooks", "ModelListener", "OpenedModel", "ProcessLimits", "Workers"]

#: backends that share a worker by default, as those of packs do; a backend that came with its model never does
SHARED = frozenset({"onnxruntime", "onnxruntime_onnx", "tensorrt", "tensorrt_plan", "echo"})
#: after so many seconds, a worker that has described a model is released if the model is not opened
RESERVED_SECONDS = 120.0
#: how long it may take to look up the paths that are closed to a worker
_LOOK_UP_SECONDS = 10.0


class _Group(NamedTuple):
    """Models that share a worker, by the name of this and the state of the pack that it runs."""

    label: str
    state: str


class Workers:
    """All worker processes of the server; lives on one event loop.

    Args:
        first: processes that run already, each for the first worker that would start one like it; see `kill_unused`.

    Attributes:
        default_hang: takes the place of `ProcessLimits.hang` where that is 0.
        control_groups: for the processes that are started from now on; None = there are none.
    """

    def __init__(
        self,
        limits: ProcessLimits | None = None,
        clock: Clock | None = None,
        hooks: Hooks | None = None,
        environments: Environments | None = None,
        poll_policy: PollPolicy | None = None,
        first: Sequence[Spawned] = (),
    ) -> None:
        self._first = [*first]
        self._poll_policy = poll_policy or PollPolicy()
        if self._poll_policy.free_cores is not None:
            self._poll_policy.free_cores.own_seconds = lambda: time.process_time() + self.cpu_seconds()
        self._environments = environments or Environments()
        self._limits = limits or ProcessLimits()
        self._clock = clock or MonotonicClock()
        self._hooks = hooks or Hooks()
        self._groups: dict[_Group, Worker] = {}
        self._all: set[Worker] = set()
        self._reserved: dict[Path, tuple[Worker, asyncio.TimerHandle]] = {}
        self.default_hang = 0.0
        #: environments that are being unpacked or examined, each for a limited time
        self.preparing = 0
        self.control_groups: Groups | None = None
        self._told_no_groups = False

    @property
    def load_seconds(self) -> float:
        """How long a model may take to load."""
        return self._limits.load

    def workers(self) -> int:
        """Return the number of workers."""
        return len(self._all)

    def cpu_seconds(self) -> float:
        """Return the CPU time of all worker processes; it grows while models load."""
        return sum(worker.process.cpu_seconds() for worker in self._all)

    def watch(self) -> dict[str, float]:
        """Kill workers that hang. Return the seconds since each should have been killed, at most 0 for those that are
        well. To be called about once a second."""
        hang = self._limits.hang or self.default_hang
        return {f"{worker.label} (pid {worker.process.pid})": worker.watch(hang) for worker in self._all}

    def facts(self) -> list[WorkerFacts]:
        """Return the facts about each worker for the status document."""
        return sorted((worker.facts() for worker in self._all), key=lambda one: (one.label, one.pid))

    def runs(self, backend: str, pack: Pack | None = None, *, on_gpus: bool = False) -> bool:
        """Return whether the worker that models of this backend share is running."""
        worker = self._groups.get(_group(backend, pack, on_gpus))
        return worker is not None and not worker.gone

    async def describe(self, spec: ModelSpec, backend: str, *, own_worker: bool = False) -> dict[str, Any]:
        """Return the configuration that the model has completed, in the worker that `open` will then use.

        Raises:
            EdgeServeError: the model does not load.
        """
        before = self._take_reserved(spec)
        try:
            worker = await self._claim(spec, backend, own_worker, f"{spec.name}:{spec.version}")
        finally:
            if before is not None:  # only now, so that a shared worker is not stopped
                await self.release(before)
        try:
            completed = await worker.describe(spec, backend)
        except BaseException:
            await self.release(worker)
            raise
        timer = asyncio.get_running_loop().call_later(RESERVED_SECONDS, self._expire, spec)
        self._reserved[spec.version_directory] = (worker, timer)
        return completed

    async def release_reserved(self, spec: ModelSpec) -> None:
        """Release the worker of a model that was described and will not be opened."""
        worker = self._take_reserved(spec)
        if worker is not None:
            if worker.claims > 1:  # else it ends
                worker.discard_described(spec)
            await self.release(worker)

    def _expire(self, spec: ModelSpec) -> None:
        start_task(self.release_reserved(spec), f"release the worker of {spec.name}")

    def _take_reserved(self, spec: ModelSpec) -> Worker | None:
        reserved = self._reserved.pop(spec.version_directory, None)
        if reserved is None:
            return None
        reserved[1].cancel()
        return reserved[0]

    async def open(
        self,
        spec: ModelSpec,
        backend: str,
        instances: Sequence[InstanceSpec],
        listener: ModelListener,
        arena: Arena,
        *,
        own_worker: bool = False,
    ) -> OpenedModel:
        """Load a model version and make its instances.

        Args:
            spec: with the completed configuration.
            own_worker: in a process that it shares with no other model.

        Raises:
            EdgeServeError: it does not load; nothing of it is left.
        """
        timeout, hang = _number(spec, "execution_timeout_ms") / 1000, _number(spec, HANG_PARAMETER)
        link = Link(spec.name, TensorLayout(spec.config), arena, listener, timeout, hang, self._poll_policy)
        placed = await self.open_instances(spec, backend, dict(enumerate(instances)), link, own_worker=own_worker)
        return OpenedModel(self, link, placed)

    def stop_loading(self, model_directory: Path, reason: str) -> None:
        """Kill the processes in which a version of this model loads, and which have no other model."""
        for worker in self._all:
            worker.stop_loading(model_directory, reason)

    async def open_instances(
        self,
        spec: ModelSpec,
        backend: str,
        instances: Mapping[int, InstanceSpec],
        link: Link,
        beside: PlacedInstances | None = None,
        *,
        own_worker: bool = False,
    ) -> list[PlacedInstances]:
        """Open instances, by number.

        Args:
            beside: where others of the same model are; the new ones share their worker, unless each has its own.

        Raises:
            EdgeServeError: one does not open; nothing of them is left.
        """
        alone = spec.is_python  # each instance has a process of its own: it executes users' Python in the main thread
        groups = [[i] for i in instances] if alone else [list(instances)]
        placed: list[PlacedInstances] = []
        try:
            for group in groups:
                if beside is not None and not alone and not beside.worker.gone:
                    beside.worker.claims += 1
                    worker: Worker | None = beside.worker
                else:
                    worker = self._take_reserved(spec)
                if worker is not None and worker.gone:
                    await self.release(worker)
                    worker = None
                if worker is None:
                    worker = await self._claim(spec, backend, own_worker, instances[group[0]].name)
                placement = ModelPlacement(spec, backend, link, {i: InstanceRecord(i, instances[i]) for i in group})
                placement.beside = beside.placement if beside is not None and worker is beside.worker else None
                placed.append(PlacedInstances(worker, placement))
            results = await asyncio.gather(*(one.worker.open(one.placement) for one in placed), return_exceptions=True)
            failures = [result for result in results if result is not None]
            if failures:
                raise failures[0]
        except BaseException:  # cancelled, too
            await self._release_all(placed)
            raise
        return placed

    async def _release_all(self, placed: list[PlacedInstances]) -> None:
        for one in placed:
            if one.placement.is_open:
                with contextlib.suppress(EdgeServeError):
                    await one.worker.close(one.placement)
            await self.release(one.worker)

    async def _claim(self, spec: ModelSpec, backend: str, own_worker: bool, label: str) -> Worker:
        own_limit = _memory(spec)
        shares = backend in SHARED or (spec.pack is not None and not spec.is_python)
        shared = shares and not own_worker and not own_limit
        self.preparing += 1
        try:
            environment = await self._environments.take(spec)
        finally:
            self.preparing -= 1
        await self._confine(environment, None if shared else _own_files(spec))
        on_gpus = any(one.get("kind") == "KIND_GPU" for one in spec.config.get("instance_group") or ())
        group = _group(backend, spec.pack, on_gpus)
        worker = self._groups.get(group) if shared else None
        if worker is None or worker.gone:
            # memory that a process has used stays charged to the group that it was in; and the cache of engines, from
            # which models on GPUs are read, may have been made since
            limited = own_limit or self._limits.memory
            first = None if limited or on_gpus else self._take_first(backend, environment.interpreter)
            try:
                name = group.label if shared else label
                worker = Worker(
                    name, spec.is_python, self._limits, self._clock, self._hooks, environment,
                    None if shared else model_fields(spec.name, spec.version), self._group_maker(own_limit),
                    first,
                )  # fmt: skip
            except BaseException:
                environment.release()
                raise
            self._all.add(worker)
            if shared:
                self._groups[group] = worker
        else:
            environment.release()
        worker.claims += 1
        return worker

    def _take_first(self, backend: str, interpreter: Interpreter) -> Spawned | None:
        """Return one of the first processes that was started in the same way, and runs."""
        backend = backend.removesuffix("_onnx")  # platform: "onnxruntime_onnx"
        for one in self._first:
            if (one.backend, one.interpreter) == (backend, interpreter) and one.popen.poll() is None:
                self._first.remove(one)
                return one
        return None

    def kill_unused(self) -> None:
        """Kill the first processes that no worker has taken, once the models are loaded."""
        while self._first:
            self._first.pop().kill()

    async def interpreter_for(self, own: list[Path]) -> Interpreter:
        """Return our interpreter for a process that works on the files of one model, confined as a worker.

        Raises:
            Internal: see `_confine`.
        """
        environment = Environment(own_interpreter())
        await self._confine(environment, own)
        return environment.interpreter

    async def _confine(self, environment: Environment, own: list[Path] | None) -> None:
        """Confine the environment of a worker, if there is a sandbox. Closed paths are looked up in a thread.

        Raises:
            Internal: they lie on a file system that does not answer.
        """
        sandbox = self._environments.sandbox
        if sandbox is None:
            return
        try:
            confining = offload(sandbox.confine, environment.interpreter, own, environment.root)
            environment.interpreter = await asyncio.wait_for(confining, _LOOK_UP_SECONDS)
        except BaseException as error:
            environment.release()
            if isinstance(error, asyncio.TimeoutError):
                text = "the home directory, $TMPDIR, or a directory of the settings lies on a file system that hangs"
                raise Internal(f"no worker can be started: {text}") from None
            raise

    def _group_maker(self, own_limit: int) -> Callable[[str], ControlGroup] | None:
        groups, limit = self.control_groups, own_limit or self._limits.memory
        if groups is None and limit and not self._told_no_groups:
            self._told_no_groups = True
            asked = MEMORY_PARAMETER if own_limit else "--worker-memory-max-bytes"
            log.warning("%s has no effect: workers have memory limits only under systemd, with Delegate=memory", asked)
        return None if groups is None else lambda label: groups.make(label, limit)

    async def release(self, worker: Worker) -> None:
        """Release the claim of a load or a model on `worker`, which is stopped with the last one."""
        worker.claims -= 1
        if worker.claims:
            return
        self._groups = {key: known for key, known in self._groups.items() if known is not worker}
        await worker.stop()
        worker.environment.release()
        self._all.discard(worker)

    async def stop(self, timeout: float | None = None) -> None:
        """Stop every process, and kill those that still run after `timeout` seconds. Models should be closed before."""
        for _, timer in self._reserved.values():
            timer.cancel()
        self._reserved.clear()
        self.kill_unused()
        await asyncio.gather(*(worker.stop(timeout) for worker in self._all))
        for worker in self._all:
            worker.environment.release()
        self._all.clear()
        self._groups.clear()


def _group(backend: str, pack: Pack | None, on_gpus: bool) -> _Group:
    """Return the group of models that share a worker. Those on GPUs share one of their own: a device that is lost ends
    it. A pack that was replaced gets another one: the old one may import files of the new pack."""
    name = pack.name if pack is not None else backend
    return _Group(f"{name}-gpu" if on_gpus else name, pack.state if pack is not None else "")


def _own_files(spec: ModelSpec) -> list[Path]:
    """Return the files and directories of a version that its worker reads: those of the model, and a built engine."""
    plan = spec.backend_config.get(BUILT_PLAN)
    return [spec.model_directory, *((Path(plan), meta_path(Path(plan))) if plan else ())]


def _memory(spec: ModelSpec) -> int:
    """Return the model parameter EDGE_SERVE_MEMORY_MAX in bytes; 0 = it is not given.

    Raises:
        InvalidArgument: it is no number of bytes.
    """
    try:
        return parse_bytes(parameters_of(spec.config).get(MEMORY_PARAMETER, "0"))
    except ValueError as error:
        raise InvalidArgument(f"parameter {MEMORY_PARAMETER} of model '{spec.name}': {error}") from None


def _number(spec: ModelSpec, parameter: str) -> float:
    """Return the value of a model parameter that is a time; 0 = it is not given.

    Raises:
        InvalidArgument: it is no number, or a negative one.
    """
    text = parameters_of(spec.config).get(parameter, "0")
    try:
        value = float(text)
        if not value >= 0:  # NaN is not either
            raise ValueError("no time")
    except ValueError:
        text = f"parameter {parameter} of model '{spec.name}' is '{text}', expected a number that is not below 0"
        raise InvalidArgument(text) from None
    return value
