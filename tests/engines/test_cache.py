"""The cache of engines: found, evicted, locked, and what a killed build leaves."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from edge_serve.backends.tensorrt.plan import PlanMeta, meta_path
from edge_serve.engines import child
from edge_serve.engines.cache import EngineCache, export
from edge_serve.engines.settings import default_directory
from edge_serve.files import lock_shared

CONTENT = memoryview(b"x" * 100)
META = PlanMeta("10.3.0", "8.7", plan_bytes=100)


def never() -> None:
    raise AssertionError("the lock is free")


def key(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def stored(cache: EngineCache, name: str, used: int) -> Path:
    with cache.locked(never):
        plan = cache.store(key(name), CONTENT, META)
    os.utime(meta_path(plan), (used, used))
    return plan


def test_engine_is_found_by_its_key_and_counts_as_used(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path / "deep" / "cache", 1000)
    assert cache.find(key("a")) is None
    plan = stored(cache, "a", 1)
    assert cache.find(key("a")) == (plan, META)
    assert meta_path(plan).stat().st_mtime > 1


def test_engines_that_were_not_used_for_longest_are_removed_but_no_served_one(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path, 250)
    first, second = stored(cache, "first", 1), stored(cache, "second", 2)
    served = lock_shared(first)
    third = stored(cache, "third", 3)
    assert [plan.exists() for plan in (first, second, third)] == [True, False, True]
    assert not meta_path(second).exists()
    os.close(served)
    stored(cache, "fourth", 4)
    assert not first.exists()


def test_engine_larger_than_the_cache_is_kept_until_the_next_build(tmp_path: Path) -> None:
    assert stored(EngineCache(tmp_path, 10), "a", 1).exists()


def test_engines_make_room_for_a_build_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = EngineCache(tmp_path, 1000)
    plans = [stored(cache, name, used) for used, name in enumerate("abc")]

    def usage(path: Path) -> SimpleNamespace:
        return SimpleNamespace(free=310 - 100 * sum(plan.exists() for plan in plans))

    def left() -> list[bool]:
        return [plan.exists() for plan in plans]

    monkeypatch.setattr("edge_serve.engines.cache.shutil.disk_usage", usage)
    with cache.locked(never):
        assert (cache.make_room(10), left()) == (10, [True, True, True])
        assert (cache.make_room(400), left()) == (10, [True, True, True]), "they are too small"
        held = lock_shared(plans[0])
        assert (cache.make_room(50), left()) == (110, [True, False, True]), "a server serves the first"
        assert (cache.make_room(300), left()) == (110, [True, False, True]), "the others are too small without it"
        os.close(held)
        assert (cache.make_room(300), left()) == (310, [False, False, False])


@pytest.mark.parametrize("left", ["stage", "no description", "cut", "damaged description"])
def test_half_an_engine_is_never_used_and_is_removed_by_the_next_build(tmp_path: Path, left: str) -> None:
    cache = EngineCache(tmp_path, 1000)
    plan = stored(cache, "a", 1)
    if left == "stage":
        plan.rename(tmp_path / f".{plan.name}.77.new")
    elif left == "no description":
        meta_path(plan).unlink()
    elif left == "cut":
        plan.write_bytes(CONTENT[:50])
    else:
        meta_path(plan).write_text("{")
    assert cache.find(key("a")) is None
    with cache.locked(never):
        assert list(tmp_path.glob(".*.new")) + list(tmp_path.glob("*.plan")) == []


def test_second_build_waits_for_the_first_and_says_so(tmp_path: Path) -> None:
    cache, waiting, done = EngineCache(tmp_path, 1000), threading.Event(), threading.Event()

    def second() -> None:
        with EngineCache(tmp_path, 1000).locked(waiting.set):
            assert cache.find(key("a")) is not None
            done.set()

    with cache.locked(never):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10)
        cache.store(key("a"), CONTENT, META)
        assert not done.is_set()
    thread.join()
    assert done.is_set()


def test_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    cache = EngineCache(tmp_path, 1000)
    with cache.locked(never), monkeypatch.context() as patched:
        patched.setattr("edge_serve.engines.cache.os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            cache.store(key("a"), CONTENT, META)
    assert {path.name for path in tmp_path.iterdir()} == {"build.lock"}


def test_exported_plan_has_its_description_and_replaces_an_old_one(tmp_path: Path) -> None:
    plan, target = stored(EngineCache(tmp_path / "cache", 1000), "a", 1), tmp_path / "1" / "model.plan"
    for _ in range(2):
        export(plan, META, target)
        assert target.read_bytes() == bytes(CONTENT)
        assert meta_path(target).exists()
    assert sorted(path.name for path in target.parent.iterdir()) == ["model.plan", "model.plan.meta.json"]


def test_files_of_others_in_the_directory_stay(tmp_path: Path) -> None:
    """The directory may be one in which plans of the user's own lie: `--cache .`"""
    theirs = [tmp_path / name for name in ("model.plan", ".notes.new", f".{key('a')}.plan.old")]
    for path in theirs:
        path.write_bytes(b"theirs")
    cache = EngineCache(tmp_path, 10)
    stored(cache, "a", 1)
    described = export_to(cache, tmp_path / "exported.plan")
    stored(cache, "b", 2)

    assert [path for path in (*theirs, described) if not path.exists()] == []
    assert cache.find(key("a")) is None


def export_to(cache: EngineCache, target: Path) -> Path:
    found = cache.find(key("a"))
    assert found is not None
    export(*found, target)
    return target


def test_engine_that_is_being_removed_cannot_be_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server would serve a file that is gone by the time its worker opens it."""
    cache, refused = EngineCache(tmp_path, 150), []

    def remove(plan: Path) -> None:
        try:
            os.close(lock_shared(plan))
        except OSError:
            refused.append(plan)

    first = stored(cache, "first", 1)
    monkeypatch.setattr("edge_serve.engines.cache._remove", remove)
    stored(cache, "second", 2)
    assert refused == [first]


def test_plan_that_was_removed_cannot_be_held(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        lock_shared(tmp_path / "gone.plan")


def test_cache_of_a_service_lies_in_its_cache_directory() -> None:
    home = {"XDG_CACHE_HOME": "/home/u/.cache"}
    service = {**home, "CACHE_DIRECTORY": "/var/cache/edge-serve:/x"}
    assert default_directory(service) == Path("/var/cache/edge-serve/engines")
    assert default_directory(home) == Path("/home/u/.cache/edge-serve/engines")


def test_an_engine_that_a_build_uses_stays_until_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = EngineCache(tmp_path, 150)
    plan = stored(cache, "a", 1)
    with contextlib.ExitStack() as held:
        assert child._find(cache, key("a"), held) == (plan, META)
        stored(cache, "b", 2)
        assert plan.exists()
    stored(cache, "c", 3)
    assert not plan.exists()

    monkeypatch.setattr(cache, "find", lambda key: (plan, META))  # as before another build has removed it
    with contextlib.ExitStack() as held:
        assert child._find(cache, key("a"), held) is None
