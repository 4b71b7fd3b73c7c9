"""Reads a model directory of the publisher: the files for a release, and their paths."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ota import files
from ota.decide.config_text import Field, fields_of
from ota.documents.names import file_path
from ota.errors import Untrusted, UsageError
from ota.publish.roles import checked_name

CONFIG = "config.pbtxt"
#: left out in every directory: hidden files, and temporary files of editors, Python, and version control
_LEFT_OUT = ("__pycache__",)
_LEFT_OUT_ENDS = (".pyc", ".pyo", "~", ".swp", ".tmp", ".bak")


@dataclass(slots=True)
class ModelSource:
    """The files of one model for a bundle.

    Attributes:
        version: the version directory that becomes the release; 0 = the model has none, as an ensemble.
        files: path in the release -> file here.
        made: path in the release -> bytes that were made for it; these replace files.
    """

    model: str
    directory: Path
    version: int
    files: dict[str, Path]
    config: list[Field]
    made: dict[str, bytes] = field(default_factory=dict)

    def paths(self) -> list[str]:
        """Return every path in the release."""
        return sorted({*self.files, *self.made})

    def read(self, path: str) -> bytes | None:
        """Return a small file of the release; None = it has no such file."""
        if path in self.made:
            return self.made[path]
        return files.read(self.files[path]) if path in self.files else None

    def read_pieces(self, path: str) -> Iterable[bytes]:
        """Return the pieces of a file of the release."""
        return [self.made[path]] if path in self.made else files.read_pieces(self.files[path])


def read_source(model: str, directory: Path, release: int, version: int | None = None) -> ModelSource:
    """Read a model directory. The chosen version directory (by default the highest) becomes `release`.

    Raises:
        UsageError: it is no model directory, or has files that a release cannot have.
    """
    checked_name(model, "the model")
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory: expected the model directory of {model}")
    if not (directory / CONFIG).is_file():
        raise UsageError(
            f"{directory} has no {CONFIG}: write one; 'edge-serve check --model-repository {directory.parent}' "
            "shows what the server would fill in"
        )
    config = _config(directory)
    chosen = _version(directory, version)
    found = walk(directory, chosen, release)
    _check_config(model, config, directory)
    if not chosen and not _is_ensemble(config):
        raise UsageError(f"{directory} has no version directory such as 1/: a model needs one, except an ensemble")
    if not any(path.startswith(f"{release}/") for path in found) and not _is_ensemble(config):
        raise UsageError(f"{directory / str(chosen)} has no files")
    return ModelSource(model, directory, chosen, found, config)


def values(config: list[Field], path: str) -> list[str]:
    """Return the values of a field, such as `ensemble_scheduling.step.model_name`."""
    return [one.value for one in config if one.path == path]


def members_of(config: list[Field]) -> list[str]:
    """Return the models that an ensemble sends requests to."""
    return sorted(set(values(config, "ensemble_scheduling.step.model_name")))


def check_members(sources: dict[str, ModelSource], elsewhere: tuple[str, ...]) -> None:
    """Refuse an ensemble whose members are not in the bundle.

    Args:
        elsewhere: models that are known to be on the devices from another bundle.

    Raises:
        UsageError: a member misses.
    """
    for source in sources.values():
        missing = [one for one in members_of(source.config) if one not in sources and one not in elsewhere]
        if missing:
            raise UsageError(
                f"the ensemble {source.model} needs {', '.join(missing)}, which the bundle lacks: give its directory "
                f"with --model, or --elsewhere {missing[0]} where another bundle brings it"
            )


def _config(directory: Path) -> list[Field]:
    try:
        return fields_of(files.read(directory / CONFIG) or b"", str(directory / CONFIG))
    except Untrusted as error:
        raise UsageError(f"{error.message}; 'edge-serve check' has details") from None


def _is_ensemble(config: list[Field]) -> bool:
    return "ensemble" in values(config, "platform") or bool(members_of(config))


def _check_config(model: str, config: list[Field], directory: Path) -> None:
    """Refuse a configuration that a server would refuse once the version directory has the release's number."""
    named = values(config, "name")
    if named and named != [model]:
        raise UsageError(f"{directory / CONFIG} names the model {named[0]!r}, and the bundle has it as {model!r}")
    if any(one.path.startswith("version_policy.specific.") for one in config):
        raise UsageError(
            f"{directory / CONFIG} has version_policy {{ specific }}; in a release the version is the release's "
            "number: remove the version_policy"
        )
    for version in values(config, "ensemble_scheduling.step.model_version"):
        if version != "-1":
            raise UsageError(
                f"{directory / CONFIG} asks for version {version} of a member; in a release the version is the "
                "release's number: write model_version: -1"
            )


def _version(directory: Path, version: int | None) -> int:
    if version is None:
        return latest_version(directory)
    there = _versions(directory)
    if version not in there:
        raise UsageError(f"{directory} has no version {version}: it has {', '.join(map(str, there)) or 'none'}")
    return version


def latest_version(directory: Path) -> int:
    """Return the highest version directory; 0 = none."""
    return max(_versions(directory), default=0)


def _versions(directory: Path) -> list[int]:
    return sorted(int(one.name) for one in directory.iterdir() if _is_version(one.name) and one.is_dir())


def _is_version(name: str) -> bool:
    return name.isascii() and name.isdigit() and not name.startswith("0")


def walk(directory: Path, version: int, release: int) -> dict[str, Path]:
    """Return path in the release -> file, for a directory whose version directory becomes the release.

    Raises:
        UsageError: a file cannot be in a release.
    """
    found = {}
    for folder, folders, names in os.walk(directory, onerror=_raise):
        at_top = Path(folder) == directory
        for name in list(folders):
            path = Path(folder, name)
            left_out = name in _LEFT_OUT or name.startswith(".") or (at_top and _is_other_version(name, version))
            if left_out:
                folders.remove(name)
            elif path.is_symlink():
                raise UsageError(f"{path} is a link to a directory: put the directory itself there")
        for name in sorted(names):
            if name.startswith(".") or name.endswith(_LEFT_OUT_ENDS):
                continue
            path = Path(folder, name)
            if not path.is_file():
                raise UsageError(f"{path} is not a regular file, or is a dangling link: remove it")
            found[_release_path(path.relative_to(directory), version, release)] = path
    return found


def _raise(error: OSError) -> None:
    raise error


def _is_other_version(name: str, version: int) -> bool:
    return _is_version(name) and int(name) != version


def _release_path(path: Path, version: int, release: int) -> str:
    """Return the path in the release: the version directory is renamed."""
    parts = [str(release), *path.parts[1:]] if version and path.parts[0] == str(version) else list(path.parts)
    try:
        return file_path("/".join(parts), "its path")
    except Untrusted as error:
        raise UsageError(f"{path} cannot be in a release: {error.message}; rename it") from None
