"""The links in the model repository: `<model>` -> the directory of the release that serves, or a copy of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path

from ota import files
from ota.errors import Occupied
from ota.layout import StateLayout
from ota.store import releases


class LinkKind(Enum):
    """The kind of an entry in the model repository."""

    ABSENT = "absent"
    OURS = "ours"
    DANGLING = "a link that names nothing"
    LINK = "a link that edge-ota did not make"
    OWN = "a model that edge-ota did not put there"


def read_link(layout: StateLayout, repository: Path, model: str) -> tuple[LinkKind, int]:
    """Return the kind of a model's entry in the model repository, and the release that a link of edge-ota names (else
    0).
    """
    path = repository / model
    try:
        named = os.readlink(path)
    except FileNotFoundError:
        return LinkKind.ABSENT, 0
    except OSError:
        return LinkKind.OWN, 0
    parent, directory = os.path.split(named)
    release, _, system = directory.partition("@")
    if parent == str(layout.releases / model) and release.isdecimal() and (system or "0").isdecimal():
        return LinkKind.OURS, int(release)
    return (LinkKind.LINK if path.exists() else LinkKind.DANGLING), 0


def check_free(layout: StateLayout, repository: Path, models: Iterable[str], owned: Iterable[str] = ()) -> None:
    """Refuse models whose names belong to models that edge-ota did not install.

    Args:
        owned: models that releases serve already; a link of theirs that names something else is turned back.

    Raises:
        Occupied: with the way out.
    """
    for model in models:
        kind, _ = read_link(layout, repository, model)
        if kind is LinkKind.OWN or (kind is LinkKind.LINK and model not in set(owned)):
            path = repository / model
            raise Occupied(
                f"{path} is {kind.value}: edge-ota replaces no model that was copied in by hand. "
                f"Move it out of the model repository (mv {path} ~/), then run 'edge-ota apply'"
            )


def apply(layout: StateLayout, repository: Path, wanted: Mapping[str, int]) -> list[str]:
    """Make the links name the wanted releases (0 = no link). Return the models whose links changed.

    Raises:
        Occupied: a model of the same name is not ours; no link has changed.
        StoreError: the disk does not take a link.
    """
    check_free(layout, repository, (model for model, release in wanted.items() if release), wanted)
    changed = []
    for model, release in sorted(wanted.items()):
        kind, _ = read_link(layout, repository, model)
        target = str(releases.serving_directory(layout, model, release)) if release else ""
        if release and (kind is not LinkKind.OURS or os.readlink(repository / model) != target):
            files.replace_symlink(repository / model, target)
            changed.append(model)
        elif not release and kind is LinkKind.OURS:
            with files.wrap_errors(repository / model):
                files.unlink(repository / model)
                files.sync_directory(repository)
            changed.append(model)
    return changed


def read_links(layout: StateLayout, repository: Path) -> dict[str, int]:
    """Return model -> release for all links of edge-ota."""
    try:
        names = sorted(one.name for one in repository.iterdir() if one.is_symlink())
    except OSError:
        return {}
    found = {model: read_link(layout, repository, model) for model in names}
    return {model: release for model, (kind, release) in found.items() if kind is LinkKind.OURS}
