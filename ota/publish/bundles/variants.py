"""Reads which files are for which hardware, from a TOML or JSON file of the publisher."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ota import files
from ota.documents.manifest import KINDS
from ota.errors import UsageError
from ota.publish.bundles.source import ModelSource, latest_version, walk
from ota.publish.roles import raise_as_usage
from ota.strict_json import Members, parse

MOST_VARIANTS = 64
MOST_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class VariantDescription:
    """The description of a variant: its manifest entry without files, and the directories with its files."""

    entry: dict[str, Any]
    directories: Mapping[str, Path]


def read_variants(path: Path) -> list[VariantDescription]:
    """Read the variants of a file. Directories are relative to the file.

    Raises:
        UsageError: it is malformed.
    """
    found = Members(_load(path), str(path), UsageError)
    variants = [_variant(one, path.parent) for one in found.objects("variants", most=MOST_VARIANTS)]
    found.end()
    if not variants:
        raise UsageError(f"{path} describes no variants: expected [[variants]] with id, kind, and priority")
    return variants


def _load(path: Path) -> object:
    data = files.read(path, MOST_BYTES)
    if data is None:
        raise UsageError(f"{path} does not exist")
    if path.suffix != ".toml":
        with raise_as_usage():
            return parse(data, str(path), MOST_BYTES)
    try:
        try:
            tomllib = importlib.import_module("tomllib")
        except ImportError:
            raise UsageError(f"{path}: TOML needs Python 3.11 or newer; write the same as JSON") from None
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None


def _variant(members: Members, base: Path) -> VariantDescription:
    kind = members.text("kind")
    if kind not in KINDS:
        members.refuse("kind", kind, f"expected one of {', '.join(KINDS)}")
    entry: dict[str, Any] = {
        "id": members.text("id"),
        "kind": kind,
        "priority": members.integer("priority", most=10**6),
        "match": members.texts("match", {}, most=32),
    }
    if memory := members.integer("memory_mb", 0):
        entry["memory_bytes"] = memory * 1024 * 1024
    if build := members.array("build", [], most=32):
        for one in build:
            if not isinstance(one, dict):
                members.refuse("build", one, "expected tables with model, onnx, and plan")
        entry["build"] = build
    directories = {model: base / path for model, path in members.texts("models", {}, most=32).items()}
    members.end()
    return VariantDescription(entry, directories)


def variant_files(described: VariantDescription, model: str, release: int) -> dict[str, Path]:
    """Return path in the release -> file, for a variant's directory, which may have a version directory.

    Raises:
        UsageError: it does not exist.
    """
    directory = described.directories[model]
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory: the variant {described.entry['id']} names it for {model}")
    return walk(directory, latest_version(directory), release)


def renamed_builds(entry: Mapping[str, Any], sources: Mapping[str, ModelSource], release: int) -> dict[str, Any]:
    """Return a variant's entry with the release's paths in its builds: `1/model.onnx` becomes `17/model.onnx`."""
    result = dict(entry)
    for build in result.get("build", []):
        for name in ("onnx", "plan"):
            first, slash, rest = str(build.get(name, "")).partition("/")
            source = sources.get(str(build.get("model")))
            if slash and source is not None and first == str(source.version):
                build[name] = f"{release}/{rest}"
    return result
