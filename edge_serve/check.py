"""`edge-serve check REPOSITORY`: is every model servable, and where it is not, which line to change.

Each model is opened in a worker as a load would, never served. What the configuration declares stands beside what
the model's own file tells.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edge_serve.backends.base import ModelSpec
from edge_serve.clock import MonotonicClock
from edge_serve.config import model_config_pb2 as pb
from edge_serve.config.json_form import model_config_from_json, model_config_to_json
from edge_serve.config.model import CONFIG_FILE, load_model_config
from edge_serve.errors import EdgeServeError
from edge_serve.models.loading import Loader, LoaderOptions
from edge_serve.models.registry import Registry
from edge_serve.models.repository import Found, Repository, versions
from edge_serve.models.version_policy import choose
from edge_serve.workers.arena import Budget
from edge_serve.workers.environments import Environments
from edge_serve.workers.pool import Workers
from edge_serve.workers.sandbox import Sandbox

#: tensor memory for warm-up requests
CHECK_BYTES = 1 << 30
CLOSE_SECONDS = 10.0

NAMELESS = "found a directory whose name is not UTF-8: no client could ask for such a model; rename it"


@dataclass(slots=True)
class Line:
    """One tensor or setting: as declared, as found, and the line of config.pbtxt that declares it (0 = none)."""

    what: str
    declared: str
    found: str
    line: int = 0
    agrees: bool = True


@dataclass(slots=True)
class Verdict:
    """The outcome for one model."""

    name: str
    error: str = ""
    versions: list[int] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)


async def check_repository(roots: Sequence[Path], *, auto_complete: bool = True) -> AsyncIterator[Verdict]:
    """A verdict per model, by name.

    Raises:
        InvalidArgument: a repository cannot be read.
    """
    clock = MonotonicClock()
    sandbox = Sandbox(tuple(roots))
    workers = Workers(environments=Environments(confine=sandbox.probe), sandbox=sandbox)
    loader = Loader(workers, Budget(CHECK_BYTES), clock, LoaderOptions(auto_complete=auto_complete))
    repository = Repository(roots)
    registry = Registry(repository, loader)
    try:
        models = repository.scan()
        for name in sorted(repository.faults):
            yield Verdict(name, repository.faults[name])
        for found in models.values():
            yield await check_model(found, registry, workers, auto_complete=auto_complete)
        for directory in sorted(repository.nameless):
            yield Verdict(repr(directory.name), NAMELESS)
    finally:
        await registry.close(CLOSE_SECONDS)
        await workers.stop()


async def check_model(found: Found, registry: Registry, workers: Workers, *, auto_complete: bool) -> Verdict:
    """Load the model as a server would, then let it go; an ensemble's members stay loaded until the end."""
    verdict = Verdict(found.name)
    try:
        config = load_model_config(found.directory, auto_complete=auto_complete)
        verdict.versions = choose(config.version_policy, versions(found.directory))
        for version in verdict.versions if config.backend else ():
            verdict.lines = await _compare(found, config, version, workers)
        await registry.load(found.name)
        await registry.unload(found.name)
    except EdgeServeError as error:
        cause = error.__cause__
        verdict.error = (cause.message if isinstance(cause, EdgeServeError) else error.message).strip()
    return verdict


async def _compare(found: Found, config: pb.ModelConfig, version: int, workers: Workers) -> list[Line]:
    """Declared and found side by side. Empty when the model tells nothing about itself."""
    bare = pb.ModelConfig(
        name=config.name,
        backend=config.backend,
        platform=config.platform,
        default_model_filename=config.default_model_filename,
    )
    try:
        told = await workers.describe(_spec(found, bare, version), config.backend, own_worker=True)
    except EdgeServeError:
        return []  # the real description, which follows, says why
    model = model_config_from_json(told) if told else bare
    if not model.input and not model.output:
        return []
    text = _config_text(found)
    lines = [_batch_line(config, model, text)]
    for kind, ours, theirs in (("input", config.input, model.input), ("output", config.output, model.output)):
        declared = {tensor.name: _Face.of(tensor, config.max_batch_size) for tensor in ours}
        there = {tensor.name: _Face.of(tensor, model.max_batch_size) for tensor in theirs}
        for name in dict.fromkeys([*declared, *there]):
            line = _line_of(text, rf"""["']{re.escape(name)}["']""")
            lines.append(_tensor_line(f"{kind} {name}", declared.get(name), there.get(name), line))
    return lines


@dataclass(frozen=True, slots=True)
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
        return (self.datatype, len(self.shape)) == (other.datatype, len(other.shape)) and all(
            -1 in (a, b) or a == b for a, b in zip(self.shape, other.shape, strict=True)
        )

    def __str__(self) -> str:
        return f"{self.datatype} {list(self.shape)}"


def _batch_line(config: pb.ModelConfig, model: pb.ModelConfig, text: str) -> Line:
    """A model file tells whether it can batch, not how much."""
    return Line(
        "max_batch_size",
        str(config.max_batch_size),
        "has a batch dimension" if model.max_batch_size else "has no batch dimension",
        _line_of(text, "max_batch_size"),
        agrees=not config.max_batch_size or model.max_batch_size > 0,
    )


def _tensor_line(what: str, declared: _Face | None, found: _Face | None, line: int) -> Line:
    agrees = declared is None or (found is not None and declared.fits(found))
    return Line(what, str(declared or ""), str(found or "(not in the model)"), line, agrees)


def _spec(found: Found, config: pb.ModelConfig, version: int) -> ModelSpec:
    return ModelSpec(found.name, version, found.directory, found.directory / str(version), model_config_to_json(config))


def _config_text(found: Found) -> str:
    try:
        return (found.directory / CONFIG_FILE).read_text(errors="replace")
    except OSError:
        return ""


def _line_of(text: str, pattern: str) -> int:
    return next((number for number, line in enumerate(text.splitlines(), 1) if re.search(pattern, line)), 0)


def report(verdict: Verdict) -> str:
    """The verdict for a person."""
    head = "FAILED" if verdict.error else "ok"
    rows = [f"{head:<7} {verdict.name}  versions {verdict.versions or '-'}"]
    width = max([8, *(len(line.what) for line in verdict.lines)])
    wide = max([8, *(len(line.declared) for line in verdict.lines)])
    if verdict.lines:
        rows.append(f"          {'':<{width}}  {'declared':<{wide}}  found")
    for line in verdict.lines:
        where = f", see {CONFIG_FILE} line {line.line}" if line.line else ""
        mark = "" if line.agrees else f"   <- differs{where}"
        rows.append(f"          {line.what:<{width}}  {line.declared or '-':<{wide}}  {line.found or '-'}{mark}")
    if verdict.error:
        rows += [f"          {text}" for text in verdict.error.splitlines()]
    return "\n".join(rows)


def run(roots: Sequence[Path], *, auto_complete: bool = True) -> int:
    """Check and print; 0 when every model can be served."""

    async def main() -> int:
        failed = total = 0
        async for verdict in check_repository(roots, auto_complete=auto_complete):
            print(report(verdict), flush=True)
            failed += bool(verdict.error)
            total += 1
        print(f"\n{total - failed} of {total} models can be served")
        return 1 if failed else 0

    return asyncio.run(main())
