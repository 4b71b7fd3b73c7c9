"""Checks of a release before it is installed: free model names, approved code. Also makes the model repository of a
trial.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ota import files
from ota.agent.components import Components
from ota.decide.code import find_code
from ota.documents.manifest import Manifest, Variant
from ota.documents.names import code_target
from ota.errors import Occupied, Untrusted
from ota.layout import StateLayout
from ota.store import journal, links
from ota.store.directories import SHARED_MODE
from ota.store.journal import Journal


def check_code(components: Components, manifest: Manifest, variant: Variant) -> None:
    """Refuse a release with code that the role `engines` does not list. Its blobs must be in the store.

    Raises:
        Untrusted: with the first such file.
    """
    models = {model: manifest.files_of(variant, model) for model in sorted(manifest.models)}
    for model, one, reason in find_code(models, lambda _, one: files.read_pieces(components.layout.blob(one.sha256))):
        approved = components.trust.target(code_target(manifest.family, one.sha256))
        if approved is None or tuple(approved) != (one.sha256, one.size):
            raise Untrusted(
                f"{manifest.bundle} {manifest.release}: {model}: {one.path} runs as code ({reason}), and the role "
                "engines does not list it: have that role sign it, or leave it out of the release"
            )


def check_names(components: Components, manifest: Manifest, entry: Journal) -> None:
    """Refuse models whose names are taken in the model repository.

    Raises:
        Occupied: by a model that was copied in by hand, or by a release of another bundle that serves, served before,
            or is on its way: both would have one directory and one link.
    """
    links.check_free(components.layout, components.settings.model_repository, manifest.models, entry.wanted_links())
    for other in journal.read_all(components.layout):
        for release in other.releases() if other.bundle != entry.bundle else ():
            if taken := set(manifest.models) & set(other.models.get(release, ())):
                raise Occupied(
                    f"{manifest.bundle} {manifest.release} has the model {min(taken)}, which the bundle "
                    f"{other.bundle} has in release {release}: give the model another name, or release "
                    f"{other.bundle} without it, twice, because a device keeps the release before"
                )


@contextlib.contextmanager
def trial_repository(layout: StateLayout, manifest: Manifest) -> Iterator[Path]:
    """Yield a model repository with the models of one release only. It is removed at the end."""
    place = layout.trial / manifest.bundle
    files.remove_tree(place)
    files.make_directory(place, SHARED_MODE)
    try:
        for model in sorted(manifest.models):
            with files.wrap_errors(place):
                files.symlink(place / model, str(layout.release(model, manifest.release)))
        yield place
    finally:
        files.remove_tree(place)
