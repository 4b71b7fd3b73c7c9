"""`edge-serve check REPOSITORY`: is every model servable, and where it is not, which line to change.

Each model is opened in a worker as a load would, never served. What the configuration declares stands beside what
the model's own file tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edge_serve.backends.base import ModelSpec
from edge_serve.config import model_config_pb2 as pb
from edge_serve.config.json_form import model_config_from_json, model_config_to_json
from edge_serve.config.model import CONFIG_FILE, load_model_config, merge_completed, settle_instances
from edge_serve.config.signature import read_labels
from edge_serve.errors import EdgeServeError
from edge_serve.models.repository import Found, Repository, versions
from edge_serve.models.version_policy import choose
from edge_serve.workers.pool import Workers


@dataclass(slots=True)
class Line:
    """One tensor or setting: as declared, as found, and the line of config.pbtxt that declares it (0 = none)."""

    what: str
    declared: str
    found: str
    line: int = 0

    @property
    def agrees(self) -> bool:
        """Nothing needs changing here."""
        return not self.declared or not self.found or self.declared == self.found


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
    workers = Workers()
    try:
        for found in Repository(roots).scan().values():
            yield await check_model(found, workers, auto_complete=auto_complete)
    finally:
        await workers.stop()


async def check_model(found: Found, workers: Workers, *, auto_complete: bool) -> Verdict:
    """Go through the steps of a load, all but serving."""
    verdict = Verdict(found.name)
    if found.ambiguous:
        verdict.error = f"model '{found.name}' appears in two or more repositories; rename or remove one"
        return verdict
    try:
        config = load_model_config(found.directory, auto_complete=auto_complete)
        verdict.versions = choose(config.version_policy, versions(found.directory))
        if not verdict.versions:
            verdict.error = "no version directory fits the version policy; put the model into a directory named '1'"
            return verdict
        read_labels(config, found.directory)
        config = settle_instances(config)
        for version in verdict.versions:
            verdict.lines = await _compare(found, config, version, workers)
            document = await workers.describe(_spec(found, config, version), config.backend, own_worker=True)
            merge_completed(config, document if auto_complete else None)
    except EdgeServeError as error:
        verdict.error = error.message.strip()
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
    lines = [
        Line(
            "max_batch_size",
            str(config.max_batch_size) if "max_batch_size" in text else "",
            str(model.max_batch_size),
            _line_of(text, "max_batch_size"),
        )
    ]
    for kind, declared, told_tensors in (
        ("input", {t.name: t for t in config.input}, {t.name: t for t in model.input}),
        ("output", {t.name: t for t in config.output}, {t.name: t for t in model.output}),
    ):
        for name in dict.fromkeys([*declared, *told_tensors]):
            ours, theirs = declared.get(name), told_tensors.get(name)
            lines.append(
                Line(
                    f"{kind} {name}",
                    _describe(ours, config.max_batch_size) if ours else "",
                    _describe(theirs, model.max_batch_size) if theirs else "(not in the model)",
                    _line_of(text, f'"{name}"'),
                )
            )
    return lines


def _spec(found: Found, config: pb.ModelConfig, version: int) -> ModelSpec:
    return ModelSpec(found.name, version, found.directory, found.directory / str(version), model_config_to_json(config))


def _describe(tensor: pb.ModelInput | pb.ModelOutput, max_batch_size: int) -> str:
    """Type and full shape; a declared batch dimension is shown as the -1 that it stands for."""
    inner = list(tensor.reshape.shape) if tensor.HasField("reshape") else list(tensor.dims)
    shape = [-1, *inner] if max_batch_size else inner
    return f"{pb.DataType.Name(tensor.data_type)} {shape}"


def _config_text(found: Found) -> str:
    try:
        return (found.directory / CONFIG_FILE).read_text(errors="replace")
    except OSError:
        return ""


def _line_of(text: str, needle: str) -> int:
    return next((number for number, line in enumerate(text.splitlines(), 1) if needle in line), 0)


def report(verdict: Verdict) -> str:
    """The verdict for a person."""
    head = "FAILED" if verdict.error else "ok"
    rows = [f"{head:<7} {verdict.name}  versions {verdict.versions or '-'}"]
    width = max([8, *(len(line.what) for line in verdict.lines)])
    wide = max([8, *(len(line.declared) for line in verdict.lines)])
    if verdict.lines:
        rows.append(f"          {'':<{width}}  {'declared':<{wide}}  found")
    for line in verdict.lines:
        mark = "" if line.agrees else f"   <- differs, see {CONFIG_FILE} line {line.line}"
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
