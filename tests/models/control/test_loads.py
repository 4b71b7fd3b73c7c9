"""Loads of one model and of several, with a loader that only remembers."""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.errors import EdgeServeError, Internal
from edge_serve.models.load import batch
from edge_serve.models.load.dependencies import LoadFailure
from edge_serve.models.load.load_plan import LoadPlan
from edge_serve.models.repository.override import Override
from edge_serve.models.repository.repository import FoundModel
from tests.models.control.house import House, play, settle
from tests.models.load.test_memory import Bounded


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


def test_a_load_that_waited_for_another_does_not_bring_back_older_files(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put_member("a")
        house.put_member("b")
        house.put_ensemble("e", "a", "b")
        await house.registry.load("b")
        go = asyncio.Event()
        house.loader.waits["a"] = go.wait
        loads = [asyncio.create_task(house.registry.load("a"))]
        await until(lambda: house.index()[0][2] == "LOADING")
        loads.append(asyncio.create_task(house.registry.load("e")))
        await until(lambda: house.registry.knows("e"))

        house.put("b", 2)
        await house.registry.load("b")
        go.set()
        await asyncio.gather(*loads)

        assert house.registry.ready_versions("b") == ("1", "2")
        assert house.serving("e").version == "1"

    play(tmp_path, scenario)


def test_a_model_that_hangs_delays_neither_loads_nor_unloads_of_others(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        for name in ("x", "y", "z"):
            house.put_member(name)
        house.put_ensemble("e", "x", "y")
        await house.registry.load_all()
        house.loader.waits["x"] = asyncio.Event().wait
        for name in ("x", "y"):
            house.put(name, 2)
        hanging = asyncio.create_task(house.registry.load_all(["x", "y"]))
        await until(lambda: house.registry.ready_versions("y") == ("1", "2"))

        house.put("y", 3)
        house.put("z", 2)
        assert await house.registry.load_all(["y", "z"]) == []
        assert house.registry.ready_versions("y") == ("1", "2", "3")
        await house.registry.unload("y")
        assert (house.registry.ready_versions("y"), house.registry.ready_versions("e")) == ((), ())

        hanging.cancel()
        await asyncio.wait([hanging])
        del house.loader.waits["x"]
        assert await house.registry.load_all(["e"]) == []
        assert house.registry.ready_versions("x") == ("1", "2")

    play(tmp_path, scenario)


def test_a_load_that_a_loading_model_asks_for_needs_no_slot_of_its_own(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        for name in ("a", "m", "other"):
            house.put_member(name)
        house.put_ensemble("e", "m")
        house.loader.waits["a"] = lambda: house.registry.load("e", nested=True)
        house.loader.waits["m"] = lambda: until(lambda: len(loads) == 2)
        loads = [asyncio.create_task(house.registry.load("a"))]
        await until(lambda: ("m", "1", "LOADING", "") in house.index())
        loads.append(asyncio.create_task(house.registry.load("other")))
        await asyncio.gather(*loads)
        assert [served.name for served in house.loader.opened] == ["m", "e", "a", "other"]

    play(tmp_path, scenario, at_once=1)


def test_a_nested_load_does_not_wait_for_the_memory_of_the_load_that_asked_for_it(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        for name in ("a", "m"):
            house.put(name, 1)
        house.loader.waits["a"] = lambda: house.registry.load("m", nested=True)
        with pytest.raises(EdgeServeError, match=r"'m' does not fit into memory: .*40 MiB are promised to loads"):
            await asyncio.wait_for(house.registry.load("a"), 5)

    play(tmp_path, scenario, memory=Bounded(1))


def test_an_unload_that_a_loading_model_asks_for_does_not_wait_for_a_load_that_waits_for_its_slot(
    tmp_path: Path,
) -> None:
    async def scenario(house: House) -> None:
        asked = asyncio.Event()

        async def call() -> None:
            await asked.wait()
            await house.registry.unload("x", begun=lambda: None)

        for name in ("p", "x"):
            house.put(name, 1)
        house.loader.waits["p"] = call
        loads = [asyncio.create_task(house.registry.load("p"))]
        await until(lambda: house.registry.load_history.loading() == ["p"])
        loads.append(asyncio.create_task(house.registry.load("x")))
        await until(lambda: "x" in house.plans() and house.registry._models["x"].lock.locked())
        asked.set()
        await asyncio.wait_for(asyncio.gather(*loads), 1)
        assert [served.name for served in house.registry.served()] == ["p"]

    play(tmp_path, scenario, at_once=1)


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_load_that_a_loading_model_asks_for_does_not_wait_for_a_slot_with_another_load(
    tmp_path: Path, at_once: int
) -> None:
    async def scenario(house: House) -> None:
        callers, asked = [f"p{number}" for number in range(at_once)], asyncio.Event()

        async def call() -> None:
            await asked.wait()
            await house.registry.load("x", nested=True)

        for name in ("x", *callers):
            house.put(name, 1)
        for name in callers:
            house.loader.waits[name] = call
        loads = [asyncio.create_task(house.registry.load(name)) for name in callers]
        await until(lambda: house.registry.load_history.loading() == callers)
        loads += [asyncio.create_task(house.registry.load("x")) for _ in range(2)]
        await asyncio.sleep(0.02)
        assert house.loader.opened == []
        asked.set()
        await asyncio.gather(*loads)
        first, *others = [served.name for served in house.loader.opened]
        assert (first, sorted(others)) == ("x", callers)
        assert not house.registry._swapper.slots.is_full()

    play(tmp_path, scenario, at_once=at_once)


def test_a_load_that_a_loading_model_asks_for_does_not_wait_for_memory_with_another_load(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(house: House) -> None:
        for name in ("a", "m"):
            house.put(name, 1)

        async def call() -> None:
            loads.append(asyncio.create_task(house.registry.load("m")))
            await until(lambda: "model m waits for memory" in caplog.text)
            await house.registry.load("m", nested=True)

        house.loader.waits["a"] = call
        loads = [asyncio.create_task(house.registry.load("a"))]
        await asyncio.wait(loads)
        errors = await asyncio.gather(*loads, return_exceptions=True)
        assert all("'m' does not fit into memory" in str(error) for error in errors)

    play(tmp_path, scenario, memory=Bounded(1))


def test_loads_of_ensembles_that_share_members_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        for name in "abc":
            house.put_member(name)
        house.put_ensemble("e", "a", "b")
        house.put_ensemble("f", "b", "c")
        house.put_ensemble("g", "f", "a", "e")

        async def call() -> None:
            await house.registry.load("c")

        house.loader.waits["a"] = call  # as a Python model may in `initialize`
        for number in (2, 3, 4):
            jobs = [house.registry.load(name) for name in ("e", "f", "g", "a", "g")]
            await asyncio.gather(*jobs, house.registry.unload("b"), return_exceptions=True)
            for name in "abc":
                house.put(name, number)
        assert await house.registry.load_all() == []
        assert {name: house.registry.ready_versions(name)[-1] for name in "abcefg"} == dict(
            zip("abcefg", "444111", strict=True)
        )

    play(tmp_path, scenario)


def test_an_unload_while_the_model_is_read_is_not_lost(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        house.loader.readable.clear()
        load = asyncio.create_task(house.registry.load("m"))
        await asyncio.sleep(0.01)
        await house.registry.unload("m")
        house.loader.readable.set()

        with pytest.raises(LoadFailure, match="it was unloaded while its load was under way"):
            await load
        assert house.registry.ready_versions("m") == ()
        assert house.registry.is_ready()
        await house.registry.load("m")
        assert house.registry.ready_versions("m") == ("1",)

    play(tmp_path, scenario)


def test_agents_delay_only_their_own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proven = threading.Event()

    def wait(config: pb.ModelConfig, directory: Path) -> None:
        assert proven.wait(10)

    monkeypatch.setattr(batch, "run_agents", wait)

    async def scenario(house: House) -> None:
        house.put("big", 1)
        (tmp_path / "big" / "config.pbtxt").write_text('model_repository_agents { agents { name: "checksum" } }')
        house.put("quick", 1)
        load = asyncio.create_task(house.registry.load("big"))
        await until(lambda: house.registry.knows("big"))
        await house.registry.load("quick")
        assert not house.registry.is_ready(), "it is loading"
        unload = asyncio.create_task(house.registry.unload("big"))
        await settle()
        assert not unload.done(), "it follows the load"

        proven.set()
        await asyncio.gather(load, unload)
        assert house.registry.ready_versions("big") == ()

    play(tmp_path, scenario)


def test_a_load_does_not_wait_for_the_last_requests_before_an_unload(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        house.loader.busy = True
        await house.registry.load("m")
        old = house.serving("m")
        unload = asyncio.create_task(house.registry.unload("m"))
        await settle()
        house.loader.busy = False
        await house.registry.load("m")

        assert house.serving("m") is not old
        assert not unload.done()
        assert old.runner.on_idle is not None
        old.runner.on_idle()
        await unload
        assert house.registry.ready_versions("m") == ("1",)

    play(tmp_path, scenario)


def test_a_member_that_is_loaded_again_survives_the_unload_before(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put_member("a")
        house.put_ensemble("e", "a")
        house.loader.busy = True
        await house.registry.load("e")
        old = house.serving("e")
        unload = asyncio.create_task(house.registry.unload("a"))
        await settle()
        house.loader.busy = False
        assert house.registry.ready_versions("a") == ("1",), "requests of the ensemble still call it"
        await house.registry.load("a")
        member = house.serving("a")
        assert old.runner.on_idle is not None
        old.runner.on_idle()
        for served in house.loader.opened:
            if served.runner.on_idle is not None:
                served.runner.on_idle()
        await unload

        assert house.serving("a") is member
        assert house.serving("e") is not old

    play(tmp_path, scenario)


def test_members_that_are_unloaded_with_an_ensemble_serve_until_its_last_request(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put_member("a")
        house.put_ensemble("e", "a")
        house.loader.busy = True
        await house.registry.load("e")
        ensemble, member = house.serving("e"), house.serving("a")
        member.runner.busy = False
        unload = asyncio.create_task(house.registry.unload("e", unload_dependents=True))
        await settle()
        assert (house.registry.ready_versions("e"), house.registry.ready_versions("a")) == ((), ("1",))
        assert ensemble.runner.on_idle is not None
        ensemble.runner.on_idle()
        await unload
        assert house.registry.ready_versions("a") == ()

    play(tmp_path, scenario)


@pytest.mark.parametrize("moment", ["reading", "member", "ensemble"])
def test_a_member_that_a_load_needs_is_not_unloaded_with_another_ensemble(tmp_path: Path, moment: str) -> None:
    async def scenario(house: House) -> None:
        house.put_member("m")
        house.put_ensemble("A", "m")
        house.put_ensemble("B", "m")
        await house.registry.load("B")
        if moment == "member":
            (tmp_path / "m" / "1" / "model.py").touch()  # the load of A loads it again
        gate = asyncio.Event()
        house.loader.waits["A" if moment == "ensemble" else "m"] = gate.wait
        if moment == "reading":
            house.loader.readable.clear()
        load = asyncio.create_task(house.registry.load("A"))
        await asyncio.sleep(0.02)
        unload = asyncio.create_task(house.registry.unload("B", unload_dependents=True))
        await asyncio.sleep(0.02)
        house.loader.readable.set()
        gate.set()
        await asyncio.gather(load, unload)

        assert [house.registry.ready_versions(name) for name in "ABm"] == [("1",), (), ("1",)]
        await house.registry.unload("A", unload_dependents=True)
        assert house.registry.ready_versions("m") == ()

    play(tmp_path, scenario)


def test_a_member_that_is_asked_for_meanwhile_is_not_unloaded(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put_member("m")
        house.put_ensemble("B", "m")
        await house.registry.load("B")
        (tmp_path / "m" / "1" / "model.py").touch()
        gate = asyncio.Event()
        house.loader.waits["m"] = gate.wait
        house.loader.readable.clear()
        load = asyncio.create_task(house.registry.load("m"))
        await asyncio.sleep(0.02)
        unload = asyncio.create_task(house.registry.unload("B", unload_dependents=True))
        await asyncio.sleep(0.02)
        house.loader.readable.set()
        gate.set()
        await asyncio.gather(load, unload)
        assert (house.registry.ready_versions("B"), house.registry.ready_versions("m")) == ((), ("1",))

    play(tmp_path, scenario)


def test_the_members_of_an_ensemble_that_is_unloaded_while_it_loads_go_with_it(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put_member("m")
        house.put_ensemble("A", "m")
        await house.registry.load("A")
        (tmp_path / "m" / "1" / "model.py").touch()
        gate = asyncio.Event()
        house.loader.waits["m"] = gate.wait
        load = asyncio.create_task(house.registry.load("A"))
        await asyncio.sleep(0.02)
        unload = asyncio.create_task(house.registry.unload("A", unload_dependents=True))
        await asyncio.sleep(0.02)
        gate.set()
        await asyncio.gather(load, unload, return_exceptions=True)

        assert (house.registry.ready_versions("A"), house.registry.ready_versions("m")) == ((), ())

    play(tmp_path, scenario)


def test_an_ensemble_that_never_served_is_loaded_by_the_next_request(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put_member("a")
        house.put_ensemble("e", "a")
        with pytest.raises(LoadFailure):
            await house.registry.load("e", Override('{"ensemble_scheduling": {"step": [{"model_name": "none"}]}}'))
        await house.registry.load("e")
        assert house.registry.ready_versions("e") == ("1",)
        assert house.registry.is_ready()

    play(tmp_path, scenario)


def test_an_ensemble_that_its_member_leaves_behind_has_failed(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put_member("a")
        house.put_ensemble("e", "a")
        house.put_ensemble("f", "e")
        assert await house.registry.load_all() == []
        house.put_member("a", output="Z")
        await house.registry.load("a")
        await settle()

        states = {name: (state, reason) for name, _, state, reason in house.index()}
        assert states["a"] == ("READY", "")
        assert states["e"][0] == states["f"][0] == "UNAVAILABLE"
        assert "output" in states["e"][1]
        assert "depends on 'e'" in states["f"][1]
        assert house.registry.failed_dependents(["a"]) == ["e", "f"]
        assert not house.registry.is_ready()

        house.put_member("a")
        await house.registry.load("a")
        assert house.registry.is_ready()
        assert house.registry.ready_versions("f") == ("1",)
        assert house.registry.failed_dependents(["a"]) == []

    play(tmp_path, scenario)


def test_an_ensemble_whose_member_is_lost_has_failed(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put_member("a")
        house.put_ensemble("e", "a")
        house.put_ensemble("f", "e")
        assert await house.registry.load_all() == []
        await house.replace("a", 1)

        assert [house.registry.ready_versions(name) for name in ("a", "e", "f")] == [(), (), ()]
        assert not house.registry.is_ready()
        assert "bad weights" in house.registry.why_not("e")

        house.loader.broken.clear()
        await house.registry.load("a")
        assert [house.registry.ready_versions(name) for name in ("a", "e", "f")] == [("1",), ("1",), ("1",)]
        assert house.registry.is_ready()

    play(tmp_path, scenario)


def test_a_member_that_lost_one_version_of_two_serves_its_ensemble(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put_member("a")
        house.put("a", 2)
        house.put_member("b")
        house.put_ensemble("e", "a", "b")
        assert await house.registry.load_all() == []
        await house.replace("a", 2)
        assert house.registry.ready_versions("a") == house.registry.ready_versions("e") == ("1",)

        (tmp_path / "b" / "1" / "weights").touch()
        await house.registry.load("b")
        assert house.registry.ready_versions("e") == ("1",)

        house.loader.broken.clear()  # the operator restores the files
        (tmp_path / "a" / "2" / "weights").unlink()
        house.loader.opened.clear()
        await house.registry.load("a")
        assert house.registry.ready_versions("a") == ("1", "2")
        assert [(one.name, one.version) for one in house.loader.opened] == [("a", "2"), ("e", "1")]

    play(tmp_path, scenario)


def test_a_model_that_could_not_be_tried_is_told_of_until_it_is_gone(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("bad", 1, readable=False)
        house.put_ensemble("e", "none")
        assert len(await house.registry.load_all()) == 2
        assert house.registry.is_ready(), "as in Triton"
        summaries = {one.name: one for one in house.registry.summaries()}
        assert (summaries["e"].word, "none" in summaries["e"].reason) == ("failed", True)
        assert [one.ready for one in house.registry.readiness()] == [False, False]

        for name in ("bad", "e"):
            await house.registry.dismiss_removed()
            assert not all(one.ready for one in house.registry.readiness())
            shutil.rmtree(tmp_path / name)
        await house.registry.dismiss_removed()
        assert not list(house.registry.readiness())

    play(tmp_path, scenario)


def test_a_model_that_is_removed_after_the_scan_has_not_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        await house.registry.load("m")
        shutil.rmtree(tmp_path / "m")
        with caplog.at_level(logging.WARNING):
            assert await house.registry.load_all(["m"], scanned=True) == []
        assert not caplog.records
        assert house.registry.ready_versions("m") == ("1",), "until the next scan"
        assert len(await house.registry.load_all(["m"])) == 1

    play(tmp_path, scenario)


def test_a_load_that_was_cancelled_leaves_nothing_locked(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put_member("a")
        house.put_ensemble("e", "a")
        house.loader.waits["a"] = asyncio.Event().wait
        load = asyncio.create_task(house.registry.load("e"))
        await until(lambda: house.index()[0][2] == "LOADING")
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load

        del house.loader.waits["a"]
        await house.registry.load("e")
        assert house.registry.ready_versions("e") == ("1",)

    play(tmp_path, scenario)


async def until(reached: Callable[[], bool]) -> None:
    while not reached():
        await asyncio.sleep(0.001)
