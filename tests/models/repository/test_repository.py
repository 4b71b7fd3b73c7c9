"""The entries of model repositories on disk."""

from __future__ import annotations

import logging
import os
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.errors import InvalidArgument, UnreadableEntry
from edge_serve.models.control.records import repository_index
from edge_serve.models.repository import repository as repository_module
from edge_serve.models.repository.repository import (
    FoundModel,
    Repository,
    Snapshot,
    fingerprint,
    namespace_of,
    of_version,
    plain_name,
    versions,
    without_configuration,
)


def model(root: Path, name: str, *numbers: str) -> Path:
    directory = root / name
    for number in numbers:
        (directory / number).mkdir(parents=True)
        (directory / number / "model.py").write_text("x = 1\n")
    directory.mkdir(exist_ok=True)
    return directory


def test_scan_finds_directories_and_sorts_them(tmp_path: Path) -> None:
    model(tmp_path, "b", "1")
    model(tmp_path, "a", "1")
    for name in (".hidden", "__pycache__", "lost+found"):
        model(tmp_path, name, "1")
    (tmp_path / "README.md").write_text("not a model")

    assert list(Repository([tmp_path]).scan()) == ["a", "b"]


def test_a_name_that_is_no_text_is_left_out_and_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model(tmp_path, "good", "1")
    os.mkdir(os.fsencode(tmp_path) + b"/caf\xe9")
    repository = Repository([tmp_path])

    assert [list(repository.scan()) for _ in range(2)] == [["good"], ["good"]]
    assert len(caplog.messages) == 1
    assert r"caf\udce9' is left out: the name of a model must be UTF-8" in caplog.text


def test_a_name_that_would_garble_a_line_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model(tmp_path, "good", "1")
    model(tmp_path, "two\nlines", "1")
    (tmp_path / "a\nfile").touch()
    repository = Repository([tmp_path])

    assert list(repository.scan()) == ["good"]
    assert repository.faults["two\nlines"].startswith("the name of a model must not contain control characters")
    assert [message[:34] for message in caplog.messages] == [r"model 'two\nlines' is left out: the"[:34]]


