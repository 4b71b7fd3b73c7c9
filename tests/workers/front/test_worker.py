"""A worker over its processes: restarts that the machine refuses, and processes that break the protocol."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from edge_serve.backends.base import InstanceSpec
from edge_serve.workers.front import worker as worker_module
from edge_serve.workers.front.bls_broker import BlsBroker
from edge_serve.workers.front.channel import Channel
from edge_serve.workers.front.process import ProcessLimits
from edge_serve.workers.front.restart import RestartPolicy
from edge_serve.workers.front.worker import Worker
from edge_serve.workers.wire.frames import FrameKind
from tests.stories import played
from tests.workers.front.fake_process import FakeModel, Scene, fake_processes
from tests.workers.harness import Recorder, config, run, serving, spec, survives
from tests.workers.hostile import Said, run_hostile_processes


def fail_to_fork(*arguments: Any, **options: Any) -> Any:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


@pytest.fixture
def no_forks(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A monkeypatch for `subprocess.Popen`; attempts to start a process follow each other quickly."""
    monkeypatch.setattr(worker_module, "_REOPEN_LONGEST", 0.05)
    return monkeypatch


def test_a_worker_comes_back_once_the_machine_can_fork_again(
    tmp_path: Path, no_forks: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = []

    def fail(*arguments: Any, **options: Any) -> Any:
        attempts.append(arguments)
        fail_to_fork()

    async def work() -> None:
        async with serving(tmp_path) as served:
            with no_forks.context() as patch:
                patch.setattr(subprocess, "Popen", fail)
                os.kill(served.model.pids()[0], signal.SIGKILL)
                await served.listener.lost()
                while len(attempts) < 3:
                    await asyncio.sleep(0.01)
                assert "cannot start worker echo" in served.model.trouble()
                assert "TasksMax=" in served.model.trouble()
                assert await served.model.refusal(5)
            await survives(served)
            assert "cannot start" not in served.model.trouble()

    with caplog.at_level(logging.ERROR):
        run(work())
    assert len([line for line in caplog.messages if "cannot start" in line]) == 1


@played
async def test_a_model_may_call_others_before_the_answer_to_its_load_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers: list[object] = []
    original = Worker._load

    async def load(self: Worker, kind: int, question: dict[str, Any], *more: Any) -> dict[str, Any]:
        answer = await original(self, kind, question, *more)
        callers.append(self._broker.caller_of(question["model"]))
        return answer

    monkeypatch.setattr(Worker, "_load", load)
    async with serving(tmp_path):
        assert len(callers) == 1
        assert callers[0] is not None


@played
async def test_a_model_whose_worker_cannot_be_started_is_closed_at_once(
    tmp_path: Path, no_forks: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as served:
        no_forks.setattr(subprocess, "Popen", fail_to_fork)
        no_forks.setattr(worker_module, "_REOPEN_LONGEST", 60.0)
        os.kill(served.model.pids()[0], signal.SIGKILL)
        await served.listener.lost()
        await asyncio.sleep(0.1)
        began = time.monotonic()
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "answer", [(FrameKind.FAILED, b"[]"), (FrameKind.FAILED, b"\xff"), (FrameKind.CLOSED, b"{}"), b"\xff" * 16], ids=str
)
@played
async def test_a_worker_that_answers_nonsense_when_it_is_opened_again_is_killed_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Said
) -> None:
    run_hostile_processes(monkeypatch, tmp_path, {}, {FrameKind.OPEN: [answer]}, {})
    async with serving(tmp_path) as served:
        os.kill(served.model.pids()[0], signal.SIGKILL)
        await served.listener.lost()
        await served.listener.back()
        assert served.model.restarts == 2
        assert "broke the protocol" in served.model.trouble()


@pytest.mark.parametrize("answer", [(FrameKind.FAILED, b"[]"), (FrameKind.OPENED, b"{}"), b"\xff" * 16], ids=str)
@played
async def test_a_worker_that_answers_nonsense_when_it_is_closed_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Said
) -> None:
    run_hostile_processes(monkeypatch, tmp_path, {FrameKind.CLOSE: [answer]})
    async with serving(tmp_path):
        pass


@played
async def test_a_removed_instance_that_does_not_close_ends_its_worker_which_is_restarted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fake_processes(monkeypatch) as scene:
        first, other = await scene.open("first", 3), await scene.open("other")
        scene.processes[0].stuck = True
        await first.model.remove(1)
        lost = [(await first.listener.next())[:2] for _ in range(2)]
        assert lost == [("lost", 0), ("lost", 2)], "a removed instance is not reported"
        assert "an instance of model 'first' did not close within 30 s" in (await other.listener.lost()).message
        for instance in (0, 2):
            await first.listener.back(instance)
        await other.listener.back()
        (opened, _) = scene.processes[1].of_kind(FrameKind.OPEN)
        assert [one["name"] for one in opened["instances"]] == ["first_0", "first_2"]
        assert first.model.complete


