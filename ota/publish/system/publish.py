"""Publishes a version of the system: its blobs, then the document that the role `system` lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuf.api.metadata import TargetFile

from ota import files
from ota.documents.names import system_target
from ota.documents.system import ENDINGS, SystemDocument, file_name, read_system
from ota.errors import UsageError
from ota.publish.bundles.build import BlobWriter
from ota.publish.change import MetadataChange, MissingSignatures, apply, check_room, copy_payload, refuse_second
from ota.publish.keys import KeyPlace
from ota.publish.repository import RepositoryState, read_target
from ota.publish.roles import SYSTEM, TARGETS, checked_name, raise_as_usage
from ota.publish.rotate import delegate
from ota.publish.system.image import SystemImage
from ota.publish.workspace import Workspace
from ota.strict_json import to_canonical_json


@dataclass(frozen=True, slots=True)
class SystemOptions:
    """The values of a version that its files do not have.

    Attributes:
        needs_version: the lowest version that can install this one; 0 = any.
        state_schema: the format of the data partition that it is expected to write; 0 = any.
    """

    needs_version: int = 0
    state_schema: int = 0


def add_role(
    workspace: Workspace, state: RepositoryState, places: Sequence[KeyPlace], threshold: int, now: float
) -> list[MissingSignatures]:
    """Add the role `system` to a repository. The keys of targets sign, and those of the role its empty list.

    Raises:
        UsageError, OtaError: as `check_new`.
    """
    check_new(workspace, state, len(places), threshold, now)
    targets = copy_payload(state, TARGETS)
    delegate(targets, SYSTEM, places, threshold)
    return apply(workspace, state, MetadataChange({TARGETS: targets}, {SYSTEM}), now)


def check_new(workspace: Workspace, state: RepositoryState, keys: int, threshold: int, now: float) -> None:
    """Refuse to add the role `system` with so many keys.

    Raises:
        UsageError: the repository has the role, or there are fewer keys than must sign. OtaError: another change waits.
    """
    if SYSTEM in state.delegated():
        raise UsageError(f"the role {SYSTEM} already exists: change its keys with 'publish rotate {SYSTEM}'")
    if not 1 <= threshold <= keys:
        raise UsageError(f"{SYSTEM} would have {keys} keys, and {threshold} must sign: give more --public-key")
    check_room(workspace, state, [TARGETS], [SYSTEM], now)


def publish(
    workspace: Workspace, state: RepositoryState, image: SystemImage, options: SystemOptions, now: float
) -> tuple[SystemDocument, list[MissingSignatures]]:
    """Publish a version of the system.

    Raises:
        UsageError: the repository lacks the role, the version is not higher than those before it, or the image writes
            another format of the data partition than expected.
    """
    check_role(state)
    refuse_second(workspace, [SYSTEM], now)
    checked_name(image.product, "IMAGE_ID")
    checked_name(image.profile, "the profile (VARIANT_ID)")
    if options.state_schema and options.state_schema != image.state_schema:
        raise UsageError(
            f"--state-schema is {options.state_schema}, and {image.product} {image.version} writes data of the form "
            f"{image.state_schema} (EDGE_STATE_SCHEMA): leave the flag out, or build the image that you mean"
        )
    known = [
        one.version
        for one in documents_of(workspace, state, image.product)
        if (one.profile, one.arch) == (image.profile, image.arch)
    ]
    if known and image.version <= max(known):
        raise UsageError(
            f"{image.product} {image.version} is not published: version {max(known)} is, and versions rise. "
            f"Build the image with IMAGE_VERSION={max(known) + 1} or more"
        )
    with files.make_readable():
        value = _document(workspace, image, options)
    data = to_canonical_json(value)
    target = system_target(image.product, image.profile, image.arch, image.version)
    with raise_as_usage():
        document = read_system(data, target)
    payload = copy_payload(state, SYSTEM)
    payload.targets[target] = TargetFile.from_data(target, data, ["sha256"])
    return document, apply(workspace, state, MetadataChange({SYSTEM: payload}, documents={target: data}), now)


def _document(workspace: Workspace, image: SystemImage, options: SystemOptions) -> dict[str, Any]:
    writer = BlobWriter(workspace.repository)
    names = {kind: file_name(image.product, image.version, kind) for kind in ENDINGS}
    value: dict[str, Any] = {
        "schema": 1,
        "product": image.product,
        "profile": image.profile,
        "arch": image.arch,
        "version": image.version,
        "root_hash": image.root_hash,
        "state_schema": image.state_schema,
        "files": {kind: writer.file(names[kind], image.paths[kind]) for kind in ENDINGS},
    }
    return value | ({"needs_version": options.needs_version} if options.needs_version else {})


def check_role(state: RepositoryState) -> None:
    """Refuse a repository without the role `system`.

    Raises:
        UsageError: with the command that adds it.
    """
    if SYSTEM not in state.delegated():
        raise UsageError(
            "this repository has no role for systems of devices: add it with 'edge-ota publish role system'"
        )


def documents_of(workspace: Workspace, state: RepositoryState, product: str) -> list[SystemDocument]:
    """Return the published versions of a product ("" = of all), for each profile and processor."""
    check_role(state)
    found = []
    for target, entry in state.targets_of(SYSTEM).items():
        if not product or target.startswith(f"system/{product}/"):
            found.append(read_system(read_target(workspace.repository, target, entry), target))
    return sorted(found, key=lambda one: (one.product, one.version, one.profile, one.arch))


def check_version(workspace: Workspace, state: RepositoryState, product: str, version: int) -> None:
    """Refuse a version that is not published for any profile.

    Raises:
        UsageError: see above.
    """
    known = sorted({one.version for one in documents_of(workspace, state, product)})
    if version not in known:
        text = ", ".join(map(str, known)) or "none"
        raise UsageError(
            f"{product} {version} is not published (published: {text}): publish it with 'edge-ota publish system'"
        )


def find_product(workspace: Workspace, state: RepositoryState) -> str:
    """Return the only product with a published system.

    Raises:
        UsageError: there is none, or there are several.
    """
    found = sorted({one.product for one in documents_of(workspace, state, "")})
    if len(found) != 1:
        raise UsageError(
            "no system is published: publish one with 'edge-ota publish system'"
            if not found
            else f"systems of {', '.join(found)} are published: give --family"
        )
    return found[0]
