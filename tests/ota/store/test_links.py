from __future__ import annotations

import os
from pathlib import Path

import pytest

from ota.errors import Occupied, StoreError
from ota.layout import StateLayout
from ota.store import links
from ota.store.links import LinkKind
from tests.ota.bundles import install


def test_links_name_releases_and_are_removed(layout: StateLayout, repository: Path) -> None:
    install(layout, release=16)
    install(layout, release=17)
    assert links.apply(layout, repository, {"det": 16}) == ["det"]
    assert (repository / "det" / "16" / "model.onnx").exists()
    assert links.apply(layout, repository, {"det": 17}) == ["det"]
    assert os.readlink(repository / "det") == str(layout.release("det", 17))
    assert links.apply(layout, repository, {"det": 17}) == []
    assert links.read_links(layout, repository) == {"det": 17}
    assert links.apply(layout, repository, {"det": 0}) == ["det"]
    assert list(repository.iterdir()) == []


def test_a_missing_model_repository_is_named(layout: StateLayout, repository: Path) -> None:
    install(layout, release=17)
    with pytest.raises(StoreError, match=rf"^{repository}/none/\S+: No such file"):
        links.apply(layout, repository / "none", {"det": 17})


@pytest.mark.parametrize("kind", ["directory", "link"])
def test_a_model_that_was_copied_in_by_hand_is_refused(layout: StateLayout, repository: Path, kind: str) -> None:
    """With the way out, and no link changes."""
    elsewhere = repository.parent / "mine"
    elsewhere.mkdir()
    if kind == "directory":
        elsewhere.rename(repository / "det")
    else:
        (repository / "det").symlink_to(elsewhere)
    with pytest.raises(
        Occupied, match=r"Move it out of the model repository \(mv .*/det ~/\), then run 'edge-ota apply'"
    ):
        links.check_free(layout, repository, ["det"])
    if kind == "directory":
        with pytest.raises(Occupied):
            links.apply(layout, repository, {"aaa": 17, "det": 17})
        assert not (repository / "aaa").exists()


@pytest.mark.fault("C7")
def test_dangling_and_wrong_links_are_turned_back(layout: StateLayout, repository: Path) -> None:
    (repository / "det").symlink_to("/nowhere")
    assert links.read_link(layout, repository, "det") == (LinkKind.DANGLING, 0)
    links.check_free(layout, repository, ["det"])
    links.apply(layout, repository, {"det": 17})
    assert links.read_link(layout, repository, "det") == (LinkKind.OURS, 17)
    (repository / "det").unlink()
    (repository / "det").symlink_to(repository.parent)
    links.check_free(layout, repository, ["det"], owned=["det"])
    links.apply(layout, repository, {"det": 17})
    assert links.read_link(layout, repository, "det") == (LinkKind.OURS, 17)


@pytest.mark.fault("C7")
def test_a_directory_in_the_way_of_the_temporary_link_blocks_no_switch(layout: StateLayout, repository: Path) -> None:
    """Members of the group edge-serve may make one."""
    (repository / ".det.new").mkdir()
    (repository / ".det.new" / "x").write_text("")
    assert links.apply(layout, repository, {"det": 17}) == ["det"]
    assert links.read_link(layout, repository, "det") == (LinkKind.OURS, 17)
    assert sorted(one.name for one in repository.iterdir()) == [".det.new", "det"]