@pytest.mark.parametrize("asked", [False, True])
def test_an_instance_may_be_removed_while_its_restarted_worker_opens_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, asked: bool
) -> None:
    async def work() -> None:
        async with fake_processes(monkeypatch) as scene:
            made = await scene.open("m", 3)
            scene.started = asked
            scene.hangs.add("m")
            scene.processes[0].kill("died")
            for instance in range(3):
                await made.listener.lost(instance)
            await asyncio.sleep(0.01)
            restarted, scene.started = scene.processes[1], True
            await made.model.remove(1)
            restarted.started.set()
            scene.hangs.clear()
            for instance in (0, 2):
                await made.listener.back(instance)
            await asyncio.sleep(0)
            (opened,) = restarted.of_kind(FrameKind.OPEN)
            question = {"model": opened["model"], "channel": opened["instances"][1]["channel"]}
            assert restarted.of_kind(FrameKind.CLOSE) == [question]
            await made.model.remove(0)  # the next restart opens the last one alone
            restarted.kill("died")
            await made.listener.lost(2)
            await made.listener.back(2)
            (opened,) = scene.processes[2].of_kind(FrameKind.OPEN)
            assert [one["name"] for one in opened["instances"]] == ["m_2"]
            assert made.listener.idle()

    with caplog.at_level(logging.ERROR):
        run(work())
    assert "does not open" not in caplog.text


@played
async def test_a_model_that_hangs_when_it_is_opened_again_keeps_no_other_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_processes(monkeypatch, ProcessLimits(slow_load=0.01)) as scene:
        models = [await scene.open(name) for name in ("a", "b", "c")]
        for crash in range(2):
            scene.hangs.add("a")
            scene.processes[crash].kill("died")
            for one in models[crash:]:  # the second time "a" is still away
                await one.listener.lost()
            await models[1].listener.back()
            await models[2].listener.back()
            assert not models[0].model.complete
        scene.hangs.clear()
        await models[0].listener.back()


async def open_beside_one_that_hangs(scene: Scene) -> tuple[FakeModel, FakeModel]:
    """Return a model that hangs when its worker opens it again, and one that is back beside it."""
    hung, other = await scene.open("a"), await scene.open("b")
    scene.hangs.add("a")
    scene.processes[0].kill("died")
    for one in (hung, other):
        await one.listener.lost()
    await other.listener.back()
    return hung, other


@pytest.mark.parametrize("unloaded", [False, True])
def test_a_model_whose_load_passes_its_limit_after_a_restart_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, unloaded: bool
) -> None:
    text = "model 'a' did not load within 1 s; its worker is not killed, because other models serve there: unload the"

    async def work() -> None:
        async with fake_processes(monkeypatch, ProcessLimits(slow_load=0.01)) as scene:
            hung, other = await open_beside_one_that_hangs(scene)
            scene.overdue.add("a")
            while text not in hung.model.trouble():
                await asyncio.sleep(0.001)
            assert text not in other.model.trouble()
            if unloaded:
                await hung.close()
            await asyncio.sleep(0.02)  # the limit passes again
            scene.hangs.clear()
            restarted = scene.processes[1]
            if unloaded:
                while not restarted.of_kind(FrameKind.CLOSE):
                    await asyncio.sleep(0.001)
                assert restarted.of_kind(FrameKind.CLOSE) == [{"model": restarted.of_kind(FrameKind.OPEN)[0]["model"]}]
            else:
                await hung.listener.back()
                assert text not in hung.model.trouble()
            assert len(scene.processes) == 2
            assert (hung.listener.idle(), other.listener.idle()) == (True, True)

    run(work())
    assert len([line for line in caplog.messages if text in line]) == 1


@played
async def test_a_model_whose_load_passes_its_limit_after_a_restart_gets_another_process_once_no_other_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fake_processes(monkeypatch, ProcessLimits(slow_load=0.01)) as scene:
        hung, other = await open_beside_one_that_hangs(scene)
        await other.close()
        scene.overdue.add("a")
        while len(scene.processes) < 3:
            await asyncio.sleep(0.001)
        assert "was killed: model 'a' did not load within 1 s" in hung.model.trouble()
        scene.hangs.clear()
        await hung.listener.back()


@played
async def test_models_are_opened_again_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_processes(monkeypatch) as scene:
        first, second = await scene.open("first"), await scene.open("second")
        scene.hangs.add("first")
        scene.processes[0].kill("died")
        for one in (first, second):
            await one.listener.lost()
        await asyncio.sleep(0.01)
        assert [one["spec"]["name"] for one in scene.processes[1].of_kind(FrameKind.OPEN)] == ["first"]
        scene.hangs.clear()
        for one in (first, second):
            await one.listener.back()


