"""Writes a bundle: blobs and chunks, then the manifest, which the device's reader checks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from ota import files
from ota.decide.code import find_code
from ota.decide.variant import find_faults
from ota.documents.manifest import CHUNKED_BYTES, MOST_CHUNKS, FileEntry, Manifest, read_manifest
from ota.documents.names import SYSTEM, blob_path
from ota.errors import Untrusted, UsageError
from ota.publish.bundles.golden import GoldenOptions, add_golden
from ota.publish.bundles.source import ModelSource, check_members, read_source
from ota.publish.bundles.variants import VariantDescription, read_variants, renamed_builds, variant_files
from ota.publish.roles import checked_name
from ota.strict_json import to_canonical_json

#: bytes of a chunk; files of more than MOST_CHUNKS such chunks get larger ones
CHUNK = 8 * 1024 * 1024
DEFAULT_VARIANT = "default"
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Recipe:
    """The input of a bundle.

    Attributes:
        models: model -> its directory; versions: model -> version directory, where not the highest one.
        counter: 0 = the release's number.
        elsewhere: members of ensembles that another bundle brings.
        variants: the file that describes them; None = one variant for all devices.
    """

    bundle: str
    family: str
    release: int
    models: Mapping[str, Path]
    versions: Mapping[str, int] = field(default_factory=dict)
    counter: int = 0
    variants: Path | None = None
    elsewhere: tuple[str, ...] = ()
    needs_agent: str = ""
    needs_server: str = ""
    provenance: Mapping[str, str] = field(default_factory=dict)
    golden: GoldenOptions = field(default_factory=GoldenOptions)


def build(recipe: Recipe, out: Path) -> Manifest:
    """Write a bundle into a new directory. The manifest is written last.

    Raises:
        UsageError: a model directory, the variants, or the golden inputs are not as expected, or `out` is taken.
    """
    checked_name(recipe.bundle, "the bundle")
    checked_name(recipe.family, "the family")
    if recipe.bundle == SYSTEM:
        raise UsageError(f"the bundle is named {SYSTEM!r}, which is the name of the devices' system: choose another")
    if recipe.release < 1:
        raise UsageError(f"the release is {recipe.release}, expected a number of at least 1")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        removal = f"rm -r {quote(str(out))}, or " if _is_bundle(out) else ""
        raise UsageError(f"{out} exists: {removal}name a new directory with --out DIR")
    sources = {
        model: read_source(model, directory, recipe.release, recipe.versions.get(model))
        for model, directory in recipe.models.items()
    }
    check_members(sources, recipe.elsewhere)
    described = read_variants(recipe.variants) if recipe.variants else [_default(sources)]
    add_golden(sources, recipe.golden)
    writer = BlobWriter(out)
    try:
        value = _manifest(recipe, sources, described, writer)
        data = to_canonical_json(value)
        manifest = read_manifest(data, recipe.bundle, recipe.release)
        if faults := find_faults(manifest):
            raise UsageError("; ".join(faults))
        files.write_durably(out / MANIFEST, data)
    except BaseException as error:  # also an interruption: the next try needs a new directory
        files.remove_tree(out)
        if isinstance(error, Untrusted):
            raise UsageError(f"no device would read this bundle: {error.message}") from None
        raise
    return manifest


def _is_bundle(directory: Path) -> bool:
    """Return whether a directory has the files of a bundle and no others, so that its removal loses no model."""
    return directory.is_dir() and {one.name for one in directory.iterdir()} == {"blobs", MANIFEST}


def _default(sources: Mapping[str, ModelSource]) -> VariantDescription:
    """Return one variant for all devices. Its kind is `code` if devices run code of it."""
    models = {model: [FileEntry(path, "", 0) for path in source.paths()] for model, source in sources.items()}
    code = find_code(models, lambda model, one: sources[model].read_pieces(one.path))
    entry = {"id": DEFAULT_VARIANT, "kind": "code" if code else "onnx"}
    return VariantDescription({**entry, "priority": 100, "match": {}}, {})


def _manifest(
    recipe: Recipe, sources: Mapping[str, ModelSource], described: Sequence[VariantDescription], writer: BlobWriter
) -> dict[str, Any]:
    value: dict[str, Any] = {
        "schema": 1,
        "bundle": recipe.bundle,
        "family": recipe.family,
        "release": recipe.release,
        "release_counter": recipe.counter or recipe.release,
        "models": {model: {"files": _entries(source, writer)} for model, source in sources.items()},
        "variants": [_variant(one, recipe, sources, writer) for one in described],
    }
    optional = {
        "needs_agent": recipe.needs_agent,
        "needs_server": recipe.needs_server,
        "provenance": dict(recipe.provenance),
    }
    return value | {name: found for name, found in optional.items() if found}


def _entries(source: ModelSource, writer: BlobWriter) -> list[dict[str, Any]]:
    return [
        writer.data(path, source.made[path]) if path in source.made else writer.file(path, source.files[path])
        for path in source.paths()
    ]


def _variant(
    described: VariantDescription, recipe: Recipe, sources: Mapping[str, ModelSource], writer: BlobWriter
) -> dict[str, Any]:
    entry = renamed_builds(described.entry, sources, recipe.release)
    models = {}
    for model in described.directories:
        found = variant_files(described, model, recipe.release)
        models[model] = {"files": [writer.file(path, found[path]) for path in sorted(found)]}
    return entry | ({"models": models} if models else {})


class BlobWriter:
    """Writes blobs into a bundle or a repository, and returns the entries of files in a document."""

    def __init__(self, out: Path) -> None:
        self._out = out

    def data(self, path: str, data: bytes) -> dict[str, Any]:
        """Write bytes."""
        return {"path": path, "sha256": self._put(data), "bytes": len(data)}

    def file(self, path: str, source: Path) -> dict[str, Any]:
        """Write a file, in chunks if it is long."""
        size = source.stat().st_size
        if size < CHUNKED_BYTES:
            return self.data(path, b"".join(files.read_pieces(source)))
        chunk = max(CHUNK, -(-size // MOST_CHUNKS))
        whole, chunks, length = hashlib.sha256(), [], 0
        for piece in files.read_pieces(source, chunk):
            whole.update(piece)
            chunks.append(self._put(piece))
            length += len(piece)
        if length != size:
            raise UsageError(f"{source} changed while it was read: make the bundle again")
        return {"path": path, "sha256": whole.hexdigest(), "bytes": size, "chunk_bytes": chunk, "chunks": chunks}

    def _put(self, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        target = self._out / blob_path(sha256)
        if not target.is_file() or files.sha256_of(target)[0] != sha256:
            files.make_directory(target.parent)
            files.write_durably(target, data)
        return sha256
