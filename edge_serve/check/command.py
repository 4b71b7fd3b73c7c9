"""`edge-serve check REPOSITORY`: is every model servable, and where it is not, which line to change.

Each model is opened in a worker as a load would, never served. What the configuration declares stands beside what
the model's own file tells. Models that have a golden test must pass it (`golden`). With `--infer` each model
answers one request (`infer`). For both, all models are loaded together, because models call each other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path

from edge_serve.aio.offload import offload
from edge_serve.backends.base import DECLARED_NAMES, ModelSpec
from edge_serve.backends.packs import Pack, Packs
from edge_serve.check.engine import BACKENDS, EngineReport, describe_engines, engine_lines
from edge_serve.check.golden import GoldenTrial, record, try_all
from edge_serve.check.golden import report as report_trial
from edge_serve.check.infer import CalledModels, SentRequest, ask_all
from edge_serve.clock import MonotonicClock
from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.config.model.json_form import model_config_from_json, model_config_to_json
from edge_serve.config.model.layout import CONFIG_FILE, advice_on_config, advice_on_ignored, advice_on_repository
from edge_serve.config.model.notes import notes_on
from edge_serve.config.model.text import find_line
from edge_serve.config.settings.server_values import BackendSetting, settings_of
from edge_serve.config.settings.table import nearest
from edge_serve.config.stages import load_model_config
from edge_serve.devices.find import find_devices
from edge_serve.errors import EdgeServeError, InvalidArgument, with_advice
from edge_serve.golden.reader import DIRECTORY, read_golden
from edge_serve.messages.line import one_line
from edge_serve.messages.tensors import same_shape
from edge_serve.models.control.registry import Registry
from edge_serve.models.extras.calls import ModelCalls
from edge_serve.models.load.loading import Loader, LoaderOptions
from edge_serve.models.repository.repository import FoundModel, Repository, versions
from edge_serve.models.repository.version_policy import choose
from edge_serve.records import frozen, slotted
from edge_serve.service import Service
from edge_serve.workers.front.hangs import KILL_SECONDS
from edge_serve.workers.front.workers import Hooks, ProcessLimits, Workers
from edge_serve.workers.launch.environments import Environments
from edge_serve.workers.launch.sandbox import Sandbox
from edge_serve.workers.memory.arena import Budget

#: tensor memory for warm-up requests
CHECK_BYTES = 1 << 30
CLOSE_SECONDS = 10.0
#: between two looks for workers that hang
WATCH_SECONDS = 1.0

NAMELESS = "found a directory whose name is not UTF-8: no client could ask for such a model; rename it"


@slotted
class ReportLine:
    """One tensor or setting: as declared, as found, and the line of config.pbtxt that declares it (0 = none)."""

    what: str
    declared: str
    found: str
    line: int = 0
    agrees: bool = True


@slotted
class ModelVerdict:
    """The outcome for one model.

    Attributes:
        failed: the part of the check that failed: `read`, `load`, `infer`, `golden` or `budget`; "" = none did.
        notes: what the model is served without, although its author may think otherwise.
        golden: one for each version, where the model has a golden test.
        recorded: what was recorded as its golden test; "" = nothing was asked to be.
        engines: the plans of a TensorRT model, of the newest version that was checked.
    """

    name: str
    error: str = ""
    failed: str = ""
    versions: list[int] = field(default_factory=list)
    lines: list[ReportLine] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    asked: list[SentRequest] = field(default_factory=list)
    golden: list[GoldenTrial] = field(default_factory=list)
    recorded: str = ""
    engines: list[EngineReport] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether the model can be served, passed its golden test, and answered as configured if it was asked."""
        return not self.failed

    def judge(self) -> None:
        """Note the first part of the check that failed."""
        trials = [trial for trial in self.golden if not trial.ok]
        if self.failed:
            return
        if any(one.problems for one in self.asked):
            self.failed = "infer"
        elif trials:
            self.failed = "budget" if all(trial.over_budget for trial in trials) else "golden"


