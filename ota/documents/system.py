"""The document of a system: a TUF target, listed by the role `system`. It names the three files of an image update."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ota.documents.manifest import FileEntry, read_entry
from ota.documents.names import name, system_target
from ota.errors import Untrusted
from ota.strict_json import Members, parse

SCHEMA = 1
MOST_BYTES = 1024 * 1024
#: kind of a file -> how its name ends. The kernel is last: a device boots the new system only when it is there
ENDINGS: Mapping[str, str] = {"root": ".root", "verity": ".verity", "uki": ".efi"}
MOST_VERSION = 10**9


@dataclass(frozen=True, slots=True)
class SystemDocument:
    """A version of the system for one profile and processor.

    Attributes:
        product: IMAGE_ID of the image; profile: `base` or `nvidia`; arch: `x86_64` or `aarch64`.
        needs_version: the lowest version that can install this one; 0 = any.
        state_schema: the format of the data partition that this version writes.
        root_hash: of dm-verity; the kernel command line in the UKI names it.
        files: kind -> file, for each kind in ENDINGS.
    """

    product: str
    profile: str
    arch: str
    version: int
    root_hash: str
    files: Mapping[str, FileEntry]
    needs_version: int = 0
    state_schema: int = 1

    @property
    def title(self) -> str:
        """The name of this version in messages."""
        return f"{self.product} {self.version} ({self.profile}, {self.arch})"


def file_name(product: str, version: int, kind: str) -> str:
    """Return the name of a file of a system: `edge_12.root`."""
    return f"{product}_{version}{ENDINGS[kind]}"


def read_system(data: bytes, target: str) -> SystemDocument:
    """Return the document of a system.

    Args:
        target: the path under which it is listed, which its product, profile, processor, and version must give.

    Raises:
        Untrusted: it is malformed, or another system's.
        Unsuitable: its schema is newer than this agent.
    """
    what = f"the document {target}"
    members = Members(parse(data, what, MOST_BYTES), what)
    members.check_schema(SCHEMA)
    product, profile, arch = (name(members.text(one), f"{what}: {one}") for one in ("product", "profile", "arch"))
    version = members.integer("version", least=1, most=MOST_VERSION)
    if (named := system_target(product, profile, arch, version)) != target:
        raise Untrusted(f"{what} is that of {named}: the repository has it under a wrong name")
    document = SystemDocument(
        product=product,
        profile=profile,
        arch=arch,
        version=version,
        root_hash=members.sha256("root_hash"),
        files=_files(members, what, product, version),
        needs_version=members.integer("needs_version", 0, most=MOST_VERSION),
        state_schema=members.integer("state_schema", 1, least=1, most=MOST_VERSION),
    )
    members.end()
    return document


def _files(members: Members, what: str, product: str, version: int) -> dict[str, FileEntry]:
    found = {}
    for kind, inner in members.tables("files", most=len(ENDINGS)):
        if kind not in ENDINGS:
            raise Untrusted(f"{what}: files has {kind!r}, expected {', '.join(ENDINGS)}")
        found[kind] = read_entry(inner, f"{what}: {kind}")
        if found[kind].path != file_name(product, version, kind) or not found[kind].size:
            raise Untrusted(
                f"{what}: {kind} is {found[kind].path!r} with {found[kind].size} bytes, "
                f"expected {file_name(product, version, kind)!r}, not empty"
            )
    if missing := [kind for kind in ENDINGS if kind not in found]:
        raise Untrusted(f"{what} lacks the file {missing[0]!r}")
    return {kind: found[kind] for kind in ENDINGS}


def version_of_target(target: str) -> int:
    """Return the version that a target path names; 0 = it names none."""
    found = re.fullmatch(r"system/[^/]+/[^/]+\.([0-9]{1,10})\.json", target)
    return int(found.group(1)) if found else 0
