"""The journal of a bundle: the release that serves, the one before it, and the stage of the next one.

`journal/<bundle>.json` is written durably before each act, and contains its checksum. A journal that is lost, damaged,
or names releases that are not on this disk is rebuilt from the records of the releases and the links.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from ota import files
from ota.documents.names import NAME, name
from ota.errors import StoreError
from ota.layout import StateLayout
from ota.store import bad, links, releases
from ota.strict_json import Members, parse, to_canonical_json

SCHEMA = 1
_MOST_BYTES = 256 * 1024
_FILE_MODE = 0o600


class UpdateStage(str, Enum):
    """The stage of the next release. A GOOD release has no stage: it is `active`. UNDOING is the rollback."""

    PLANNED = "PLANNED"
    INSTALLED = "INSTALLED"
    READY = "READY"
    TESTED = "TESTED"
    SWITCHING = "SWITCHING"
    PROBATION = "PROBATION"
    UNDOING = "UNDOING"


#: stages in which the links name the next release
SWITCHED = (UpdateStage.SWITCHING, UpdateStage.PROBATION)
#: stages that end before another release is installed
UNFINISHED = (*SWITCHED, UpdateStage.UNDOING)


@dataclass(frozen=True, slots=True)
class NextRelease:
    """The release that an update installs.

    Attributes:
        tries: what is left: of builds, then of trials, then of starts of the service.
        since: when this stage began, seconds since the epoch.
        reason: why it waits; "" = it does not.
        mark: when this stage began by the monotonic clock, which no correction moves, and which a boot sets to 0.
    """

    release: int
    variant: str
    stage: UpdateStage
    tries: int
    since: float
    reason: str = ""
    mark: float = 0.0

    def elapsed(self, monotonic: float) -> float:
        """Return the seconds that this stage has lasted; after a boot, the seconds since then."""
        return monotonic - self.mark if monotonic >= self.mark else monotonic


@dataclass(frozen=True, slots=True)
class Journal:
    """The state of a bundle.

    Attributes:
        models: release -> its models, for all releases that are named here.
        active: the release that is GOOD and serves; 0 = none yet. previous: the one that was GOOD before it; 0 = none.
        baseline: figures of the active release, taken before the switch; `decide/probation` compares with them.
    """

    bundle: str
    models: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    active: int = 0
    previous: int = 0
    next: NextRelease | None = None
    baseline: Mapping[str, object] = field(default_factory=dict)

    def serving(self) -> int:
        """Return the release that the links should name."""
        return self.next.release if self.next and self.next.stage in SWITCHED else self.active

    def wanted_links(self) -> dict[str, int]:
        """Return model -> release for all models of this journal; 0 = no link."""
        release = self.serving()
        every = {model for models in self.models.values() for model in models}
        return {model: release if model in self.models.get(release, ()) else 0 for model in sorted(every)}

    def releases(self) -> tuple[int, ...]:
        """Return the releases that this journal names."""
        named = (self.active, self.previous, self.next.release if self.next else 0)
        return tuple(dict.fromkeys(one for one in named if one))


def path_of(layout: StateLayout, bundle: str) -> Path:
    """Return the path of a bundle's journal."""
    return layout.journal / f"{bundle}.json"


def write(layout: StateLayout, journal: Journal) -> None:
    """Replace the journal of a bundle durably. Models of releases that it no longer names are left out."""
    kept = set(journal.releases())
    found = {
        "schema": SCHEMA,
        "bundle": journal.bundle,
        "models": {str(one): list(models) for one, models in journal.models.items() if one in kept},
        "active": journal.active,
        "previous": journal.previous,
        "next": _next_document(journal.next),
        "baseline": dict(journal.baseline),
    }
    checked = {"journal": found, "sha256": hashlib.sha256(to_canonical_json(found)).hexdigest()}
    files.write_durably(path_of(layout, journal.bundle), to_canonical_json(checked), _FILE_MODE)