@frozen
class CheckOptions:
    """How to check.

    Attributes:
        names: the models to check; empty = all of the repositories.
        infer_seconds: how long a model may take to answer a request; 0 = it is not asked.
        load_seconds: how long a model may take to load.
        record: write the answers of each model as its golden test, in place of comparing them.
        packs: where backends are looked for that are not part of edge-serve.
        backend_config: settings of backends, as the server has them.
    """

    auto_complete: bool = True
    names: tuple[str, ...] = ()
    infer_seconds: float = 0.0
    load_seconds: float = ProcessLimits().load
    record: bool = False
    packs: Packs = field(default_factory=Packs)
    backend_config: tuple[BackendSetting, ...] = ()

    def backend_settings(self, backend: str) -> dict[str, str]:
        """See `settings_of`."""
        return settings_of(backend, self.backend_config)


async def check_repository(roots: Sequence[Path], options: CheckOptions | None = None) -> AsyncIterator[ModelVerdict]:
    """Yield a verdict for each model, by name.

    Raises:
        InvalidArgument: a repository cannot be read, or a model that was asked for is not there.
    """
    options = options or CheckOptions()
    hooks = Hooks()
    limits = ProcessLimits(load=options.load_seconds, load_setting="--load-timeout")
    tried: set[str] = set()
    workers = Workers(limits, hooks=hooks, environments=Environments(sandbox=Sandbox(tuple(roots))))
    loading = LoaderOptions(
        auto_complete=options.auto_complete, backend_settings=options.backend_settings, packs=options.packs,
        proves=lambda name: name not in tried,
    )  # fmt: skip
    loader = Loader(workers, Budget(CHECK_BYTES), MonotonicClock(), loading)
    loader.devices = await offload(find_devices)
    repository = Repository(roots)
    registry = Registry(repository, loader)
    called = CalledModels(registry.lookup, chosen=bool(options.names))
    calls = ModelCalls(called, Service(registry, started=True))
    hooks.infer, hooks.control, hooks.report_idle = calls.infer, calls.control, calls.report_idle
    watch = asyncio.create_task(_watch(workers))
    try:
        models = _chosen(repository.scan(), repository, options.names)
        faults = [name for name in sorted(repository.faults) if name in (options.names or repository.faults)]
        for name in faults:
            yield ModelVerdict(name, repository.faults[name], "read")
        verdicts: list[ModelVerdict] = []
        prints = repository.fingerprints(models.values())  # all at once: what does not answer is known from here on
        tried.update(name for name, print in prints.items() if any(row[0] == DIRECTORY for row in print))
        together = bool(options.infer_seconds or options.record or tried)
        for found in models.values():
            own, stays = found.name in tried, together
            verdict = await check_model(found, repository, registry, workers, options, own_worker=own, stays=stays)
            verdicts.append(verdict)
            if not stays:
                yield verdict
        for verdict in verdicts if together else ():
            await _try(verdict, models[verdict.name], registry, called, options)
            yield verdict
        for directory in sorted(repository.nameless) if not options.names else ():
            yield ModelVerdict(repr(directory.name), NAMELESS, "read")
        if not models and not faults and not repository.nameless:
            raise InvalidArgument("; ".join(map(advice_on_repository, roots)))
    finally:
        watch.cancel()
        await registry.close(CLOSE_SECONDS)
        await workers.stop()


async def _try(
    verdict: ModelVerdict, found: FoundModel, registry: Registry, called: CalledModels, options: CheckOptions
) -> None:
    """Run the golden test of a loaded model, and with `--infer` send one more request; or record the golden test."""
    called.clear()
    if options.record and not verdict.failed:
        try:
            verdict.recorded = await record(found, registry, options.load_seconds)
        except EdgeServeError as error:
            verdict.error, verdict.failed = with_advice(error.message, called.advice()), "golden"
    elif not options.record:
        if options.infer_seconds:
            verdict.asked = await ask_all(verdict.name, registry, called, options.infer_seconds)
            called.clear()
        verdict.golden = await try_all(verdict.name, registry, options.load_seconds + KILL_SECONDS)
        for trial in verdict.golden:
            trial.problems += filter(None, [called.advice() if trial.problems else ""])
        verdict.judge()


async def _watch(workers: Workers) -> None:
    """Kill the workers that hang, as the server does: the limit of a load covers its warm-up by this alone."""
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        workers.watch()


