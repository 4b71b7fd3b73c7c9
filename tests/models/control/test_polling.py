"""What changes of a repository mean, on real directories."""

from __future__ import annotations

import shutil
from pathlib import Path

from edge_serve.models.control.polling import Changes, Watch, came_at_once
from edge_serve.models.repository.repository import Repository, Snapshot, snapshot

SETTLE = 10.0


def model(root: Path, name: str, *versions: int) -> Path:
    directory = root / name
    for version in versions:
        (directory / str(version)).mkdir(parents=True)
        (directory / str(version) / "model.py").write_text(f"version = {version}\n")
    (directory / "config.pbtxt").write_text('backend: "python"\n')
    return directory


def look(root: Path) -> dict[str, Snapshot]:
    return {name: snapshot(found) for name, found in Repository([root]).scan().items()}


def renamed_in(root: Path, staged: Path, target: Path) -> None:
    """A rename of a directory that was complete for longer than a tick of the kernel's clock."""
    before = snapshot(Repository([staged.parent]).scan()[staged.name])
    for _ in range(1000):
        staged.rename(target)
        if "" in snapshot(Repository([target.parent]).scan()[target.name]).whole:
            assert before.parts == snapshot(Repository([target.parent]).scan()[target.name]).parts
            return
        target.rename(staged)
    raise AssertionError("this file system does not tell a rename")


def test_what_lay_there_at_the_start_is_no_change(tmp_path: Path) -> None:
    model(tmp_path, "a", 1)
    watch = Watch(look(tmp_path))

    assert watch.look(look(tmp_path), 100.0, SETTLE) == Changes()


def test_a_copy_counts_when_it_has_stayed_the_same(tmp_path: Path) -> None:
    watch = Watch({})
    directory = model(tmp_path, "a", 1)

    assert watch.look(look(tmp_path), 0.0, SETTLE) == Changes(again=10.0)
    (directory / "1" / "weights").write_bytes(b"more of it")  # the copy goes on
    assert watch.look(look(tmp_path), 10.0, SETTLE) == Changes(again=20.0)
    assert watch.look(look(tmp_path), 19.9, SETTLE) == Changes(again=20.0)
    assert watch.look(look(tmp_path), 20.0, SETTLE) == Changes(load=("a",))
    assert watch.look(look(tmp_path), 30.0, SETTLE) == Changes()


def test_a_change_that_is_taken_back_is_none(tmp_path: Path) -> None:
    directory = model(tmp_path, "a", 1)
    watch = Watch(look(tmp_path))

    (directory / "notes").write_text("x")
    assert watch.look(look(tmp_path), 0.0, SETTLE).again == 10.0
    (directory / "notes").unlink()

    assert watch.look(look(tmp_path), 10.0, SETTLE) == Changes()


def test_a_model_that_is_renamed_into_place_is_seen_at_once(tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    watch = Watch({})
    renamed_in(root, model(tmp_path / "staging", "a", 1), root / "a")

    assert watch.look(look(root), 0.0, SETTLE) == Changes(load=("a",))


def test_a_version_that_is_renamed_into_place_is_seen_at_once(tmp_path: Path) -> None:
    root = tmp_path / "models"
    directory = model(root, "a", 1)
    watch = Watch(look(root))
    renamed_in(root, model(tmp_path / "staging", "a", 2) / "2", directory / "2")

    assert watch.look(look(root), 0.0, SETTLE) == Changes(load=("a",))


def test_a_link_that_is_turned_is_seen_at_once(tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    old, new = model(tmp_path / "releases", "r1", 1), model(tmp_path / "releases", "r2", 1)
    (root / "a").symlink_to(old)
    watch = Watch(look(root))
    (root / ".a").symlink_to(new)
    (root / ".a").rename(root / "a")

    assert watch.look(look(root), 0.0, SETTLE) == Changes(load=("a",))


def test_what_is_gone_is_seen_at_once(tmp_path: Path) -> None:
    directory = model(tmp_path, "a", 1, 2)
    model(tmp_path, "b", 1)
    watch = Watch(look(tmp_path))

    shutil.rmtree(directory / "2")
    assert watch.look(look(tmp_path), 0.0, SETTLE) == Changes(load=("a",))
    shutil.rmtree(tmp_path / "b")
    assert watch.look(look(tmp_path), 0.0, SETTLE) == Changes(unload=("b",))
    assert watch.look(look(tmp_path), 0.0, SETTLE) == Changes()


def test_a_file_that_is_written_in_a_version_is_not_at_once(tmp_path: Path) -> None:
    directory = model(tmp_path, "a", 1)
    before = look(tmp_path)["a"]
    (directory / "1" / "model.py").write_text("version = 11\n")

    assert not came_at_once(before, look(tmp_path)["a"])


def test_a_second_repository_with_the_same_name_is_a_change(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    model(first, "a", 1)
    second.mkdir()
    repository = Repository([first, second])

    def scan() -> dict[str, Snapshot]:
        return {name: snapshot(found) for name, found in repository.scan().items()}

    watch = Watch(scan())
    model(second, "a", 1)

    assert watch.look(scan(), 0.0, SETTLE).load == ("a",)


def test_a_model_that_cannot_be_read_now_is_not_gone(tmp_path: Path) -> None:
    model(tmp_path, "a", 1)
    watch = Watch(look(tmp_path))

    assert watch.look({}, 0.0, SETTLE, {"a"}) == Changes()
    assert watch.look(look(tmp_path), 1.0, SETTLE) == Changes()
    assert watch.look({}, 2.0, SETTLE) == Changes(unload=("a",))
