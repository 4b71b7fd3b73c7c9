"""The plan of a load, and what another load would change."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from edge_serve.backends.packs import Pack
from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.golden.reader import GoldenTest
from edge_serve.models.load.dependencies import members_of
from edge_serve.models.repository.override import KeptFiles, Override
from edge_serve.models.repository.repository import Fingerprint, of_version, without_configuration
from edge_serve.models.versions.served import Served
from edge_serve.records import slotted


@slotted
class LoadPlan:
    """The plan of a load.

    Attributes:
        name: the model's key in the registry.
        config: the configuration, as complete as possible without loading the model.
        directory: the directory of the model's files; an override's files are in `kept`.
        print: the state of the model directory when it was read.
        advice: why there is no version, and how to add one; "" = there is one.
        golden: the golden test that each version must pass before it serves; None = none.
        own_worker: the model parameter EDGE_SERVE_WORKER; None = it is not given.
        pack: that has its backend; None = the backend is elsewhere.
    """

    name: str
    directory: Path
    config: pb.ModelConfig
    versions: list[int]
    print: Fingerprint
    override: Override | None = None
    kept: KeptFiles | None = None
    advice: str = ""
    golden: GoldenTest | None = None
    own_worker: bool | None = None
    pack: Pack | None = None

    def acquire_files(self) -> KeptFiles | None:
        """Return the files that came with the load request, if any, for one more version that was loaded from them."""
        return self.kept.acquire() if self.kept is not None else None

    async def release_files(self) -> None:
        """Release the files that came with the load request, if any: the load has ended."""
        if self.kept is not None:
            await self.kept.release()

    def file_bytes(self, wanted: Iterable[int]) -> int:
        """Return the size of the files that loading some of the versions reads, in bytes."""
        if self.override is not None and self.override.files:  # in place of those on disk
            return sum(map(len, self.override.files.values()))
        return sum(max(0, row[2]) for version in wanted for row in of_version(self.print, version))

    def same_as(self, other: LoadPlan) -> bool:
        """Return whether loading this would serve the same files under the same configuration as `other` does."""
        same_members = members_of(self.config) == members_of(other.config)  # by namespaces these may be others now
        if not same_members or self._sources() != other._sources():
            return False
        files = without_configuration(self.print) == without_configuration(other.print)
        return self.print == other.print or (files and self.config == other.config)  # rewritten, and says the same

    def preserves_override(self, before: LoadPlan) -> bool:
        """Return whether the configuration of the last load request, which `before` has, stays. It does until a file
        changes.

        Files of a load request do not stay: as in Triton, a load without them uses the files on disk again.
        """
        if self.override is not None or before.override is None or before.override.files:
            return False
        return (self.directory, self.print) == (before.directory, before.print)

    def gets_own_worker(self, default: bool) -> bool:
        """Return whether the model gets a worker process of its own; `default` unless its configuration says so."""
        return default if self.own_worker is None else self.own_worker

    def serves_same(self, version: int, before: LoadPlan | None) -> bool:
        """Return whether another load would serve the same as a version that was loaded by `before`."""
        return (
            before is not None
            and self._sources() == before._sources()
            and of_version(self.print, version) == of_version(before.print, version)
            and _of_one_version(self.config) == _of_one_version(before.config)
        )

    def changes_instances_only(self, version: int, before: LoadPlan | None, served: Served) -> bool:
        """Return whether only the instances of a version that serves change, as in Triton's ConfigChangeRequiresReload
        (core src/model_config_utils.cc).

        Args:
            before: the plan that it was loaded by; its completed configuration is in `served`.
        """
        if before is None or served.opened is None or (self.directory, self.pack) != (before.directory, before.pack):
            return False
        files = of_version(self.print, version) == of_version(before.print, version)
        config = _of_any_instances(self.config)
        return files and config in (_of_any_instances(before.config), _of_any_instances(served.config))

    def _sources(self) -> tuple[Override | None, Path, Pack | None]:
        """Return the places that the model is from, with the state of its pack."""
        return self.override, self.directory, self.pack


def _of_one_version(config: pb.ModelConfig) -> pb.ModelConfig:
    """Return the part of the configuration that each version depends on: all but the version policy."""
    one = pb.ModelConfig()
    one.CopyFrom(config)
    one.ClearField("version_policy")
    return one


def _of_any_instances(config: pb.ModelConfig) -> pb.ModelConfig:
    one = _of_one_version(config)
    one.ClearField("instance_group")
    return one
