"""Looks at the repositories and what follows from them, with a registry that only remembers."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import pytest

from edge_serve.errors import UnreadableEntry
from edge_serve.models.control.poller import Changes, ModelReload, Poller, Watch, came_at_once
from edge_serve.models.control.registry import Registry
from edge_serve.models.load.load_history import LoadHistory
from edge_serve.models.repository.repository import Repository, Snapshot, snapshot
from tests.stories import played

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


def test_entries_present_at_the_start_are_no_change(tmp_path: Path) -> None:
    model(tmp_path, "a", 1)
    watch = Watch(look(tmp_path))

    assert watch.compare(look(tmp_path), 100.0, SETTLE) == Changes()


def test_a_copy_counts_when_it_has_stayed_the_same(tmp_path: Path) -> None:
    watch = Watch({})
    directory = model(tmp_path, "a", 1)

    assert watch.compare(look(tmp_path), 0.0, SETTLE) == Changes(again=10.0)
    (directory / "1" / "weights").write_bytes(b"more of it")  # the copy goes on
    assert watch.compare(look(tmp_path), 10.0, SETTLE) == Changes(again=20.0)
    assert watch.compare(look(tmp_path), 19.9, SETTLE) == Changes(again=20.0)
    assert watch.compare(look(tmp_path), 20.0, SETTLE) == Changes(load=("a",))
    assert watch.compare(look(tmp_path), 30.0, SETTLE) == Changes()


def test_a_change_that_is_taken_back_is_none(tmp_path: Path) -> None:
    directory = model(tmp_path, "a", 1)
    watch = Watch(look(tmp_path))

    (directory / "notes").write_text("x")
    assert watch.compare(look(tmp_path), 0.0, SETTLE).again == 10.0
    (directory / "notes").unlink()

    assert watch.compare(look(tmp_path), 10.0, SETTLE) == Changes()


def test_a_model_that_is_renamed_into_place_is_seen_at_once(tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    watch = Watch({})
    renamed_in(root, model(tmp_path / "staging", "a", 1), root / "a")

    assert watch.compare(look(root), 0.0, SETTLE) == Changes(load=("a",))


def test_a_version_that_is_renamed_into_place_is_seen_at_once(tmp_path: Path) -> None:
    root = tmp_path / "models"
    directory = model(root, "a", 1)
    watch = Watch(look(root))
    renamed_in(root, model(tmp_path / "staging", "a", 2) / "2", directory / "2")

    assert watch.compare(look(root), 0.0, SETTLE) == Changes(load=("a",), changed=("a",))


def test_a_link_that_is_turned_is_seen_at_once(tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    old, new = model(tmp_path / "releases", "r1", 1), model(tmp_path / "releases", "r2", 1)
    (root / "a").symlink_to(old)
    watch = Watch(look(root))
    (root / ".a").symlink_to(new)
    (root / ".a").rename(root / "a")

    assert watch.compare(look(root), 0.0, SETTLE) == Changes(load=("a",), changed=("a",))


def test_removed_entries_are_seen_at_once(tmp_path: Path) -> None:
    directory = model(tmp_path, "a", 1, 2)
    model(tmp_path, "b", 1)
    watch = Watch(look(tmp_path))

    shutil.rmtree(directory / "2")
    assert watch.compare(look(tmp_path), 0.0, SETTLE) == Changes(load=("a",), changed=("a",))
    shutil.rmtree(tmp_path / "b")
    assert watch.compare(look(tmp_path), 0.0, SETTLE) == Changes(unload=("b",))
    assert watch.compare(look(tmp_path), 0.0, SETTLE) == Changes()


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

    assert watch.compare(scan(), 0.0, SETTLE).load == ("a",)


def test_an_unreadable_model_is_not_unloaded(tmp_path: Path) -> None:
    model(tmp_path, "a", 1)
    watch = Watch(look(tmp_path))

    assert watch.compare({}, 0.0, SETTLE, {"a"}) == Changes()
    assert watch.compare(look(tmp_path), 1.0, SETTLE) == Changes()
    assert watch.compare({}, 2.0, SETTLE) == Changes(unload=("a",))


def test_an_unreadable_model_that_is_named_is_not_unloaded(tmp_path: Path) -> None:
    model(tmp_path, "a", 1)
    watch = Watch(look(tmp_path))

    assert watch.take({}, ["a"], {"a"}) == Changes()
    assert watch.take({}, ["a"]) == Changes(unload=("a",))


def test_a_model_that_its_load_could_not_read_is_tried_again_unless_it_changes(tmp_path: Path) -> None:
    directory = model(tmp_path, "a", 1)
    watch = Watch(look(tmp_path))

    assert watch.compare(look(tmp_path), 0.0, SETTLE, {"a"}) == Changes(unread=("a",))
    (directory / "config.pbtxt").write_text("half")
    assert watch.compare(look(tmp_path), 1.0, SETTLE, {"a"}) == Changes(again=11.0)
    assert watch.compare(look(tmp_path), 11.0, SETTLE, {"a"}) == Changes(load=("a",), changed=("a",))


class FakeRegistry:
    """Remembers what it was told; `told` is set each time. An unload ends when `drained` is set, a load when `loaded`
    is."""

    repository: Repository

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.stopped: list[tuple[str, str]] = []
        self.rebound: list[str] = []
        self.drained = asyncio.Event()
        self.drained.set()
        self.loaded = asyncio.Event()
        self.loaded.set()
        self.told = asyncio.Event()
        self.error: Exception | None = None
        self.load_history = LoadHistory()

    def knows(self, name: str) -> bool:
        return name != "stranger"

    def find_rebound(self) -> list[str]:
        return self.rebound

    def failed_dependents(self, names: Iterable[str]) -> list[str]:
        return []

    async def load_all(self, names: Iterable[str], *, own_worker: bool, scanned: bool, unload_first: bool) -> list[str]:
        assert own_worker
        assert scanned
        self._tell("load", *names)
        if self.error is not None:
            raise self.error
        await self.loaded.wait()
        return []

    def stop_loading(self, name: str, reason: str) -> None:
        self.stopped.append((name, reason))

    async def unload(self, name: str) -> None:
        self._tell("unload", name)
        await self.drained.wait()

    def why_not(self, name: str) -> str:
        return self.repository.faults.get(name, "")

    def ready_versions(self, name: str) -> tuple[str, ...]:
        return ("1",)

    def _tell(self, *call: str) -> None:
        self.calls.append(call)
        self.told.set()

    async def next(self) -> tuple[str, ...]:
        await asyncio.wait_for(self.told.wait(), 10)
        self.told.clear()
        return self.calls[-1]


def poller(registry: FakeRegistry, *roots: Path, interval: float | None = 0.01, namespaced: bool = False) -> Poller:
    registry.repository = Repository(roots, namespaced=namespaced)
    return Poller(registry.repository, cast(Registry, registry), interval)


@played
async def test_changes_are_followed_while_it_runs(tmp_path: Path) -> None:
    model(tmp_path, "a", 1)
    registry = FakeRegistry()
    subject = poller(registry, tmp_path)
    await subject.scan_first()
    running = asyncio.create_task(subject.run())

    model(tmp_path, "b", 1)
    assert await registry.next() == ("load", "b")
    shutil.rmtree(tmp_path / "b")
    while registry.calls[-1] != ("unload", "b"):
        await registry.next()
    running.cancel()


@played
async def test_safe_mode_leaves_a_model_out_that_has_only_become_readable(tmp_path: Path) -> None:
    registry = FakeRegistry()
    registry.load_history.left_out["a"] = "it killed the service"
    subject = poller(registry, tmp_path)
    await subject.scan_first()
    running = asyncio.create_task(subject.run())

    model(tmp_path, "a", 1)  # as when its file system is mounted late
    assert await registry.next() == ("load", "a")
    assert registry.load_history.wanted(["a"]) == []
    model(tmp_path, "a", 2)
    await registry.next()
    assert registry.load_history.wanted(["a"]) == ["a"]
    running.cancel()


@played
async def test_safe_mode_forgets_a_model_that_is_removed(tmp_path: Path) -> None:
    model(tmp_path, "a", 1)
    registry = FakeRegistry()
    registry.load_history.left_out["a"] = "it killed the service"
    subject = poller(registry, tmp_path)
    await subject.scan_first()
    running = asyncio.create_task(subject.run())

    shutil.rmtree(tmp_path / "a")
    await registry.next()
    assert registry.load_history.left_out == {}
    running.cancel()


def test_a_scan_that_fails_unexpectedly_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        registry = FakeRegistry()
        subject = poller(registry, tmp_path)
        await subject.scan_first()
        failures = iter([RuntimeError("can't start new thread")] * 2)
        snapshots = subject._repository.snapshots

        def fail_twice() -> object:
            if (error := next(failures, None)) is not None:
                raise error
            return snapshots()

        monkeypatch.setattr(subject._repository, "snapshots", fail_twice)
        running = asyncio.create_task(subject.run())

        model(tmp_path, "a", 1)
        assert await registry.next() == ("load", "a")
        running.cancel()

    asyncio.run(story())
    assert "can't start new thread" in caplog.text


@played
async def test_a_model_that_was_never_loaded_is_not_unloaded(tmp_path: Path) -> None:
    model(tmp_path, "stranger", 1)
    registry = FakeRegistry()
    subject = poller(registry, tmp_path)
    await subject.scan_first()
    running = asyncio.create_task(subject.run())

    shutil.rmtree(tmp_path / "stranger")
    model(tmp_path, "b", 1)
    await registry.next()
    running.cancel()

    assert registry.calls == [("load", "b")]


@played
async def test_a_repository_that_vanishes_for_a_while_unloads_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "models"
    model(root, "a", 1)
    registry = FakeRegistry()
    subject = poller(registry, root)
    await subject.scan_first()
    running = asyncio.create_task(subject.run())

    root.rename(tmp_path / "away")
    while "cannot be followed" not in caplog.text:
        await asyncio.sleep(0.005)
    (tmp_path / "away").rename(root)
    model(root, "b", 1)
    assert await registry.next() == ("load", "b")
    running.cancel()
    assert registry.calls == [("load", "b")]
    assert caplog.text.count("cannot be followed") == 1


def test_polling_continues_after_a_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        registry = FakeRegistry()
        registry.error = RuntimeError("a fault of ours")
        subject = poller(registry, tmp_path)
        await subject.scan_first()
        running = asyncio.create_task(subject.run())

        for name in ("a", "b"):
            model(tmp_path, name, 1)
            assert await registry.next() == ("load", name)
        running.cancel()

    asyncio.run(story())
    assert "a fault of ours" in caplog.text


def test_without_an_interval_it_looks_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_serve.models.control.poller.SETTLE_ON_REQUEST", 0.02)

    async def story() -> None:
        registry = FakeRegistry()
        subject = poller(registry, tmp_path, interval=None)
        await subject.scan_first()
        running = asyncio.create_task(subject.run())
        model(tmp_path, "a", 1)
        await asyncio.sleep(0.05)
        assert registry.calls == []

        subject.request_scan()
        assert await registry.next() == ("load", "a")
        running.cancel()

    asyncio.run(story())


def test_without_an_interval_it_looks_until_the_repository_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("SETTLE_ON_REQUEST", "_TRY_AGAIN"):
        monkeypatch.setattr(f"edge_serve.models.control.poller.{name}", 0.02)

    async def story() -> None:
        registry = FakeRegistry()
        registry.load_history.unreadable = "no such directory"  # the load of the start has logged that
        subject = poller(registry, tmp_path / "models", interval=None)
        await subject.scan_first()
        running = asyncio.create_task(subject.run())

        await asyncio.sleep(0.1)
        assert caplog.messages == []
        model(tmp_path / "models", "a", 1)
        assert await registry.next() == ("load", "a")
        while registry.load_history.unreadable:
            await asyncio.sleep(0.005)
        model(tmp_path / "models", "b", 1)
        await asyncio.sleep(0.2)
        running.cancel()

        assert registry.calls == [("load", "a")], "from now on it looks when asked"

    asyncio.run(story())


@played
async def test_a_model_that_is_being_unloaded_delays_no_other(tmp_path: Path) -> None:
    """Not even if its files are back; it is loaded after its last answer."""
    model(tmp_path, "a", 1)
    registry = FakeRegistry()
    registry.drained.clear()
    subject = poller(registry, tmp_path)
    await subject.scan_first()
    running = asyncio.create_task(subject.run())

    shutil.rmtree(tmp_path / "a")
    assert await registry.next() == ("unload", "a")
    model(tmp_path, "a", 1)
    model(tmp_path, "b", 1)
    assert await registry.next() == ("load", "b")
    (told,) = await subject.reload(["a"])
    assert told.reason == "it is being unloaded, and loads again once its last request is answered"
    registry.drained.set()
    assert await registry.next() == ("load", "a")
    running.cancel()


@played
async def test_a_model_that_hangs_while_it_loads_delays_no_other(tmp_path: Path) -> None:
    """Its own load is stopped once its files change or are gone."""
    registry = FakeRegistry()
    registry.loaded.clear()
    subject = poller(registry, tmp_path)
    settled = asyncio.Event()
    subject.on_settled = settled.set
    await subject.scan_first()
    running = asyncio.create_task(subject.run())

    hanging = model(tmp_path, "a", 1)
    assert await registry.next() == ("load", "a")
    model(tmp_path, "b", 1)
    assert await registry.next() == ("load", "b")
    subject.request_scan()
    (hanging / "1/model.py").write_text("version = 1.1\n")
    assert await registry.next() == ("load", "a")
    shutil.rmtree(hanging)
    assert await registry.next() == ("unload", "a")
    changed, gone = "its files have changed meanwhile", "it is gone from the repository"
    assert registry.stopped == [("a", changed), ("b", changed), ("a", changed), ("a", gone)]
    assert not settled.is_set(), "the changes that were asked for are not loaded"
    registry.loaded.set()
    await asyncio.wait_for(settled.wait(), 10)
    running.cancel()


@pytest.mark.parametrize("beside", ["poll", "reload", "reload of the model"])
@played
async def test_a_reload_waits_for_changes_that_are_being_loaded(tmp_path: Path, beside: str) -> None:
    registry = FakeRegistry()
    root = tmp_path / "models"
    root.mkdir()
    subject = poller(registry, root)
    await subject.scan_first()
    renamed_in(root, model(tmp_path / "staged", "a", 1), root / "a")
    registry.loaded.clear()
    names = ["a"] if beside == "reload of the model" else []
    first = asyncio.create_task(subject.run() if beside == "poll" else subject.reload(names))
    assert await registry.next() == ("load", "a")
    reload = asyncio.create_task(subject.reload([]))
    await asyncio.wait([reload], timeout=0.05)
    assert not reload.done()
    registry.loaded.set()
    assert await reload == [ModelReload("a", ("1",), changed=True)]
    assert registry.calls == [("load", "a")]
    first.cancel()


@played
async def test_a_reload_does_not_wait_for_loads_of_models_that_have_not_changed(tmp_path: Path) -> None:
    registry = FakeRegistry()
    model(tmp_path, "a", 1)
    subject = poller(registry, tmp_path)
    await subject.scan_first()
    registry.loaded.clear()
    first = asyncio.create_task(subject.reload(["a"]))  # it does not serve, and hangs
    assert await registry.next() == ("load", "a")
    assert await asyncio.wait_for(subject.reload([]), 5) == []
    registry.loaded.set()
    assert await first == [ModelReload("a", ("1",), changed=False)]


@played
async def test_an_ensemble_that_cannot_follow_its_steps_is_tried_once_in_each_scan(tmp_path: Path) -> None:
    """Not while it loads, and not again because its load has ended."""
    registry = FakeRegistry()
    registry.rebound = ["e"]
    registry.loaded.clear()
    subject = poller(registry, tmp_path, interval=None)
    settled = asyncio.Event()
    subject.on_settled = settled.set
    await subject.scan_first()
    running = asyncio.create_task(subject.run())

    subject.request_scan()
    assert await registry.next() == ("load", "e")
    subject.request_scan()
    await asyncio.sleep(0.05)
    registry.loaded.set()
    await asyncio.wait_for(settled.wait(), 10)
    await asyncio.sleep(0.05)
    running.cancel()
    assert registry.calls == [("load", "e")]


@pytest.mark.parametrize("way", ["poll", "request", "reload"])
def test_a_model_that_its_load_could_not_read_is_loaded_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    def refuse() -> None:
        raise UnreadableEntry("does not answer")

    caplog.set_level("INFO")
    monkeypatch.setattr("edge_serve.models.repository.repository._LOAD_REST", 0.05 if way == "poll" else 60.0)

    async def story() -> None:
        model(tmp_path, "a", 1)
        registry = FakeRegistry()
        registry.loaded.clear()
        subject = poller(registry, tmp_path, interval=0.01 if way == "poll" else None)
        await subject.scan_first()
        found = subject._repository.scan()["a"]
        with pytest.raises(UnreadableEntry):
            subject._repository.read(found, refuse)
        running = asyncio.create_task(subject.run())

        if way == "request":
            subject.request_scan()
        reload = asyncio.create_task(subject.reload([])) if way == "reload" else None
        assert await registry.next() == ("load", "a")
        await asyncio.sleep(0.05)
        subject._repository.read(found, list)  # by the load
        registry.loaded.set()
        if reload is not None:
            assert [(one.name, one.changed) for one in await reload] == [("a", False)]
        await asyncio.sleep(0.05)
        running.cancel()
        assert registry.calls == [("load", "a")]
        assert registry.stopped == []
        assert "changed in the repository" not in caplog.text

    asyncio.run(story())


@played
async def test_a_reload_of_an_unreadable_model_says_why(tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    (root / "a").symlink_to(model(tmp_path / "releases", "r1", 1))
    registry = FakeRegistry()
    subject = poller(registry, root, interval=None)
    await subject.scan_first()
    (tmp_path / "releases/r1").rename(tmp_path / "releases/r2")
    (told,) = await subject.reload(["a"])
    assert (told.versions, told.changed) == (("1",), False)
    assert "r1', which does not exist" in told.reason
    assert registry.calls == []


@played
async def test_a_reload_names_a_model_of_a_namespace(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for root in (first, second):
        model(root, "a", 1)
    registry = FakeRegistry()
    subject = poller(registry, first, second, interval=None, namespaced=True)
    await subject.scan_first()
    model(second, "a", 2)
    found = await subject.reload(["a"])
    assert [(one.name, one.changed) for one in found] == [(f"{first}::a", False), (f"{second}::a", True)]
    assert registry.calls == [("load", f"{first}::a", f"{second}::a")]