def _chosen(models: dict[str, FoundModel], repository: Repository, names: Sequence[str]) -> dict[str, FoundModel]:
    """Return the models with these names, or all.

    Raises:
        InvalidArgument: there is no model of such a name.
    """
    for name in names:
        if name not in models and name not in repository.faults:
            close = nearest(name, models)
            hint = f", did you mean '{close}'?" if close else f": found {', '.join(models) or 'no models'}"
            places = ", ".join(f"'{root}'" for root in repository.roots)
            raise InvalidArgument(f"there is no model '{name}' in {places}{hint}")
    return {name: found for name, found in models.items() if name in (names or models)}


async def check_model(
    found: FoundModel, repository: Repository, registry: Registry, workers: Workers, options: CheckOptions, *,
    own_worker: bool, stays: bool,
) -> ModelVerdict:  # fmt: skip
    """Load the model as a server would. If it does not stay it is unloaded; an ensemble's members stay loaded.

    Args:
        own_worker: in a process that it shares with no other model, so that its memory can be told.
    """
    verdict = ModelVerdict(found.name, failed="read")
    try:
        note = repository.read(found, lambda: advice_on_config(found.directory, found.name))
        ignored = repository.read(found, lambda: advice_on_ignored(found.directory, found.name))
        verdict.notes = [*filter(None, [note]), *ignored]
        read_config = partial(load_model_config, found.directory, auto_complete=options.auto_complete, name=found.name)
        config = repository.read(found, read_config)
        there = repository.read(found, lambda: versions(found.directory))
        verdict.versions = choose(config.version_policy, there)
        repository.read(found, lambda: read_golden(found.directory))
        verdict.failed = "load"
        pack = repository.read(found, lambda: options.packs.find(config.backend, found.name, config.runtime))
        settings = options.backend_settings(config.backend)
        for version in verdict.versions if config.backend else ():
            if config.backend in BACKENDS:
                verdict.engines = await offload(describe_engines, found.directory / str(version), config, settings)
            model = await _described(found, config, version, pack, settings, workers)
            verdict.lines = _compare(found, config, model)
        await registry.load(found.name, own_worker=own_worker)
        verdict.notes += notes_on(registry.lookup(found.name, "").config)
        if verdict.lines and not verdict.lines[0].line:
            config.max_batch_size = registry.lookup(found.name, "").config.max_batch_size
            verdict.lines = _compare(found, config, model)
            first = verdict.lines[0]
            first.found = f"{first.found}, {config.max_batch_size} applies".removeprefix(", ")
        verdict.failed = ""
        if not stays:
            await registry.unload(found.name)
    except EdgeServeError as error:
        cause = error.__cause__
        text = cause.message if isinstance(cause, EdgeServeError) else error.message
        verdict.error = text.strip().removeprefix(f"load failed for model '{found.name}': ").removesuffix(";")
    return verdict


def _compare(found: FoundModel, config: pb.ModelConfig, model: pb.ModelConfig) -> list[ReportLine]:
    """Declared and found side by side. Empty when the model tells nothing about itself."""
    if not model.input and not model.output:
        return []
    text = _config_text(found)
    lines = [_batch_line(config, model, text)]
    for kind, ours, theirs in (("input", config.input, model.input), ("output", config.output, model.output)):
        declared = {tensor.name: _Face.of(tensor, config.max_batch_size) for tensor in ours}
        there = {tensor.name: _Face.of(tensor, model.max_batch_size) for tensor in theirs}
        for name in dict.fromkeys([*declared, *there]):
            said, real = declared.get(name), there.get(name)
            line = find_line(text, kind, "name", value=name)
            agrees = said is None or (real is not None and said.fits(real))
            shown = str(real or "(not in the model)")
            lines.append(ReportLine(f"{kind} {name}", str(said or ""), shown, line, agrees))
    return lines


