"""`bundle`, `release`, `floor`: make a bundle, publish a release, forbid old releases."""

from __future__ import annotations

import argparse
import math
import os
import time
from contextlib import suppress
from pathlib import Path

from ota.documents.manifest import CODE
from ota.errors import OtaError, UsageError
from ota.publish.commands import DIRECTORY, Subcommands, add, open_workspace, print_result


def add_parsers(subcommands: Subcommands) -> None:
    """Add the subcommands."""
    bundle = add(subcommands, "bundle", _bundle, "make a bundle out of model directories", workspace=False)
    bundle.add_argument("bundle", metavar="NAME", help="for one model the model's name")
    bundle.add_argument("--release", type=int, required=True, metavar="N", help="the number; it becomes the version")
    bundle.add_argument(
        "--counter", type=int, default=0, metavar="N", help="rises with each release (default: the number)"
    )
    bundle.add_argument("--family", default="", help="whose keys sign it (default: NAME)")
    bundle.add_argument("--out", type=Path, metavar="DIR", help="a new directory (default: NAME.N)")
    bundle.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="[NAME=]DIR",
        required=True,
        help="a model directory (repeatable)",
    )
    bundle.add_argument("--version", action="append", default=[], metavar="[NAME=]N", help="default: the highest one")
    bundle.add_argument(
        "--variants", type=Path, metavar="FILE", help="TOML or JSON: which files are for which hardware"
    )
    bundle.add_argument(
        "--elsewhere",
        action="append",
        default=[],
        metavar="MODEL",
        help="an ensemble's member that another bundle brings",
    )
    bundle.add_argument("--needs-agent", default="", metavar="VERSION", help="the lowest edge-ota, such as 1.4")
    bundle.add_argument("--needs-server", default="", metavar="VERSION", help="the lowest edge-serve")
    bundle.add_argument(
        "--provenance", action="append", default=[], metavar="NAME=TEXT", help="such as sbom=sha256:..."
    )
    _add_golden_flags(bundle)

    release = add(subcommands, "release", _release, "publish a bundle")
    release.add_argument("bundle", type=Path, metavar="DIR", help="what 'bundle' made")
    release.add_argument(
        "--engines", action="store_true", help="the keys of engines approve the files that devices run as code"
    )

    floor = add(subcommands, "floor", _floor, "let no device run a release that is older")
    floor.add_argument("bundle", metavar="NAME")
    floor.add_argument("release", type=int, metavar="N", help="the oldest release that may run")
    floor.add_argument("--family", default="", help="needed if several families have this bundle")


def _add_golden_flags(bundle: argparse.ArgumentParser) -> None:
    golden = bundle.add_argument_group("golden test")
    golden.add_argument(
        "--golden-from", default="", metavar="URL", help="a server with the models, which computes the outputs"
    )
    golden.add_argument(
        "--golden-inputs",
        action="append",
        default=[],
        metavar="[MODEL=]FILE",
        help=".npz or .json (default: the existing golden/, else model_warmup)",
    )
    golden.add_argument(
        "--budget", action="append", default=[], metavar="[MODEL:]NAME=N", help="p95_ms, memory_bytes, requests"
    )
    golden.add_argument("--rtol", type=float, help="relative tolerance of all outputs")
    golden.add_argument("--atol", type=float, help="absolute tolerance of all outputs")


def _bundle(arguments: argparse.Namespace) -> int:
    from ota.publish.bundles.build import Recipe, build
    from ota.publish.bundles.golden import GoldenOptions

    models = _models(arguments)
    golden = GoldenOptions(
        arguments.golden_from, _inputs(arguments, models), _budgets(arguments, models), _tolerances(arguments)
    )
    recipe = Recipe(
        bundle=arguments.bundle,
        family=arguments.family or arguments.bundle,
        release=arguments.release,
        models=models,
        versions={model: _number(text) for model, text in _named(arguments.version, models, "--version")},
        counter=arguments.counter,
        variants=arguments.variants,
        elsewhere=tuple(arguments.elsewhere),
        needs_agent=arguments.needs_agent,
        needs_server=arguments.needs_server,
        provenance=_pairs(arguments.provenance),
        golden=golden,
    )
    out = arguments.out or Path(f"{arguments.bundle}.{arguments.release}")
    manifest = build(recipe, out)
    kinds = ", ".join(f"{one.id} ({one.kind})" for one in manifest.variants)
    size = sum({entry.sha256: entry.size for _, entry in manifest.every_file()}.values())
    print(f"{out}: {manifest.bundle} {manifest.release}, {size} bytes, variants: {kinds}")
    if fault := _missing_family(manifest.family, f"{manifest.bundle} {manifest.release}"):
        print(f"note: {fault}")
    untested = [
        model for model in models if not any(one.path == "golden/golden.json" for one in manifest.models[model])
    ]
    if untested:
        print(f"note: {', '.join(untested)} without a golden test: a device can only see that it loads (--golden-from)")
    code = " --engines" if any(one.kind in CODE for one in manifest.variants) else ""
    print(f"next: 'edge-ota publish release {out}{code}'")
    return 0


