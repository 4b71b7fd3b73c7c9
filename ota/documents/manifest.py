"""The manifest of a release: a TUF target, listed by `models-<family>`. OTA.md 4.3."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ota.documents.names import file_path, name
from ota.errors import Untrusted
from ota.strict_json import Members, parse

SCHEMA = 1
MOST_BYTES = 256 * 1024
MOST_FILES = 4096
MOST_MODELS = 32
MOST_VARIANTS = 64
#: kinds of variants; for those in CODE, the role `engines` must approve every file that runs
KINDS = ("onnx", "onnx-build", "trt-engine", "code")
CODE = ("trt-engine", "code")
#: files of this length and more are stored in chunks
CHUNKED_BYTES = 64 * 1024 * 1024
MOST_CHUNKS = 1024
#: other bundles wait while one is built
MOST_BUILD_SECONDS = 2 * 3600


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a model.

    Attributes:
        path: below the model's directory, with `/`.
        sha256: of the whole file.
        size: bytes.
        chunk_size: bytes of each chunk but the last; 0 = the file is one blob, named by `sha256`.
        chunks: the SHA-256 of each chunk, in order; each chunk is a blob.
    """

    path: str
    sha256: str
    size: int
    chunk_size: int = 0
    chunks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanBuild:
    """The build of a plan from an ONNX file of the variant, by `edge-serve build`."""

    model: str
    onnx: str
    plan: str
    workspace_mb: int = 1024
    timeout_seconds: int = 1800
    memory_bytes: int = 0
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant of a release, for some hardware.

    Attributes:
        match: fact -> constraint; `decide/variant` knows the facts and how they are compared.
        priority: the lowest number that fits wins.
        memory_bytes: the device memory that it needs; 0 = unknown.
        files: model -> files that come to those of the release, or replace them.
    """

    id: str
    kind: str
    priority: int
    match: Mapping[str, str] = field(default_factory=dict)
    memory_bytes: int = 0
    files: Mapping[str, tuple[FileEntry, ...]] = field(default_factory=dict)
    build: tuple[PlanBuild, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """A release of one model, or of several models that belong together.

    Attributes:
        bundle: the name of the release; for one model the model's name.
        release: the number that each model's version directory has, too.
        counter: rises with each release of the bundle; a device never goes below the floor.
        needs_agent, needs_server: the lowest versions, `1.4`; "" = any.
        models: model -> the files that all variants share.
        provenance: names and digests of an SBOM, of a signature; not interpreted.
    """

    bundle: str
    family: str
    release: int
    counter: int
    models: Mapping[str, tuple[FileEntry, ...]]
    variants: tuple[Variant, ...]
    needs_agent: str = ""
    needs_server: str = ""
    provenance: Mapping[str, str] = field(default_factory=dict)

    def files_of(self, variant: Variant, model: str) -> tuple[FileEntry, ...]:
        """Return the files of a model in a variant. Files of the variant replace those of the release."""
        found = {one.path: one for one in self.models[model]}
        found.update((one.path, one) for one in variant.files.get(model, ()))
        return tuple(found[path] for path in sorted(found))

    def find_variant(self, variant_id: str) -> Variant | None:
        """Return the variant with an ID; None = the release has none."""
        return next((one for one in self.variants if one.id == variant_id), None)

    def every_file(self) -> Iterator[tuple[str, FileEntry]]:
        """Yield model and file, of the release and of all variants."""
        for model, entries in self.models.items():
            yield from ((model, one) for one in entries)
        for variant in self.variants:
            for model, entries in variant.files.items():
                yield from ((model, one) for one in entries)


def read_manifest(data: bytes, bundle: str, release: int) -> Manifest:
    """Return the manifest of a release.

    Raises:
        Untrusted: it is malformed, or the manifest of another release.
        Unsuitable: its schema is newer than this agent.
    """
    what = f"the manifest of {bundle} {release}"
    members = Members(parse(data, what, MOST_BYTES), what)
    members.check_schema(SCHEMA)
    named = name(members.text("bundle"), f"{what}: bundle")
    number = members.integer("release", least=1)
    if (named, number) != (bundle, release):
        raise Untrusted(f"{what} is that of {named} {number}: the repository has it under a wrong name")
    manifest = Manifest(
        bundle=named,
        family=name(members.text("family"), f"{what}: family"),
        release=number,
        counter=members.integer("release_counter", least=1),
        models=_models(members, what),
        variants=_variants(members, what),
        needs_agent=_version(members, "needs_agent"),
        needs_server=_version(members, "needs_server"),
        provenance=members.texts("provenance", {}, most=32),
    )
    members.end()
    _check(manifest, what)
    return manifest


def _files(members: Members, what: str) -> tuple[FileEntry, ...]:
    entries = tuple(read_entry(one, what) for one in members.objects("files", most=MOST_FILES))
    seen: dict[str, str] = {}
    for entry in entries:
        if (other := seen.setdefault(entry.path.lower(), entry.path)) is not None and other != entry.path:
            raise Untrusted(f"{what}: {other} and {entry.path} differ in case only")
    if len(seen) != len(entries):
        raise Untrusted(f"{what} names a file twice")
    return entries


def read_entry(members: Members, what: str) -> FileEntry:
    """Return the entry of a file: path, hash, length, and chunks.

    Raises:
        Untrusted: it is malformed.
    """
    path = file_path(members.text("path"), f"{what}: a path")
    sha256, size = members.sha256("sha256"), members.integer("bytes")
    chunk_size = members.integer("chunk_bytes", 0)
    chunks = tuple(str(one) for one in members.array("chunks", [], most=MOST_CHUNKS))
    members.end()
    if any(not re.fullmatch("[0-9a-f]{64}", one) for one in chunks):
        raise Untrusted(f"{what}: a chunk of {path} is not a SHA-256")
    if bool(chunks) != bool(chunk_size) or (chunks and len(chunks) != -(-size // chunk_size)):
        raise Untrusted(f"{what}: {path} has {size} bytes and {len(chunks)} chunks of {chunk_size} bytes")
    return FileEntry(path, sha256, size, chunk_size, chunks)


def _variants(members: Members, what: str) -> tuple[Variant, ...]:
    found = []
    for inner in members.objects("variants", most=MOST_VARIANTS):
        kind = inner.text("kind")
        if kind not in KINDS:
            inner.refuse("kind", kind, f"expected one of {', '.join(KINDS)}")
        variant = Variant(
            id=name(inner.text("id"), f"{what}: a variant's id"),
            kind=kind,
            priority=inner.integer("priority", most=10**6),
            match=inner.texts("match", {}, most=32),
            memory_bytes=inner.integer("memory_bytes", 0),
            files=_models(inner, what, {}),
            build=tuple(_build(one) for one in inner.objects("build", [], most=MOST_MODELS)),
        )
        inner.end()
        found.append(variant)
    if not found:
        raise Untrusted(f"{what} has no variants")
    return tuple(found)


def _models(members: Members, what: str, default: dict[str, Any] | None = None) -> dict[str, tuple[FileEntry, ...]]:
    """Return the files of each model. `default`: the value if the member is missing; None = refuse that."""
    found = {}
    for model, inner in members.tables("models", default, most=MOST_MODELS):
        found[name(model, f"{what}: a model")] = _files(inner, f"{what}: {model}")
        inner.end()
    return found


def _build(members: Members) -> PlanBuild:
    build = PlanBuild(
        model=name(members.text("model"), "a build's model"),
        onnx=file_path(members.text("onnx"), "a build's onnx"),
        plan=file_path(members.text("plan"), "a build's plan"),
        workspace_mb=members.integer("workspace_mb", 1024, least=1, most=2**20),
        timeout_seconds=members.integer("timeout_seconds", 1800, least=1, most=MOST_BUILD_SECONDS),
        memory_bytes=members.integer("memory_bytes", 0),
        options=tuple(str(one) for one in members.array("options", [], most=16)),
    )
    members.end()
    if not build.plan.endswith(".plan"):
        raise Untrusted(f"a build's plan is {build.plan!r}, expected a file that ends with .plan: another file stays")
    return build


def _version(members: Members, member: str) -> str:
    found = members.text(member, "", most=32)
    if found and not re.fullmatch(r"\d+(\.\d+){0,3}", found):
        members.refuse(member, found, "expected a version such as 1.4")
    return found


def _check(manifest: Manifest, what: str) -> None:
    """Refuse a manifest without models, or whose parts contradict each other."""
    if not manifest.models:
        raise Untrusted(f"{what} has no models")
    for kind, values in (
        ("id", [v.id for v in manifest.variants]),
        ("priority", [v.priority for v in manifest.variants]),
    ):
        if len(set(values)) != len(values):
            raise Untrusted(f"{what}: two variants have the same {kind}")
    for variant in manifest.variants:
        for model in (*variant.files, *(one.model for one in variant.build)):
            if model not in manifest.models:
                raise Untrusted(f"{what}: the variant {variant.id} names the model {model!r}, which the release lacks")
        for model in manifest.models:
            paths = [one.path for one in manifest.files_of(variant, model)]
            _check_paths(paths, model, manifest.release, f"{what}, variant {variant.id}")


def _check_paths(paths: list[str], model: str, release: int, what: str) -> None:
    folded = [path.lower() for path in paths]
    if len(set(folded)) != len(folded):
        raise Untrusted(f"{what}: two files of {model} differ in case only")
    known = set(folded)
    for path in folded:
        parts = path.split("/")
        if any("/".join(parts[:count]) in known for count in range(1, len(parts))):
            raise Untrusted(f"{what}: {path} of {model} is below a file")
        if parts[0].isdigit() and parts[0] != str(release):
            raise Untrusted(f"{what}: {path} of {model} is in version {parts[0]}, expected version {release}")
