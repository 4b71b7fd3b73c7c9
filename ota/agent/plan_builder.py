"""Builds TensorRT plans on this device, and caches them under a key of everything that they depend on.

A plan is native code. Each has a seal: an HMAC-SHA256 with a key that only the agent reads. A plan that was changed on
disk, or that comes from another device, has no valid seal and is built again.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import math
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from ota import files
from ota.decide.variant import reason_unbuildable
from ota.documents.manifest import Manifest, PlanBuild, Variant
from ota.errors import OtaError, ServerError, Unsuitable
from ota.layout import StateLayout
from ota.server.build import BuildRequest
from ota.store import releases
from ota.store.directories import FILE_MODE, SHARED_MODE
from ota.strict_json import Members, parse, to_canonical_json

#: facts of the device that a plan depends on
FACTS = ("arch", "tensorrt", "sm", "gpu", "driver", "l4t")
#: bytes; the file of a plan may be sparse
MOST_PLAN = 16 * 1024**3
_SEAL_KEY = "plans.key"
_MOST_SEAL = 4096
_BLOCK = 1024 * 1024


class BuildRunner(Protocol):
    """Runs one build. Implemented by `server.build.UnitBuild`."""

    def run(self, request: BuildRequest) -> tuple[Path, float]:
        """Return the plan that was built, and the seconds that it took."""


class PlanBuilder:
    """Puts plans into installed releases, from the cache or from a new build. Implements `components.Builder`.

    Args:
        facts: of this device.
    """

    def __init__(self, layout: StateLayout, builds: BuildRunner, facts: Callable[[], Mapping[str, str]]) -> None:
        self._layout = layout
        self._builds = builds
        self._facts = facts

    def build(self, manifest: Manifest, variant: Variant, directories: Mapping[str, Path]) -> float:
        """Put the plans of a variant into the directories of its models. Return the seconds that the builds took.

        Plans in the cache are not built again.

        Raises:
            TrialFailed: a build failed. ServerError: it could not be run. StoreError: the disk does not take a plan.
            Unsuitable: the variant lacks the ONNX file, or has an unknown option.
        """
        plans, seconds = self.make(manifest, variant, directories)
        for (model, path), plan in plans.items():
            releases.add_built(self._layout, model, manifest.release, path, plan)
        return seconds

    def make(
        self, manifest: Manifest, variant: Variant, directories: Mapping[str, Path], limit: float = math.inf
    ) -> tuple[dict[tuple[str, str], Path], float]:
        """Return the cached plans of a variant, by model and path, and the seconds that the builds took.

        Args:
            limit: the most seconds of all builds.

        Raises:
            TrialFailed, ServerError, StoreError, Unsuitable: as `build`.
        """
        if why := reason_unbuildable(manifest, variant):
            raise Unsuitable(f"{manifest.bundle} {manifest.release}: variant {variant.id} cannot be built: {why}")
        found: dict[tuple[str, str], Path] = {}
        seconds = 0.0
        for one in variant.build:
            onnx = next(entry for entry in manifest.files_of(variant, one.model) if entry.path == one.onnx)
            key = plan_key(onnx.sha256, one, self._facts())
            plan = self._layout.plans / f"{key}.plan"
            if not self._is_sealed(plan):
                seconds += self._make(one, directories[one.model] / one.onnx, key, plan, limit - seconds)
            found[one.model, one.plan] = plan
        return found, seconds

    def _make(self, one: PlanBuild, onnx: Path, key: str, plan: Path, limit: float) -> float:
        limit = max(1.0, min(limit, one.timeout_seconds))
        request = BuildRequest(str(onnx), key, one.workspace_mb, one.options, limit)
        made, seconds = self._builds.run(request)
        files.make_directory(self._layout.plans, SHARED_MODE)
        _copy(made, plan)
        self._seal(plan)
        return seconds

    def _seal(self, plan: Path) -> None:
        sha256, size = files.sha256_of(plan)
        document = {"sha256": sha256, "bytes": size, "seal": self._mac(plan.name, sha256)}
        files.write_durably(plan.with_suffix(".seal"), to_canonical_json(document), 0o600)

    def _is_sealed(self, plan: Path) -> bool:
        """Return whether the cached plan is unchanged since this device built it."""
        path = plan.with_suffix(".seal")
        try:
            data = files.read(path, _MOST_SEAL)
            if data is None:
                return False
            members = Members(parse(data, str(path), _MOST_SEAL), str(path))
            wanted = (members.sha256("sha256"), members.integer("bytes"))
            seal = members.text("seal")
            return files.sha256_of(plan) == wanted and hmac.compare_digest(seal, self._mac(plan.name, wanted[0]))
        except OtaError:
            return False

    def _mac(self, name: str, sha256: str) -> str:
        return hmac.new(self._key(), f"{name}\0{sha256}".encode(), "sha256").hexdigest()

    def _key(self) -> bytes:
        path = self._layout.identity / _SEAL_KEY
        key = files.read(path, 64)
        if key is None or len(key) != 32:
            key = secrets.token_bytes(32)
            files.make_directory(self._layout.identity, 0o700)
            files.write_durably(path, key, 0o600)
        return key


def plan_key(onnx_sha256: str, build: PlanBuild, facts: Mapping[str, str]) -> str:
    """Return the cache key of a plan: a digest of the ONNX file, the options, and the facts that a plan depends on."""
    found = {fact: facts.get(fact, "") for fact in FACTS}
    about = {"onnx": onnx_sha256, "options": list(build.options), "workspace_mb": build.workspace_mb, "facts": found}
    return hashlib.sha256(to_canonical_json(about)).hexdigest()


def _copy(source: Path, target: Path) -> None:
    """Copy the plan of a unit durably. Refuse a symbolic link or a special file."""
    fresh = target.with_name(f".{target.name}.new")
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ServerError(f"the plan {source} cannot be read: {error.strerror or error}") from error
    with files.wrap_errors(target), open(descriptor, "rb") as made:
        if os.fstat(descriptor).st_size > MOST_PLAN:
            raise ServerError(f"the plan {source} has more than {MOST_PLAN >> 30} GiB: it is not used")
        try:
            with files.create(fresh, FILE_MODE) as file:
                while block := made.read(_BLOCK):
                    files.write(file, fresh, block)
                files.fsync(file, fresh)
            files.rename(fresh, target)
        except OSError:  # most of all a full disk, which the part would keep full
            with contextlib.suppress(OSError):
                files.unlink(fresh)
            raise
        files.sync_directory(target.parent)
