"""Builds the engines of models at load, where the configuration asks for it (`EDGE_SERVE_BUILD_ENGINE`).

The front end starts the process that builds (`engines/process`), before a worker opens the model. So the time limit of
a worker's load does not apply, other models keep serving, and an unload cancels the build.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_serve.aio.offload import offload
from edge_serve.backends.base import ModelSpec
from edge_serve.backends.tensorrt.plan import PLATFORM, rebuild_command
from edge_serve.devices.device import Gpu, Gpus
from edge_serve.engines.cache import EngineLease
from edge_serve.engines.settings import build_limit, cache_settings
from edge_serve.errors import Cancelled, Internal, InvalidArgument, Unavailable
from edge_serve.messages.log_fields import model_fields
from edge_serve.models.repository.repository import namespace_of, plain_name
from edge_serve.observe.metrics.source import RunningBuild
from edge_serve.workers.launch.interpreter import Interpreter

if TYPE_CHECKING:  # imported by the first model on a GPU: all others start sooner
    from edge_serve.engines.request import BuildProgress, BuiltEngine

log = logging.getLogger(__name__)

#: between two lines about one build, seconds
_LOG_SECONDS = 30.0

OnBuild = Callable[[str, int, str], None]


class EngineBuilds:
    """The builds of one server.

    Args:
        settings: `--backend-config=tensorrt`.
        interpreter_for: returns our interpreter, confined to the files of one model and those that are named.
        environ: $CACHE_DIRECTORY counts.

    Attributes:
        on_progress: called about once a second with the model, the version, and the progress as text.
    """

    def __init__(
        self,
        settings: Callable[[], Mapping[str, str]],
        interpreter_for: Callable[[list[Path]], Awaitable[Interpreter]],
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.on_progress: OnBuild = lambda name, version, text: None
        self._settings = settings
        self._interpreter_for = interpreter_for
        self._environ = environ
        #: (model, version) -> its build, and when it began
        self._running: dict[tuple[str, int], tuple[asyncio.Task[BuiltEngine], float]] = {}

    async def make_directory(self) -> None:
        """Make the cache. Call it before the first worker starts: its sandbox closes directories that appear later."""
        with contextlib.suppress(InvalidArgument):  # a setting that each build refuses
            await offload(_make_directory, cache_settings(self._settings(), self._environ).directory)

    async def open(self, name: str, spec: ModelSpec, gpus: Gpus) -> EngineLease | None:
        """Return the engine of a version, from the cache or built now; None = its own plan is served.

        Args:
            name: the model's key in the registry.

        Raises:
            EdgeServeError: the engine cannot be built.
            Cancelled: the model is unloaded.
        """
        used = _gpus_of(spec, gpus) if spec.config.get("backend") == PLATFORM else []
        if not used:
            return None
        from edge_serve.engines.model import builds_at_load

        if not await offload(builds_at_load, spec.config, spec.version_directory, used[0].id, gpus):
            return None
        if len({(one.name, one.capability) for one in used}) > 1:
            kinds = ", ".join(str(one) for one in used)
            raise InvalidArgument(
                f"model '{name}' has instances on GPUs of several kinds ({kinds}), and an engine runs on one: build a "
                f"plan on each ({rebuild_command(spec.name)} --device=N), and name them in cc_model_filenames"
            )
        settings = self._settings()
        limit = build_limit(settings)
        built = await self._run(name, spec.version, self._build(name, spec, gpus, used[0].id, settings), limit)
        extra = model_fields(name, spec.version)
        how = "is in the cache" if built.cached else f"was built in {built.seconds:.1f} s"
        log.info("model %s version %d: the engine %s: %s", name, spec.version, how, built.plan, extra=extra)
        try:
            return EngineLease(built.plan, built.seconds)
        except OSError as error:
            raise Internal(f"the engine {built.plan} cannot be read: {error.strerror}; load the model again") from error

    def running(self) -> Iterator[RunningBuild]:
        """Yield the builds that run or wait now."""
        now = time.monotonic()
        for (name, version), (_, began) in sorted(self._running.items()):
            yield RunningBuild(plain_name(name), str(version), now - began, namespace_of(name) or None)

    def cancel(self, name: str) -> None:
        """Cancel the builds of a model, whose loads then fail."""
        for (model, _), (task, _) in self._running.items():
            if model == name:
                task.cancel()

    async def _build(
        self, name: str, spec: ModelSpec, gpus: Gpus, device: int, settings: Mapping[str, str]
    ) -> BuiltEngine:
        from edge_serve.engines.model import model_request
        from edge_serve.engines.process import run_build

        cache = cache_settings(settings, self._environ)
        request = await offload(
            model_request, spec.config, spec.version_directory, cache, gpus, settings, device=device
        )
        await offload(_make_directory, cache.directory)
        interpreter = await self._interpreter_for([spec.model_directory, cache.directory.absolute()])
        report = _ProgressLogger(name, spec.version, self.on_progress)
        return await run_build(request, interpreter.command, interpreter.variables, report)

    async def _run(
        self, name: str, version: int, building: Coroutine[Any, Any, BuiltEngine], limit: float
    ) -> BuiltEngine:
        """Wait for a build. `cancel` and the limit end it, from its preparation on."""
        task = asyncio.create_task(building, name=f"build {name}")
        self._running[name, version] = task, time.monotonic()
        try:
            await asyncio.wait({task}, timeout=limit)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
                raise Unavailable(
                    f"the engine was not built within {limit:g} s: raise "
                    "--backend-config=tensorrt,engine-build-secs=N, or lower the effort (--optimization-level)"
                )
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        finally:
            del self._running[name, version]
        if task.cancelled():
            raise Cancelled(f"the build of the engine was cancelled: model '{name}' is unloaded")
        return task.result()


class _ProgressLogger:
    """Passes the progress of a build on, and logs it now and then."""

    def __init__(self, name: str, version: int, on_progress: OnBuild) -> None:
        self._name = name
        self._version = version
        self._on_progress = on_progress
        self._logged = time.monotonic()

    def __call__(self, progress: BuildProgress) -> None:
        self._on_progress(self._name, self._version, str(progress))
        if time.monotonic() - self._logged >= _LOG_SECONDS:
            self._logged = time.monotonic()
            extra = model_fields(self._name, self._version)
            log.info("model %s version %d: %s", self._name, self._version, progress, extra=extra)


def _make_directory(path: Path) -> None:
    """Make the cache, below which the process that builds may write; it reports a directory that is missing."""
    with contextlib.suppress(OSError):
        path.mkdir(mode=0o750, parents=True, exist_ok=True)


def _gpus_of(spec: ModelSpec, gpus: Gpus) -> list[Gpu]:
    """Return the GPUs that the instances of a version are on."""
    groups = spec.config.get("instance_group") or ()
    used = {int(id) for group in groups if group.get("kind") == "KIND_GPU" for id in group.get("gpus") or ()}
    return [one for one in gpus.found if one.id in used]
