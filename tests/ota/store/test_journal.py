from __future__ import annotations

from pathlib import Path

import pytest

from ota.layout import StateLayout
from ota.store import bad, journal, links
from ota.store.bad import BadRelease
from ota.store.journal import Journal, NextRelease, UpdateStage
from ota.strict_json import to_canonical_json
from tests.ota.bundles import files_of, install, serve

ENTRY = Journal(
    "det",
    {16: ("det",), 17: ("det", "post")},
    16,
    0,
    NextRelease(17, "onnx", UpdateStage.PROBATION, 3, 12.5),
    {"p99": 4},
)


def test_a_journal_is_read_as_it_was_written(layout: StateLayout) -> None:
    layout.journal.mkdir(parents=True)
    journal.write(layout, ENTRY)
    assert journal.read(layout, "det") == ENTRY
    assert journal.read(layout, "other") is None


@pytest.mark.parametrize(
    ("stage", "links_wanted"),
    [(UpdateStage.TESTED, {"det": 16, "post": 0}), (UpdateStage.SWITCHING, {"det": 17, "post": 17})],
)
def test_links_follow_the_stage(stage: UpdateStage, links_wanted: dict[str, int]) -> None:
    entry = Journal("det", ENTRY.models, 16, 0, NextRelease(17, "onnx", stage, 3, 0.0))
    assert entry.wanted_links() == links_wanted


@pytest.mark.fault("C6")
def test_a_torn_journal_counts_as_none(layout: StateLayout) -> None:
    layout.journal.mkdir(parents=True)
    journal.write(layout, ENTRY)
    path = journal.path_of(layout, "det")
    good = path.read_bytes()
    for cut in range(len(good) - 1):  # the last byte is the newline
        path.write_bytes(good[:cut])
        assert journal.read(layout, "det") is None
    for old, new in [(b'"active":16', b'"active":17'), (b'"schema":1', b'"schema":2'), (b"PROBATION", b"XROBATION")]:
        assert old in good
        path.write_bytes(good.replace(old, new))
        assert journal.read(layout, "det") is None
    path.write_bytes(to_canonical_json({}))
    assert journal.read(layout, "det") is None


@pytest.mark.fault("C6")
def test_a_missing_journal_is_rebuilt_from_releases_and_links(layout: StateLayout, repository: Path) -> None:
    for release in (15, 16, 17):
        serve(layout, repository, release=release)
    install(layout, release=18)
    journal.path_of(layout, "det").unlink()
    assert journal.bundles(layout) == ["det"]
    found = journal.rebuild(layout, repository, "det")
    assert (found.active, found.previous, found.next) == (17, 16, None)
    for variant, previous in (("trt", 16), ("onnx", 15)):  # onnx is installed
        failed = BadRelease("det", 16, variant, "", "trial", "it failed", 0.0, permanent=True)
        bad.save(layout, bad.load(layout).add(failed))
        assert journal.rebuild(layout, repository, "det").previous == previous


@pytest.mark.parametrize("variant", ["onnx", bad.ANY_VARIANT])
def test_a_release_has_failed_in_the_variant_that_is_installed(layout: StateLayout, variant: str) -> None:
    for release in (16, 17):
        install(layout, release=release)
    entries = [
        BadRelease("det", 15, variant, "", "trial", "it is not installed", 0.0, permanent=True),
        BadRelease("other", 16, variant, "", "trial", "it is of another bundle", 0.0, permanent=True),
        BadRelease("det", 16, variant, "", "fetch", "it passes", 0.0, permanent=False),
        BadRelease("det", 17, variant, "facts-1", "trial", "it failed", 0.0, permanent=True),
    ]
    bad.save(layout, bad.BadList(entries))
    assert journal.releases_failed_as_installed(layout, "det") == {17}


@pytest.mark.fault("C6")
def test_half_switched_links_without_a_journal_name_the_older_release(layout: StateLayout, repository: Path) -> None:
    for release in (16, 17):
        install(layout, "pair", release, {one: files_of(one, release) for one in ("a", "b")})
    links.apply(layout, repository, {"a": 17, "b": 16})
    assert journal.rebuild(layout, repository, "pair").active == 16


@pytest.mark.fault("C6")
def test_a_journal_that_is_newer_than_the_disk_is_noticed(layout: StateLayout, repository: Path) -> None:
    serve(layout, repository, release=16)
    entry = journal.read(layout, "det")
    assert entry is not None
    assert journal.can_serve(layout, entry)
    assert not journal.can_serve(layout, Journal("det", {17: ("det",)}, 17))
    assert journal.can_serve(layout, Journal("det"))