@played
async def test_instances_that_were_added_share_a_model_after_a_restart_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake_processes(monkeypatch) as scene:
        made = await scene.open("m")
        added = {number: InstanceSpec("added") for number in (1, 2)}
        made.model.join(await made.model.add(spec(tmp_path, config()), added, Recorder()))
        scene.processes[0].kill("died")
        for instance in range(3):
            await made.listener.lost(instance)
        for instance in range(3):
            await made.listener.back(instance)
        first, second = scene.processes[1].of_kind(FrameKind.OPEN)
        assert second["beside"] == first["model"]


def test_a_model_that_is_unloaded_while_its_worker_starts_again_is_not_opened(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with fake_processes(monkeypatch) as scene:
            gone, stays = await scene.open("gone"), await scene.open("stays")
            scene.started = False
            scene.processes[0].kill("died")
            await gone.listener.lost()
            await stays.listener.lost()
            while len(scene.processes) < 2:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            number = gone.arena.fd
            await gone.close()
            with tempfile.TemporaryFile() as file:
                assert file.fileno() == number, "no file of the worker"
                scene.processes[1].started.set()
                await stays.listener.back()
            (opened,) = scene.processes[1].of_kind(FrameKind.OPEN)
            assert opened["spec"]["name"] == "stays"
            assert os.path.samestat(os.fstat(scene.processes[1].descriptors[0]), os.fstat(stays.arena.fd))

    run(work())
    assert "does not open" not in caplog.text


@pytest.mark.parametrize(("step", "processes"), [("crashed", 2), ("started", 3)])
def test_a_supervisor_that_fails_costs_its_models_a_restart(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str, processes: int
) -> None:
    attempts = itertools.count()
    original = getattr(RestartPolicy, step)

    def fail_once(*arguments: Any) -> Any:
        if next(attempts) == 0:
            raise RuntimeError("asked to fail")
        return original(*arguments)

    async def work() -> None:
        async with fake_processes(monkeypatch) as scene:
            models = await scene.open("first"), await scene.open("other")
            monkeypatch.setattr(RestartPolicy, step, fail_once)
            scene.processes[0].kill("died")
            for one in models:
                assert "it is being restarted" in (await one.listener.lost()).message
                assert not one.model.complete
                if step == "crashed":
                    assert "the supervisor of worker echo failed" in one.model.trouble()
            while not (len(scene.processes) == processes and all(one.model.complete for one in models)):
                await asyncio.sleep(0.001)
            assert "the supervisor of worker echo failed" not in models[0].model.trouble()

    monkeypatch.setattr(worker_module, "_REOPEN_LONGEST", 0.01)
    run(work())
    assert len([line for line in caplog.messages if "failed: RuntimeError: asked to fail; next att" in line]) == 1


@pytest.mark.parametrize(
    ("owner", "step"),
    [(BlsBroker, "hang_up"), (BlsBroker, "release_slots"), (Channel, "drain"), (Channel, "close")],
)
def test_every_model_loses_its_batches_although_a_step_of_that_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, owner: type, step: str
) -> None:
    attempts = itertools.count()
    original = getattr(owner, step)

    def fail_once(*arguments: Any) -> None:
        original(*arguments)
        if next(attempts) == 0:
            raise RuntimeError("asked to fail")

    async def work() -> None:
        async with fake_processes(monkeypatch) as scene:
            models = await scene.open("first", 2), await scene.open("other")
            monkeypatch.setattr(owner, step, fail_once)
            scene.processes[0].kill("died")
            for one, instances in zip(models, (2, 1), strict=True):
                for instance in range(instances):
                    assert "died; it is being restarted" in (await one.listener.lost(instance)).message
                for instance in range(instances):
                    await one.listener.back(instance)
            assert len(scene.processes) == 2

    run(work())
    assert "asked to fail" in caplog.text


@played
async def test_an_instance_that_is_removed_while_its_worker_is_away_is_not_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fake_processes(monkeypatch) as scene:
        made = await scene.open("m", 2)
        for crash in range(3):
            scene.processes[crash].kill("died")
            for instance in range(2):
                await made.listener.lost(instance)
            if crash == 2:  # the third waits
                await made.model.remove(0)
                assert not made.model.complete
            for instance in range(crash // 2, 2):
                await made.listener.back(instance)
        (opened,) = scene.processes[3].of_kind(FrameKind.OPEN)
        assert [one["name"] for one in opened["instances"]] == ["m_1"]
        assert made.model.complete