def test_an_error_without_a_text_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index says why an entry cannot be read, and has no entry without a reason."""

    def fail(path: Path, root: Path) -> Path | None:
        raise MemoryError

    monkeypatch.setattr("edge_serve.models.repository.repository._target", fail)
    (tmp_path / "m").symlink_to(model(tmp_path, "target", "1"))
    repository = Repository([tmp_path])

    assert list(repository.scan()) == ["target"]
    index = repository_index({}, {}, {}, repository.faults, ready_only=False)
    assert [(one.name, one.reason) for one in index] == [("m", "MemoryError()")]


def test_a_repository_that_is_given_twice_is_one(tmp_path: Path) -> None:
    model(tmp_path, "m", "1")
    found = Repository([tmp_path, Path(f"{tmp_path}/")]).find("m")

    assert found is not None
    assert not found.ambiguous


def test_one_name_in_two_repositories_is_ambiguous(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    model(first, "same", "1")
    model(second, "same", "1")
    model(second, "other", "1")
    repository = Repository([first, second])

    found = repository.scan()

    assert {name: entry.ambiguous for name, entry in found.items()} == {"same": True, "other": False}
    same = repository.find("same")
    assert same is not None
    assert same.ambiguous


@pytest.mark.parametrize("name", ["../outside/m", "a/../m", ".."])
def test_no_name_leads_out_of_the_repository(tmp_path: Path, name: str) -> None:
    """The name of a step of an ensemble comes here as it was written."""
    model(tmp_path / "outside", "m", "1")
    (tmp_path / "models/a").mkdir(parents=True)
    for namespaced in (False, True):
        repository = Repository([tmp_path / "models"], namespaced=namespaced)
        with pytest.raises(InvalidArgument, match="must not contain path traversal characters"):
            repository.find(repository.named([name])[0])


def advice(link: Path) -> str:
    fresh = link.with_name(f".{link.name}")
    return f"point it at the directory of a model (ln -s DIRECTORY {fresh} && mv -T {fresh} {link}), or remove it"


def test_a_bad_link_costs_its_entry_and_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model(tmp_path, "good", "1")
    for name in ("loop", ".loop"):
        (tmp_path / name).symlink_to(name)
    (tmp_path / "up").symlink_to("..")
    (tmp_path / "gone").symlink_to("elsewhere/17")
    (tmp_path / "text").symlink_to(__file__)
    repository = Repository([tmp_path])

    assert [list(repository.scan()) for _ in range(2)] == [["good"], ["good"]]
    assert repository.faults == {
        "gone": f"the link leads to 'elsewhere/17', which does not exist: {advice(tmp_path / 'gone')}",
        "loop": f"the link leads to 'loop', which leads back to it: {advice(tmp_path / 'loop')}",
        "text": f"the link leads to '{__file__}', which is no directory: {advice(tmp_path / 'text')}",
        "up": f"leads to {tmp_path.parent}, which holds the repository itself: expected a model directory",
    }
    assert sorted(caplog.messages) == [
        f"model {name} is left out: {repository.faults[name]}" for name in ("gone", "loop", "text", "up")
    ]
    for name in ("loop", "gone", "text"):
        with pytest.raises(UnreadableEntry):
            repository.find(name)


def test_a_bad_link_in_a_model_costs_its_version(tmp_path: Path) -> None:
    directory = model(tmp_path, "m", "1")
    (directory / "2").symlink_to("2")
    (directory / "loop").symlink_to("loop")

    assert versions(directory) == [1]


def test_an_entry_that_cannot_be_read_again_is_logged_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    repository = Repository([tmp_path])
    for _ in range(2):
        (tmp_path / "m").symlink_to("/proc")
        assert [repository.snapshots() for _ in range(2)] == [({}, {"m"})] * 2
        (tmp_path / "m").unlink()
        assert repository.snapshots() == ({}, set())
    assert [message[:19] for message in caplog.messages] == ["model m is left out"] * 2


def test_an_entry_that_takes_long_to_refuse_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def slow(found: FoundModel) -> Snapshot:
        calls.append(found.name)
        time.sleep(0.05)
        raise UnreadableEntry("holds too much")

    monkeypatch.setattr(repository_module, "snapshot", slow)
    (tmp_path / "m").mkdir()
    repository = Repository([tmp_path])
    for _ in range(3):
        assert repository.snapshots() == ({}, {"m"})
    assert calls == ["m"]
    repository.retry()
    repository.snapshots()
    assert calls == ["m", "m"]


def test_a_model_that_a_load_could_not_read_is_due_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise UnreadableEntry("does not answer")

    monkeypatch.setattr(repository_module, "_LOAD_REST", 0.2)
    (tmp_path / "m").mkdir()
    repository = Repository([tmp_path])
    found = repository.find("m")
    assert found is not None
    for again in (partial(time.sleep, 0.25), repository.retry):
        with pytest.raises(UnreadableEntry):
            repository.read(found, refuse)
        assert (list(repository.snapshots()[0]), repository.snapshots()[1]) == (["m"], set()), "changes are seen"
        again()
        snapshots, unreadable = repository.snapshots()
        assert (list(snapshots), unreadable) == (["m"], {"m"})
    repository.read(found, list)
    assert (list(repository.snapshots()[0]), repository.snapshots()[1]) == (["m"], set())


def test_a_broken_link_in_another_repository_makes_no_model_unreadable(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    (first / "m").mkdir(parents=True)
    second.mkdir()
    (second / "m").symlink_to("nowhere")
    repository = Repository([first, second])
    snapshots, unreadable = repository.snapshots()
    assert (list(snapshots), unreadable, list(repository.faults)) == (["m"], set(), ["m"])


@pytest.mark.parametrize("member", ["both", "first", "second", "link", "nowhere", ".hidden", "a/../both", "..", ""])
def test_steps_are_bound_to_the_models_of_the_last_scan(tmp_path: Path, member: str) -> None:
    """The steps of an ensemble of the second repository; else each scan would load it again."""
    first, second = (tmp_path / name for name in ("first", "second"))
    for path in (first / "both", first / "first", second / "both", second / "second", second / ".hidden", second / "a"):
        path.mkdir(parents=True)
    (second / "link").symlink_to("missing")
    repository = Repository([first, second], namespaced=True)
    config = pb.ModelConfig()
    config.ensemble_scheduling.step.add(model_name=member)
    repository.bind(config, f"{second}::e")
    repository.scan()

    assert repository.bound(config, f"{second}::e")
    expected = {"first": str(first), **dict.fromkeys(("both", "second", "link"), str(second))}
    assert config.ensemble_scheduling.step[0].model_namespace == expected.get(member, "")
    for path in (first / "first", second / "both"):
        path.rmdir()
    (first / "second").mkdir()
    repository.scan()
    assert repository.bound(config, f"{second}::e") is (member not in ("first", "both"))


def test_an_entry_that_does_not_answer_may_be_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()
    first, second = (tmp_path / name for name in ("first", "second"))
    for root in (first, second):
        (root / "m").mkdir(parents=True)
    real = os.lstat

    def lstat(path: str) -> os.stat_result:
        if path == str(second / "m"):
            answer.wait(30)
        return real(path)

    repository = Repository([first, second], namespaced=True)
    reader = repository._reader
    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", lstat)
        patch.setattr(reader, "read_all", partial(reader.read_all, seconds=0.1))
        assert repository.named(["m"]) == [f"{first}::m", f"{second}::m"]
        answer.set()


def test_a_missing_repository_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"failed to read model repository '.*absent': No such file"):
        Repository([tmp_path / "absent"]).scan()


def test_a_model_that_went_meanwhile_is_no_missing_repository(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidArgument, match=r"failed to read the directory of a model '.*absent': No such file[^;]*$"
    ):
        versions(tmp_path / "absent")


def test_versions_are_integers_without_leading_zeros(tmp_path: Path) -> None:
    directory = model(tmp_path, "m", "0", "1", "10", "9", "00", "007", "v2", "-3", "\u0663", str(1 << 63))
    (directory / "11").write_text("a file, not a version")

    assert versions(directory) == [0, 1, 9, 10]


def test_directories_that_are_no_versions_are_logged_in_tritons_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for name in ("1", "003", "abc", "warmup", "golden", "__pycache__", ".git"):
        (tmp_path / name).mkdir()
    (tmp_path / "config.pbtxt").touch()
    assert versions(tmp_path) == [1]
    assert sorted((record.levelname, record.message.partition(": ")[0]) for record in caplog.records) == [
        ("INFO", "ignore version directory 'abc' which fails to convert to integral number"),
        ("WARNING", "ignore version directory '003' which contains leading zeros in its directory name"),
    ]


def test_the_fingerprint_changes_with_content_names_and_only_with_them(tmp_path: Path) -> None:
    directory = model(tmp_path, "m", "1")
    before = fingerprint(directory)
    (directory / "1" / "__pycache__").mkdir()
    (directory / "1" / "__pycache__" / "model.pyc").write_bytes(b"x")
    assert before == fingerprint(directory)

    os.utime(directory / "1" / "model.py", ns=(1, 1))
    touched = fingerprint(directory)
    assert before != touched

    (directory / "2").mkdir()
    assert touched != fingerprint(directory)


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    directory = model(tmp_path, "m", "1")
    for number in range(8):
        (directory / f"here{number}").symlink_to(".")
        (directory / "1" / f"up{number}").symlink_to("..")
    (directory / "2").symlink_to("1")

    paths = [row[0] for row in fingerprint(directory)]

    assert len(paths) == 8 + 2 + 2 * (8 + 1)
    assert {"1/model.py", "1/up0", "2/model.py", "here0"} <= set(paths)


def test_a_version_is_its_directory_and_what_all_share(tmp_path: Path) -> None:
    directory = model(tmp_path, "m", "1", "2")
    (directory / "config.pbtxt").write_text("")
    before = fingerprint(directory)
    (directory / "2" / "model.py").write_text("x = 22\n")
    after = fingerprint(directory)

    assert of_version(before, 1) == of_version(after, 1)
    assert of_version(before, 2) != of_version(after, 2)
    (directory / "labels.txt").write_text("cat")
    assert of_version(after, 1) != of_version(fingerprint(directory), 1)


def test_fingerprint_without_configuration_ignores_configuration_files(tmp_path: Path) -> None:
    directory = model(tmp_path, "m", "1")
    before = fingerprint(directory)
    (directory / "configs").mkdir()
    for name in ("config.pbtxt", "configs/other.pbtxt"):
        (directory / name).write_text("max_batch_size: 1")
    after = fingerprint(directory)

    assert before != after
    assert before == without_configuration(after)
    assert of_version(before, 1) == of_version(after, 1)


def test_names_and_namespaces_of_identities(tmp_path: Path) -> None:
    (tmp_path / "root" / "a::b").mkdir(parents=True)
    identity = next(iter(Repository([tmp_path / "root"], namespaced=True).scan()))
    assert (namespace_of(identity), plain_name(identity)) == (str(tmp_path / "root"), "a::b")
    assert (namespace_of("a::b"), plain_name("a::b")) == ("", "a::b")
    assert (namespace_of("../a"), plain_name("../a")) == ("", "../a")  # what an operator may name by mistake


def test_a_mistyped_repository_is_answered_with_the_one_beside_it(tmp_path: Path) -> None:
    (tmp_path / "model_repository").mkdir()

    with pytest.raises(InvalidArgument, match=f"did you mean '{tmp_path}/model_repository'"):
        Repository([tmp_path / "model_repositry"]).scan()
    with pytest.raises(InvalidArgument, match=r"expected a directory of models that this user can read$"):
        Repository([tmp_path / "other"]).scan()
