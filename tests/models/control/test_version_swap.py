"""Versions that are swapped in, and old ones that drain, with a loader that only remembers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from edge_serve.aio.tasks import start_task
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument
from edge_serve.messages.infer import InferRequest
from edge_serve.models.load.batch import LoadBatch
from edge_serve.models.load.load_plan import LoadPlan
from edge_serve.scheduling.direct import DirectScheduler
from edge_serve.workers.front.process import SharedProcessLost
from tests.models.control.house import FakeServed, House, Idle, play, settle
from tests.models.run.test_driver import Scene


def test_one_failing_version_keeps_what_served_before(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        await house.registry.load("m")
        before = house.serving("m")
        house.put("m", 2, 3)
        house.loader.broken["m", 3] = Internal("no memory")

        with pytest.raises(InvalidArgument) as failure:
            await house.registry.load("m")

        assert (
            failure.value.message
            == "load failed for model 'm': version 3 is at UNAVAILABLE state: Internal: no memory;\n"
        )
        assert before is house.serving("m")
        assert not before.closed
        assert all(served.closed for served in house.loader.opened if served is not before)
        states = {version: state for _, version, state, _ in house.index()}
        assert states == {"1": "READY", "2": "UNAVAILABLE", "3": "UNAVAILABLE"}

    play(tmp_path, scenario)


@pytest.mark.parametrize(("retries", "loads"), [(1, False), (2, True)])
def test_a_version_that_fails_is_tried_again_as_often_as_asked(tmp_path: Path, retries: int, loads: bool) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        house.loader.broken["m", 1] = Internal("not yet")
        house.loader.broken_times = 2

        error = (await house.registry.load_all(["m"]) or [""])[0]

        assert (error == "") is loads
        assert house.loader.tries == (3 if loads else 2)
        assert house.index() == [("m", "1", "READY", "")] or "not yet" in error

    play(tmp_path, scenario, retries=retries)


def test_a_version_that_was_unloaded_first_serves_again_although_its_shared_worker_is_lost(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        await house.registry.load("m")
        (house.root / "m/1").rename(house.root / "m/2")
        original = house.loader.open

        async def open(plan: LoadPlan, version: int, *, own_worker: bool) -> FakeServed:
            if version == 2:
                raise Internal("bad weights")
            if not plan.own_worker:
                raise SharedProcessLost("worker shared was ended by SIGSEGV")
            return await original(plan, version, own_worker=own_worker)

        house.loader.open = open  # type: ignore[method-assign]
        (error,) = await house.registry.load_all(["m"], unload_first=True)
        assert "bad weights" in error
        assert ("m", "1", "READY", "") in house.index()

    play(tmp_path, scenario)


def test_models_that_are_lost_with_a_shared_worker_are_loaded_again_and_the_guilty_one_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(house: House) -> None:
        for name in ("bad", "good", "warming"):
            house.put(name, 1)
        begun, alone, original = list[str](), list[str](), house.loader.open

        async def open(plan: LoadPlan, version: int, *, own_worker: bool) -> FakeServed:
            if not plan.gets_own_worker(own_worker):
                begun.append(plan.name)
                while len(begun) < 3:
                    await asyncio.sleep(0)
                lost = SharedProcessLost("worker shared was ended by SIGSEGV")
                if plan.name == "warming":
                    raise InvalidArgument("failed to run warmup sample") from lost
                raise lost
            alone.append(plan.name)
            if plan.name == "bad":
                raise Internal("worker bad:1 was ended by SIGSEGV")
            return await original(plan, version, own_worker=own_worker)

        house.loader.open = open  # type: ignore[method-assign]
        with caplog.at_level(logging.WARNING):
            (error,) = await house.registry.load_all()
        assert "'bad': version 1 is at UNAVAILABLE state: Internal: worker bad:1 was ended by SIGSEGV" in error
        assert house.registry.load_history.failed == {"bad"}, "safe mode would leave the others out, too"
        assert sorted(alone) == ["bad", "bad", "good", "warming"], "as often as --model-load-retry-count says"
        states = {name: state for name, _, state, _ in house.index()}
        assert states == {"bad": "UNAVAILABLE", "good": "READY", "warming": "READY"}
        assert {record.name for record in house.plans().values() if record and record.own_worker} == set()

    play(tmp_path, scenario, retries=1)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == ["failed to load 'bad' version 1: Internal: worker bad:1 was ended by SIGSEGV"] * 2


def test_a_reload_switches_then_drains_the_old_one(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        house.loader.busy = True
        await house.registry.load("m")
        old = house.serving("m")
        (house.root / "m" / "1" / "weights").write_bytes(b"new")

        await house.registry.load("m")

        assert old is not house.serving("m")
        assert not old.closed
        await settle()
        assert old.runner.on_idle is not None
        old.runner.on_idle()
        await settle()
        assert old.closed
        assert house.index() == [("m", "1", "READY", "")]

    play(tmp_path, scenario)


async def replaced_too_late(house: House, prepare: Callable[[Scene, FakeServed], None]) -> Scene:
    """Replace a version that does not end its work in time, and return its driver's scene."""
    house.put("m", 1)
    await house.registry.load("m")
    old, scene = house.serving("m"), Scene(DirectScheduler(1))
    old.runner, old.statistics = cast(Idle, scene.driver), scene.statistics
    prepare(scene, old)
    (house.root / "m" / "1" / "weights").write_bytes(b"new")
    await house.registry.load("m")
    await asyncio.wait(house.registry._swapper.leaving)
    return scene


