"""Which versions keep the server from being ready, with a loader that only remembers."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edge_serve.errors import EdgeServeError, Internal, NotFound
from edge_serve.models.control.records import ModelRecord, ModelSummary, VersionRecord, explain_absent, unready_required
from edge_serve.models.versions.lifecycle import VersionEvent
from tests.models.control.house import House, play

BAD = Internal("v2 is bad")


def load_bad_version(house: House) -> Coroutine[Any, Any, None]:
    """Version 1 serves, and version 2 does not load."""

    async def load() -> None:
        house.put("m", 1)
        await house.registry.load("m")
        house.put("m", 2)
        house.loader.broken["m", 2] = BAD
        with pytest.raises(EdgeServeError):
            await house.registry.load("m")
        assert not house.registry.is_ready()

    return load()


@pytest.mark.parametrize("again", ["nothing new", "changed"])
def test_a_failed_version_counts_no_more_when_a_load_without_it_succeeds(tmp_path: Path, again: str) -> None:
    async def scenario(house: House) -> None:
        await load_bad_version(house)
        (tmp_path / "m" / "2").rmdir()
        if again == "changed":
            (tmp_path / "m" / "1" / "model.py").touch()
        await house.registry.load("m")

        assert house.registry.is_ready()
        assert ("m", "2", "UNAVAILABLE", "Internal: v2 is bad") in house.index()  # as Triton's
        assert [one.word for one in house.registry.summaries()] == ["ready"]

        house.put("m", 2)  # bad as ever
        with pytest.raises(EdgeServeError):
            await house.registry.load("m")
        assert not house.registry.is_ready()

    play(tmp_path, scenario)


def test_a_failed_version_counts_while_it_lies_in_the_repository_and_is_wanted(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        await load_bad_version(house)
        await house.registry.dismiss_removed()
        assert not house.registry.is_ready()

        (tmp_path / "m" / "2").rmdir()
        await house.registry.dismiss_removed()
        assert house.registry.is_ready()

    play(tmp_path, scenario)


def test_a_model_that_failed_counts_until_it_is_unloaded(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        house.loader.broken["m", 1] = BAD
        for _ in range(2):
            with pytest.raises(EdgeServeError):
                await house.registry.load("m")
            await house.registry.dismiss_removed()
            assert not house.registry.is_ready()
            await house.registry.unload("m")
            assert house.registry.is_ready()
            assert house.index() == [("m", "1", "UNAVAILABLE", "Internal: v2 is bad")]  # as Triton's

    play(tmp_path, scenario)


def test_the_index_leaves_out_an_unloaded_model_whose_directory_is_gone(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        for name in ("m", "served"):
            house.put(name, 1)
            await house.registry.load(name)
        await house.registry.unload("m")
        for name in ("m", "served"):
            shutil.rmtree(tmp_path / name)
        assert house.index() == [("served", "1", "READY", "")]
        unknown = house.registry.index(ready_only=False)
        assert [entry.name for entry in unknown] == ["m", "served"], "the repositories could not be read"

        house.put("m", 1)
        assert house.index() == [("m", "1", "UNAVAILABLE", "unloaded"), ("served", "1", "READY", "")]
        await house.registry.load("m")
        assert [state for _, _, state, _ in house.index()] == ["READY", "READY"]

    play(tmp_path, scenario)


def test_the_index_leaves_out_a_failed_model_once_its_directory_is_gone_and_it_does_not_count(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        house.loader.broken["m", 1] = BAD
        await house.registry.load_all()
        shutil.rmtree(tmp_path / "m")
        assert house.index() == [("m", "1", "UNAVAILABLE", "Internal: v2 is bad")]
        await house.registry.dismiss_removed()
        assert (house.index(), house.registry.is_ready()) == ([], True)

    play(tmp_path, scenario)


def test_a_version_that_drains_beside_its_successor_does_not_count(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.loader.busy = True
        house.put("m", 1)
        await house.registry.load("m")
        first = house.serving("m")
        (tmp_path / "m" / "1").rmdir()
        house.put("m", 2)
        await house.registry.load("m")
        assert [state for _, _, state, _ in house.index()] == ["UNLOADING", "READY"]
        assert house.registry.is_ready()
        assert [(one.version, one.requests, one.seconds) for one in house.registry.busy()] == [
            ("1", 1, 12),
            ("2", 1, 12),
        ]

        unloading = asyncio.create_task(house.registry.unload("m"))
        await asyncio.sleep(0.01)
        assert not house.registry.is_ready(), "as Triton, while nothing of the model serves"
        for served in (first, *house.loader.opened):
            if served.runner.on_idle is not None:
                served.runner.on_idle()
        await unloading
        await asyncio.sleep(0.01)
        assert house.registry.is_ready()

    play(tmp_path, scenario)


def test_required_models_alone_decide_readiness(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        house.put("broken", 1)
        house.loader.broken["broken", 1] = Internal("x")
        assert not house.registry.is_ready()
        await house.registry.load_all()
        assert house.registry.is_ready()

        house.serving("m").healthy = False
        assert not house.registry.is_ready()

    play(tmp_path, scenario, required=("m",))


def test_readiness_counts_every_version_of_the_models_that_matter(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        house.put("broken", 1)
        house.loader.broken["broken", 1] = Internal("x")
        assert house.registry.is_ready()

        assert len(await house.registry.load_all()) == 1

        assert not house.registry.is_ready()

    play(tmp_path, scenario)


def test_a_model_without_a_version_is_not_ready(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        house.put("bare")
        await house.registry.load_all()
        assert not house.registry.is_ready()
        with pytest.raises(NotFound) as caught:
            house.registry.lookup("bare", "")
        assert caught.value.message == (
            "Request for unknown model: 'bare' has no available versions; it failed to load: edge-serve status and the "
            "log of the server say why"
        )
        with pytest.raises(NotFound, match=r"^Request for unknown model: 'nowhere' is not found$"):
            house.registry.lookup("nowhere", "")

        await house.registry.unload("bare")
        assert house.registry.is_ready()  # nobody wants it any more

        with pytest.raises(EdgeServeError, match="at least one version"):
            await house.registry.load("bare")
        assert not house.registry.is_ready()
        house.put("bare", 1)
        await house.registry.load("bare")
        assert house.registry.is_ready()

    play(tmp_path, scenario)


def test_a_model_without_a_version_counts_until_its_directory_is_removed(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("bare")
        await house.registry.load_all()
        await house.registry.dismiss_removed()
        assert not house.registry.is_ready()
        assert [(name, state) for name, _, state, _ in house.index()] == [("bare", "UNAVAILABLE")]

        shutil.rmtree(tmp_path / "bare")
        await house.registry.dismiss_removed()
        assert house.registry.is_ready()
        assert (house.index(), list(house.registry.readiness())) == ([], [])

        house.put("bare", 1)
        await house.registry.load("bare")
        assert house.index() == [("bare", "1", "READY", "")]

    play(tmp_path, scenario)


def test_a_directory_that_does_not_answer_holds_up_no_other_dismissal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()
    real = Path.stat

    def stat(path: Path, **options: Any) -> os.stat_result:
        if path == tmp_path / "hangs" / "1":
            answer.wait(30)
        return real(path, **options)

    async def scenario(house: House) -> None:
        reader = house.repository._reader
        for name in ("gone", "hangs"):
            house.put(name, 1)
            house.loader.broken[name, 1] = BAD
        await house.registry.load_all()
        shutil.rmtree(tmp_path / "gone" / "1")
        with monkeypatch.context() as patch:
            patch.setattr(Path, "stat", stat)
            patch.setattr(reader, "read_all", partial(reader.read_all, seconds=0.1))
            await house.registry.dismiss_removed()
            answer.set()
        assert {entry.name: entry.dismissed for entry in house.entries()} == {"gone": True, "hangs": False}

    play(tmp_path, scenario)


def test_each_version_that_serves_or_should_has_its_readiness(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        def told() -> list[tuple[str, str, bool]]:
            return [(one.name, one.version, one.ready) for one in house.registry.readiness()]

        house.put("bare")
        house.put("m", 1, 2)
        house.put("unread", 1, readable=False)
        house.loader.broken["m", 2] = Internal("v2 is bad")
        assert told() == []
        await house.registry.load_all()
        assert told() == [("bare", "", False), ("m", "2", False), ("unread", "", False)]

        (tmp_path / "m" / "2").rmdir()
        await house.registry.load("m")
        house.registry.load_history.left_out["fatal"] = "the server died over it"
        assert told() == [("bare", "", False), ("fatal", "", False), ("m", "1", True), ("unread", "", False)]

        house.serving("m").healthy = False
        await house.registry.unload("bare")
        await house.registry.unload("unread")
        assert told() == [("fatal", "", False), ("m", "1", False)]
        await house.registry.unload("m")
        assert told() == [("fatal", "", False)]

    play(tmp_path, scenario)


def record(*failed: int, loading: tuple[int, ...] = ()) -> ModelRecord:
    """A model whose versions failed to load, or are loading."""
    made = ModelRecord("m", {number: VersionRecord(number) for number in (*failed, *loading)})
    for number in failed:
        made.versions[number].move(VersionEvent.FAILED, f"bad {number}")
    return made


def test_the_state_of_a_model_is_that_of_its_worst_version() -> None:
    one = record(1, loading=(2,))
    assert one.summarize() == ModelSummary("m", "failed", "bad 1")
    assert [version.version for version in one.failed()] == [1]
    one.dismiss()
    assert one.summarize().word == "loading"
    untried = ModelRecord("m", failure="no file")
    assert untried.summarize() == ModelRecord("m").summarize("no file") == ModelSummary("m", "failed", "no file")


def test_a_failure_that_is_wanted_is_not_dismissed() -> None:
    one = record(1, 2)
    one.dismiss(wanted=[2])
    assert [version.version for version in one.failed()] == [2]
    assert [entry.dismissed for entry in one.index_entries(ready_only=False)] == [True, False]
    assert one.readiness() == [("2", False)]


def test_required_models_that_are_not_ready_have_a_reason() -> None:
    assert explain_absent({"seg", "pose"}, ["seg2"]) == {
        "pose": "not in the repository", "seg": "not in the repository, did you mean 'seg2'?",
    }  # fmt: skip
    known = [
        ModelSummary("a", "ready", serves=True),
        ModelSummary("b", "failed", "no weights"),
        ModelSummary("b", "ready"),
    ]
    known += [ModelSummary("e", "unloaded"), ModelSummary("f", "unloaded")]  # removed before a version was tried
    found = unready_required({"a", "b", "c", "d", "e", "f"}, known, {"c": "unreadable", "f": "not in the repository"})
    assert [(one.name, one.word, one.reason) for one in found] == [
        ("b", "failed", "no weights"), ("c", "absent", "unreadable"), ("d", "absent", "not loaded"),
        ("e", "absent", "not loaded"), ("f", "absent", "not in the repository"),
    ]  # fmt: skip