def _missing_family(family: str, bundle: str) -> str:
    """Return that the published metadata of the directory that the environment names lacks a family, which `release`
    will refuse; "" = it has the family, or cannot be read: `bundle` does not need it."""
    if directory := os.environ.get(DIRECTORY, ""):
        from ota.publish.release import find_missing_family
        from ota.publish.repository import read_state

        with suppress(OtaError):
            return find_missing_family(read_state(Path(directory)), family, bundle)
    return ""


def _models(arguments: argparse.Namespace) -> dict[str, Path]:
    models: dict[str, Path] = {}
    for one in arguments.model:
        name, equals, path = one.partition("=")
        directory = Path(path if equals else one)
        name = name if equals else (arguments.bundle if len(arguments.model) == 1 else directory.resolve().name)
        if name in models:
            raise UsageError(f"--model gives {name} twice: {models[name]} and {directory}")
        models[name] = directory
    return models


def _named(found: list[str], models: dict[str, Path], flag: str) -> list[tuple[str, str]]:
    """Return model and value of each `[NAME=]VALUE`."""
    result = []
    for one in found:
        name, equals, value = one.partition("=")
        if not equals:
            name, value = (next(iter(models)), one) if len(models) == 1 else ("", one)
        if name not in models:
            raise UsageError(f"{flag} {one!r}: expected MODEL=VALUE with one of {', '.join(models)}")
        result.append((name, value))
    return result


def _inputs(arguments: argparse.Namespace, models: dict[str, Path]) -> dict[str, list[Path]]:
    inputs: dict[str, list[Path]] = {}
    for model, file in _named(arguments.golden_inputs, models, "--golden-inputs"):
        inputs.setdefault(model, []).append(Path(file))
    return inputs


def _budgets(arguments: argparse.Namespace, models: dict[str, Path]) -> dict[str, dict[str, float]]:
    from ota.publish.bundles.golden import parse_budget

    budgets: dict[str, dict[str, float]] = {}
    for text in arguments.budget:
        model, word, number = parse_budget(text)
        if not model and len(models) == 1:
            model = next(iter(models))
        if model not in models:
            raise UsageError(f"--budget {text!r}: expected MODEL:NAME=NUMBER with one of {', '.join(models)}")
        budgets.setdefault(model, {})[word] = number
    return budgets


def _tolerances(arguments: argparse.Namespace) -> dict[str, float]:
    found = {"rtol": arguments.rtol, "atol": arguments.atol}
    for name, value in found.items():
        if value is not None and not 0 <= value < math.inf:
            raise UsageError(f"--{name} {value}: expected a finite number that is 0 or more")
    return {name: value for name, value in found.items() if value is not None}


def _pairs(found: list[str]) -> dict[str, str]:
    pairs = {}
    for one in found:
        name, equals, text = one.partition("=")
        if not equals:
            raise UsageError(f"{one!r}: expected NAME=TEXT")
        pairs[name] = text
    return pairs


def _number(text: str) -> int:
    if not text.isdigit():
        raise UsageError(f"--version {text!r}: expected a version directory's number")
    return int(text)


def _release(arguments: argparse.Namespace) -> int:
    from ota.publish.release import read_bundle, release

    with open_workspace(arguments) as (workspace, state):
        bundle = read_bundle(arguments.bundle)
        named = f"{bundle.manifest.bundle} {bundle.manifest.release}"
        waiting = release(workspace, state, bundle, arguments.engines, time.time())
        status = print_result(
            workspace, waiting, f"published: {named}; devices take it after 'edge-ota publish rollout start'"
        )
        if any(one.role == "engines" for one in waiting):
            print("after 'collect', give this command again: the release itself follows its approvals")
        return status


def _floor(arguments: argparse.Namespace) -> int:
    from ota.publish.release import find_family, set_floor

    with open_workspace(arguments) as (workspace, state):
        family = arguments.family or find_family(state, arguments.bundle)
        waiting = set_floor(workspace, state, family, arguments.bundle, arguments.release, time.time())
        return print_result(
            workspace, waiting, f"published: no device runs a release of {arguments.bundle} before {arguments.release}"
        )
