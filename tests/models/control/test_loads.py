"""Loads of one model and of several, with a loader that only remembers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from edge_serve.errors import Internal
from edge_serve.models.load.load_plan import LoadPlan
from edge_serve.models.repository.override import Override
from edge_serve.models.repository.repository import FoundModel
from tests.models.control.house import House, play, settle


def test_an_unchanged_model_is_not_loaded_again_but_an_override_is(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        await house.registry.load("m")
        await house.registry.load("m")
        assert len(house.loader.opened) == 1

        await house.registry.load("m", Override("{}"))
        assert len(house.loader.opened) == 2

        await house.registry.load("m")
        assert len(house.loader.opened) == 2, "the override stays"
        (tmp_path / "m" / "1" / "model.py").touch()
        await house.registry.load("m")
        assert len(house.loader.opened) == 3, "until a file changes"

        await house.registry.load("m", Override("{}"))
        await house.registry.unload("m")
        await house.registry.load("m")
        plan = house.plans()["m"]
        assert plan is not None
        assert plan.override is None, "or the model is unloaded"

        await house.registry.load("m", Override("{}", {"1/model.py": b""}))
        opened = len(house.loader.opened)
        await house.registry.load("m")
        assert len(house.loader.opened) == opened + 1, "files of a load do not stay"

    play(tmp_path, scenario)


def test_a_version_of_which_a_new_configuration_says_the_same_is_left_alone(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1, 2)
        opened = []
        for text in ("", "# said anew", "version_policy { all {} }", "max_batch_size: 1"):
            (tmp_path / "m" / "config.pbtxt").write_text(text)
            if "all" in text:
                (tmp_path / "m" / "3").mkdir()
            await house.registry.load("m")
            opened.append([served.version for served in house.loader.opened])
            house.loader.opened.clear()

        assert opened == [["1", "2"], [], ["3"], ["1", "2", "3"]]

    play(tmp_path, scenario)


def test_loads_of_one_model_follow_each_other(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        house.loader.gate = asyncio.Event()
        loads = [asyncio.create_task(house.registry.load("m")) for _ in range(5)]
        await settle()
        house.loader.gate.set()
        await asyncio.gather(*loads)

        assert len(house.loader.opened) == 1

    play(tmp_path, scenario)


def test_unreadable_and_absent_models_are_poll_errors(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("bad", 1, readable=False)
        for name in ("bad", "absent"):
            with pytest.raises(Internal, match=f"failed to load '{name}', failed to poll from model repository"):
                await house.registry.load(name)
        assert house.index() == [("bad", "", "UNAVAILABLE", "unreadable configuration")]

    play(tmp_path, scenario)


def test_an_absent_model_is_answered_with_the_nearest_name(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("classifier", 1)
        with pytest.raises(Internal, match=r"repository: no directory 'clasifier' in .*, did you mean 'classifier'\?$"):
            await house.registry.load("clasifier")
        with pytest.raises(Internal, match=r"no directory 'else' in [^,]*$"):
            await house.registry.load("else")

    play(tmp_path, scenario)


def test_an_internal_error_fails_one_model_and_no_other(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        for name in ("good", "unplanned", "unmade"):
            house.put(name, 1)
        plan = house.loader.plan

        def faulty(found: FoundModel, override: Override | None) -> LoadPlan:
            if found.name == "unplanned":
                raise ValueError("not thought of")
            planned = plan(found, override)
            if found.name == "unmade":
                planned.versions = cast(list[int], ["not a number"])
            return planned

        house.loader.plan = faulty  # type: ignore[method-assign]

        failures = await house.registry.load_all()

        assert failures == [
            "load failed for model 'unmade': ValueError: invalid literal for int() with base 10: 'not a number'",
            "failed to load 'unplanned', failed to poll from model repository: ValueError, see the server's log",
        ]
        assert house.serving("good").version == "1"

    play(tmp_path, scenario)