async def _described(
    found: FoundModel, config: pb.ModelConfig, version: int, pack: Pack | None, settings: Mapping[str, str],
    workers: Workers,
) -> pb.ModelConfig:  # fmt: skip
    """Return the description of a loaded model; of one whose outputs are not all tensors, beside those that are listed.

    The question has what the worker needs to open the model (its environment, its library of operators), no tensors.
    """
    names = ("name", "backend", "platform", "default_model_filename", "parameters", "model_operations")
    known = {name: getattr(config, name) for name in names}
    bare, listed = pb.ModelConfig(**known), pb.ModelConfig(**known, output=config.output)
    called = "\n".join([*(tensor.name for tensor in config.input), *(tensor.name for tensor in config.output)])
    for asked in (bare, listed) if config.output else (bare,):
        with contextlib.suppress(EdgeServeError):  # the load, which follows, says why
            spec = ModelSpec(
                found.name, version, found.directory, found.directory / str(version), model_config_to_json(asked),
                pack=pack, backend_config={**settings, DECLARED_NAMES: called},
            )  # fmt: skip
            told = await workers.describe(spec, config.backend)
            return model_config_from_json(told) if told else bare
    return bare


@frozen
class _Face:
    """Type and full shape; a declared batch dimension is the -1 that it stands for."""

    datatype: str
    shape: tuple[int, ...]

    @staticmethod
    def of(tensor: pb.ModelInput | pb.ModelOutput, max_batch_size: int) -> _Face:
        inner = tuple(tensor.reshape.shape) if tensor.HasField("reshape") else tuple(tensor.dims)
        return _Face(pb.DataType.Name(tensor.data_type), (-1, *inner) if max_batch_size else inner)

    def fits(self, other: _Face) -> bool:
        """Same type and rank, and no dimension that is fixed to different sizes."""
        return self.datatype == other.datatype and same_shape(self.shape, other.shape)

    def __str__(self) -> str:
        return f"{self.datatype} {list(self.shape)}"


def _batch_line(config: pb.ModelConfig, model: pb.ModelConfig, text: str) -> ReportLine:
    """An ONNX file tells whether it can batch, not how much; other models can batch when they say so, and need not."""
    line = find_line(text, "max_batch_size")
    declared = str(config.max_batch_size) if line else ""
    if config.backend != "onnxruntime":
        return ReportLine("max_batch_size", declared, str(model.max_batch_size or "") if line else "", line)
    found = "has a batch dimension" if model.max_batch_size else "has no batch dimension"
    return ReportLine("max_batch_size", declared, found, line, not config.max_batch_size or model.max_batch_size > 0)


def _config_text(found: FoundModel) -> str:
    try:
        return (found.directory / CONFIG_FILE).read_text(errors="replace")
    except OSError:
        return ""


def report(verdict: ModelVerdict) -> str:
    """The verdict for a person."""
    head = "ok" if verdict.good else "FAILED"
    rows = [f"{head:<7} {verdict.name}  versions {verdict.versions or '-'}"]
    width = max([8, *(len(line.what) for line in verdict.lines)])
    wide = max([8, *(len(line.declared) for line in verdict.lines)])
    if verdict.lines:
        rows.append(f"          {'':<{width}}  {'declared':<{wide}}  found")
    for line in verdict.lines:
        where = f", see {CONFIG_FILE} line {line.line}" if line.line else ""
        mark = "" if line.agrees else f"   <- differs{where}"
        rows.append(f"          {line.what:<{width}}  {line.declared or '-':<{wide}}  {line.found or '-'}{mark}")
    texts = [text for engine in verdict.engines for text in engine_lines(engine)]
    texts += [*verdict.error.splitlines(), *(f"note: {text}" for text in verdict.notes)]
    texts += [text for asked in verdict.asked for text in _answer(asked)]
    texts += [verdict.recorded] if verdict.recorded else []
    texts += [text for trial in verdict.golden for text in report_trial(trial)]
    return "\n".join(map(one_line, [*rows, *(f"          {text}" for text in texts)]))  # with names from a model's file


def _answer(asked: SentRequest) -> list[str]:
    head = f"version {asked.version}, asked with {asked.request}:"
    if asked.problems:
        return [head, *(f"  {text}" for problem in asked.problems for text in problem.splitlines())]
    answer = ", ".join(asked.outputs) or "no outputs"
    if asked.responses != 1:
        answer = f"{asked.responses} responses" + (f", the first with {answer}" if asked.responses else "")
    return [f"{head} {answer} in {asked.seconds * 1000:.0f} ms"]