def read(layout: StateLayout, bundle: str) -> Journal | None:
    """Return the journal of a bundle; None = it is missing or damaged."""
    path = path_of(layout, bundle)
    try:
        data = files.read(path, _MOST_BYTES)
        if data is None:
            return None
        outer = Members(parse(data, str(path), _MOST_BYTES), str(path), StoreError)
        found, checksum = outer.table("journal", most=16), outer.sha256("sha256")
        if hashlib.sha256(to_canonical_json(found)).hexdigest() != checksum:
            return None
        return _journal(Members(found, str(path), StoreError), bundle)
    except Exception:  # a damaged file can raise any error; the journal is then rebuilt from the disk
        return None


def _next_document(found: NextRelease | None) -> object:
    if found is None:
        return None
    names = ("release", "variant", "tries", "since", "reason", "mark")
    return {"stage": found.stage.value, **{one: getattr(found, one) for one in names}}


def _journal(members: Members, bundle: str) -> Journal | None:
    if members.integer("schema") != SCHEMA or members.text("bundle") != bundle:
        return None
    models = {
        int(release): tuple(name(one, "a model") for one in found)
        for release, found in members.table("models", most=8).items()
    }
    following = members.optional("next")
    journal = Journal(
        bundle=bundle,
        models=models,
        active=members.integer("active"),
        previous=members.integer("previous"),
        next=_next(following) if following is not None else None,
        baseline=members.table("baseline", most=64),
    )
    members.end()
    return journal


def _next(members: Members) -> NextRelease:
    found = NextRelease(
        release=members.integer("release", least=1),
        variant=members.text("variant"),
        stage=UpdateStage(members.text("stage")),
        tries=members.integer("tries"),
        since=members.number("since"),
        reason=members.text("reason", ""),
        mark=members.number("mark", 0.0),
    )
    members.end()
    return found


def bundles(layout: StateLayout) -> list[str]:
    """Return the bundles with a journal or a release on this disk."""
    found = {one.bundle for one in releases.every_release(layout)}
    with contextlib.suppress(OSError):
        found |= {one.stem for one in layout.journal.glob("*.json") if NAME.fullmatch(one.stem)}
    return sorted(found)


def read_all(layout: StateLayout) -> Iterator[Journal]:
    """Yield the journals of all bundles, without those that are missing or damaged."""
    for bundle in bundles(layout):
        if (found := read(layout, bundle)) is not None:
            yield found


def rebuild(layout: StateLayout, repository: Path, bundle: str) -> Journal:
    """Return a journal made from the records of releases and the links, without writing it.

    Half switched links name two releases: the older one served before, so it is taken. A bundle without any link has no
    active release. The release before it is none of `releases_failed_as_installed`.
    """
    models: dict[int, tuple[str, ...]] = {}
    whole: dict[int, set[str]] = {}
    for record in releases.every_release(layout):
        if record.bundle == bundle:
            models[record.release] = record.models
            whole.setdefault(record.release, set()).add(record.model)
    complete = sorted(release for release in models if whole[release] == set(models[release]))
    named = links.read_links(layout, repository)
    candidates = [one for one in complete if one in {named.get(model) for model in models[one]}]
    active = min(candidates, default=0)
    failed = releases_failed_as_installed(layout, bundle)
    older = [one for one in complete if one < active and one not in failed]
    return Journal(bundle, {one: models[one] for one in complete}, active, max(older, default=0))


def releases_failed_as_installed(layout: StateLayout, bundle: str) -> set[int]:
    """Return the complete releases of a bundle that failed here for good in the variant that is installed.

    A release may serve although another variant failed before: an update then takes the next variant.
    """
    known = bad.load(layout)
    found = (one for one in releases.every_release(layout) if one.bundle == bundle)
    return {one.release for one in found if known.has_failed(bundle, one.release, one.variant)}


def can_serve(layout: StateLayout, journal: Journal) -> bool:
    """Return whether the serving release of this journal is complete on this disk."""
    return has_complete(layout, journal, journal.serving())


def has_complete(layout: StateLayout, journal: Journal, release: int) -> bool:
    """Return whether all models of a release are complete on this disk; True for release 0."""
    if not release:
        return True
    found = [releases.find_complete(layout, model, release) for model in journal.models.get(release, ())]
    return bool(found) and all(one is not None and one.bundle == journal.bundle for one in found)
