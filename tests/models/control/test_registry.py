"""Lookup, readiness, and index of the models, with a loader that only remembers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_serve.errors import EdgeServeError, Internal, NotFound, Unavailable
from edge_serve.models.versions.served import Served
from tests.models.control.house import House, play


def test_loaded_versions_are_found_and_the_highest_is_the_default(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1, 10, 9)
        await house.registry.load("m")

        assert house.serving("m").version == "10"
        assert house.registry.lookup("m", "9").version == "9"
        assert house.registry.ready_versions("m") == ("1", "9", "10")

    play(tmp_path, scenario)


def test_lookup_error_names_the_reason(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        await house.registry.load("m")
        registry = house.registry

        with pytest.raises(NotFound, match="Request for unknown model: 'x' is not found"):
            registry.lookup("x", "")
        with pytest.raises(NotFound, match="Request for unknown model: 'm' version 7 is not found"):
            registry.lookup("m", "7")
        await registry.unload("m")
        with pytest.raises(NotFound, match="Request for unknown model: 'm' has no available versions"):
            registry.lookup("m", "")
        with pytest.raises(Unavailable, match="'m' version 1 is not at ready state"):
            registry.lookup("m", "1")

    play(tmp_path, scenario)


def test_the_index_says_why_nothing_of_a_model_could_be_tried(tmp_path: Path) -> None:
    async def work(house: House) -> None:
        def told() -> dict[str, tuple[str, str]]:
            return {one.name: (one.state, one.reason) for one in house.entries()}

        house.put("bare")
        for name in ("bare", "nobody"):
            with pytest.raises(EdgeServeError):
                await house.registry.load(name)
        assert list(told()) == ["bare"]
        assert not house.registry.knows("nobody"), "clients may send any name"
        assert told()["bare"][0] == "UNAVAILABLE"
        assert "at least one version" in told()["bare"][1]

        await house.registry.unload("bare")
        assert told() == {"bare": ("", "")}
        with pytest.raises(EdgeServeError):
            await house.registry.load("bare")
        house.put("bare", 1)
        await house.registry.load("bare")
        assert told()["bare"] == ("READY", "")
        assert house.registry.why_not("bare") == ""

    play(tmp_path, work)


def test_a_registry_serves_what_it_opened(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1, 2)
        house.put("n", 1)
        await house.registry.load_all()

        served: list[Served] = house.registry.served()
        assert [(one.name, one.version) for one in served] == [("m", "1"), ("m", "2"), ("n", "1")]

    play(tmp_path, scenario)


def test_a_request_with_namespaces_reads_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked up on the event loop, and a client may send any name."""

    def lstat(path: str) -> None:
        raise AssertionError(f"{path} is read")

    async def scenario(house: House) -> None:
        house.repository.namespaced = True
        house.put("m", 1)
        house.put_member("a")
        house.put_ensemble("e", "a")
        house.put("bad", 1)
        house.loader.broken[f"{tmp_path}::bad", 1] = Internal("no memory")
        assert len(await house.registry.load_all()) == 1
        with monkeypatch.context() as patch:
            patch.setattr(os, "lstat", lstat)
            assert house.serving("m").version == "1"
            with pytest.raises(NotFound, match="'nosuch' is not found"):
                house.registry.lookup("nosuch", "")
            with pytest.raises(NotFound, match="bad' has no available versions; it failed to load"):
                house.registry.lookup("bad", "")
            assert house.registry.ready_versions("nosuch") == ()
            assert house.registry.find_rebound() == []

    play(tmp_path, scenario)


def test_clients_see_no_namespace(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.repository.namespaced = True
        house.put("m", 1)
        await house.registry.load_all()
        await house.registry.unload("m")
        for name in ("m", f"{tmp_path}::m"):
            for version, text in (
                ("", "'m' has no available versions"),
                ("1", "'m' version 1 is not at ready state"),
                ("7", "'m' version 7 is not found"),
            ):
                with pytest.raises(EdgeServeError, match=f"^Request for unknown model: {text}$"):
                    house.registry.lookup(name, version)

    play(tmp_path, scenario)