def test_requests_that_fail_after_the_drain_are_counted_by_the_successor(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        def submit(scene: Scene, old: FakeServed) -> None:
            for id in "abc":
                scene.submit(id)

        await replaced_too_late(house, submit)
        now = house.serving("m")
        total = now.lineage.total(now.statistics)
        assert (total.pending, total.fail.count) == (0, 3)

    play(tmp_path, scenario, drain_seconds=0.01)


def test_a_request_that_is_decoded_for_longer_than_the_drain_is_refused(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        def decode(scene: Scene, old: FakeServed) -> None:
            old.wait_released = asyncio.Event().wait  # type: ignore[assignment, method-assign]  # for ever

        scene = await replaced_too_late(house, decode)
        scene.submit("late")
        ((_, text),) = scene.answers()
        assert "has stopped accepting new inference requests" in text

    play(tmp_path, scenario, drain_seconds=0.01)


def test_unload_waits_for_the_last_answer(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        house.loader.busy = True
        await house.registry.load("m")
        served = house.serving("m")

        unload = asyncio.create_task(house.registry.unload("m"))
        await settle()
        assert house.index() == [("m", "1", "UNLOADING", "")]
        assert not unload.done()
        assert served.runner.on_idle is not None
        served.runner.on_idle()
        await unload

        assert house.index() == [("m", "1", "UNAVAILABLE", "unloaded")]
        await house.registry.unload("never seen")

    play(tmp_path, scenario)


def test_close_gives_up_on_what_stays_busy(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("idle", 1)
        await house.registry.load("idle")
        house.loader.busy = True
        house.put("busy", 1)
        await house.registry.load("busy")

        assert await house.registry.close(0.05) == 1

    play(tmp_path, scenario)


def test_close_waits_for_a_replaced_version_before_it_closes_the_models_that_it_may_call(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        for name in ("caller", "called"):
            house.put(name, 1)
        house.loader.busy = True
        await house.registry.load("caller")
        old = house.serving("caller")
        house.loader.busy = False
        await house.registry.load("called")
        (house.root / "caller" / "1" / "weights").write_bytes(b"new")
        await house.registry.load("caller")
        called = house.serving("called")

        close = asyncio.create_task(house.registry.close(8.0))
        await asyncio.sleep(0.05)
        assert not called.closed
        old.runner.answer()
        assert await close == 0
        assert called.closed

    play(tmp_path, scenario)


@pytest.mark.parametrize("replaced", [True, False])
@pytest.mark.parametrize("at_stop", [True, False])
def test_a_member_serves_until_the_last_request_of_an_ensemble_that_drains(
    tmp_path: Path, replaced: bool, at_stop: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It was replaced, because its other member was, or it was unloaded before."""
    caplog.set_level(logging.INFO)

    async def scenario(house: House) -> None:
        for name in "mn":
            house.put_member(name)
        house.put_ensemble("e", "m", "n")
        await house.registry.load_all(["m", "n"])
        house.loader.busy = True
        await house.registry.load("e")
        house.loader.busy = False
        old, member = house.serving("e"), house.serving("n")
        if replaced:
            (house.root / "m" / "1" / "weights").write_bytes(b"new")
            assert await house.registry.load_all(["m"]) == []
            assert old is not house.serving("e")
        else:
            start_task(house.registry.unload("e"), "unload e")
            await settle()

        begun = asyncio.Event()
        goal = house.registry.close(0.5) if at_stop else house.registry.unload("n", begun=begun.set)
        work = asyncio.create_task(goal)
        await asyncio.sleep(0.27)  # more than the half of the time of a stop in which all models wait
        assert not member.closed
        assert begun.is_set() or at_stop, "a model that unloads it may be the one that is waited for"
        text = "model n is unloaded once earlier requests of e are answered, which may call it"
        assert (text in caplog.text) is not at_stop
        old.runner.answer()
        await work
        assert member.closed

    play(tmp_path, scenario)


def test_close_fails_requests_that_wait_for_a_successor_at_once(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        house.put("m", 1)
        await house.registry.load("m")
        (house.root / "m" / "1" / "weights").write_bytes(b"new")
        house.loader.gate = asyncio.Event()
        load = asyncio.create_task(house.registry.load_all(["m"], unload_first=True))
        while not house.serving("m").swapping:
            await asyncio.sleep(0.01)
        queue, errors = house.serving("m").runner, list[EdgeServeError | None]()

        def submit() -> None:
            request = InferRequest("m", "", "", [])
            queue.submit(request, 1, None, lambda response: errors.append(response.error))

        submit()
        load.cancel()
        assert await asyncio.wait_for(house.registry.close(8.0), 1) == 0
        submit()
        assert [error and error.message for error in errors] == ["Server exiting"] * 2

    play(tmp_path, scenario, most_waiting=1)


def test_only_a_version_that_comes_changes_or_goes_makes_ensembles_anew(tmp_path: Path) -> None:
    async def scenario(house: House) -> None:
        async def changed() -> bool:
            found = house.repository.find("m")
            assert found is not None
            swapper, record = house.registry._swapper, house.registry._models["m"]
            return await swapper.swap(record, house.loader.plan(found, None), LoadBatch(own_worker=True))

        house.put("m", 1, 2)
        await house.registry.load("m")
        assert not await changed()
        house.put("m", 3)
        assert await changed()
        (house.root / "m" / "3").rmdir()
        assert await changed()
        assert not await changed()

    play(tmp_path, scenario)
