"""Opening and closing models: who lives with whom, what failures say, and that nothing is left."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from pathlib import Path

import psutil
import pytest

from edge_serve.backends.base import InstanceSpec
from edge_serve.errors import EdgeServeError, Internal, InvalidArgument
from edge_serve.workers.front.workers import ProcessLimits, Workers
from edge_serve.workers.memory.arena import Arena, Budget
from tests.processes import started_here
from tests.stories import played
from tests.workers.harness import Recorder, config, request, run, serving, spec, survives
from tests.yardstick import yardstick

pytestmark = pytest.mark.slow  # hundreds of models


@pytest.mark.parametrize(
    ("deed", "cls", "text"),
    [
        ("fail", InvalidArgument, "asked to fail"),
        ("raise", Internal, "ValueError: asked to raise"),
        ("exit", Internal, "worker echo ended with exit status 9 while it loaded model 'echo'"),
        ("sleep", Internal, "model 'echo' did not load within 0.5 s"),
    ],
)
@played
async def test_a_failed_load_says_why_and_leaves_nothing(
    tmp_path: Path, deed: str, cls: type[EdgeServeError], text: str
) -> None:
    workers = Workers(ProcessLimits(load=0.5 if deed == "sleep" else 20))
    arena = Arena("echo", Budget(1 << 20))
    for phase in ("on_describe", "on_open") if deed == "fail" else ("on_open",):
        made = spec(tmp_path, config(**{phase: deed}))  # type: ignore[arg-type]  # only parameters are named
        describing = workers.describe(made, "echo")
        opening = workers.open(made, "echo", [InstanceSpec("echo_0")], Recorder(), arena)
        unused, work = (opening, describing) if phase == "on_describe" else (describing, opening)
        unused.close()
        with pytest.raises(cls) as caught:
            await work
        assert text in str(caught.value)
        assert workers.workers() == 0
    arena.close()
    assert not started_here()


@pytest.mark.parametrize(
    ("parameter", "text", "said"),
    [
        *[("execution_timeout_ms", text, f" is '{text}', expected a number") for text in ("soon", "nan", "-1")],
        ("EDGE_SERVE_HANG_TIMEOUT_SECS", "nan", " is 'nan', expected a number"),
        ("EDGE_SERVE_MEMORY_MAX", "much", ": found 'much', expected bytes, as 2147483648, 2G or 512M"),
    ],
)
@played
async def test_a_limit_that_cannot_be_read_is_refused(tmp_path: Path, parameter: str, text: str, said: str) -> None:
    workers = Workers()
    arena = Arena("echo", Budget(1 << 20))
    made = spec(tmp_path, config(**{parameter: text}))  # type: ignore[arg-type]  # only parameters are named
    with pytest.raises(InvalidArgument, match=f"parameter {parameter} of model 'echo'{said}"):
        await workers.open(made, "echo", [InstanceSpec("e")], Recorder(), arena)
    assert workers.workers() == 0
    arena.close()


@played
async def test_a_model_opens_in_the_worker_that_described_it(tmp_path: Path) -> None:
    workers = Workers()
    arena = Arena("echo", Budget(1 << 20))
    listener = Recorder()
    completed = await workers.describe(spec(tmp_path, {"name": "echo"}), "echo", own_worker=True)
    assert [entry["name"] for entry in completed["input"]] == ["INPUT0"]
    (described,) = started_here()
    model = await workers.open(spec(tmp_path, completed), "echo", [InstanceSpec("e")], listener, arena, own_worker=True)
    assert model.pids() == [described.pid]
    await model.close()
    await workers.describe(spec(tmp_path, {"name": "echo"}), "echo")
    await workers.release_reserved(spec(tmp_path, {}))
    assert workers.workers() == 0
    arena.close()


@played
async def test_a_model_that_is_described_and_not_opened_is_closed_in_a_shared_worker(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        other = spec(tmp_path, config(on_close="exit"))
        await served.workers.describe(other, "echo")
        await served.workers.release_reserved(other)
        assert "ended with exit status 9" in (await served.listener.lost()).message
        await served.listener.back()


@played
async def test_models_of_one_name_are_opened_by_the_backends_that_described_them(tmp_path: Path) -> None:
    """As in two repositories with --model-namespacing."""
    workers = Workers()
    specs = []
    for name in "ab":
        (tmp_path / name).mkdir()
        specs.append(spec(tmp_path / name, config()))
        with (tmp_path / name / "backend.py").open("a") as file:
            file.write(
                "class Backend(EchoBackend):\n"
                "    def complete_config(self, spec):\n"
                "        self.found = spec.model_directory.name\n"
                "        return super().complete_config(spec)\n"
                "    def open(self, spec, instances):\n"
                "        (made,) = super().open(spec, instances)\n"
                "        made.execute = lambda *_: [Reply(parameters={'found': self.found})]\n"
                "        return [made]\n"
            )
    for one in specs:
        await workers.describe(one, "echo")
    for one in specs:
        arena, listener = Arena("echo", Budget(1 << 20)), Recorder()
        model = await workers.open(one, "echo", [InstanceSpec("e")], listener, arena)
        model.execute(0, 1, [request()])
        assert (await listener.reply()).replies[0].parameters == {"found": one.model_directory.name}
        await model.close()
        arena.close()
    assert workers.workers() == 0


@played
async def test_a_described_model_is_closed_and_not_its_namesake(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        specs = []
        for name, deed in (("a", "exit"), ("b", "")):
            (tmp_path / name).mkdir()
            specs.append(spec(tmp_path / name, config(on_close=deed)))
            await served.workers.describe(specs[-1], "echo")
        await served.workers.release_reserved(specs[0])
        assert "ended with exit status 9" in (await served.listener.lost()).message
        await served.listener.back()
        await served.workers.release_reserved(specs[1])


@pytest.mark.parametrize("phase", ["on_describe", "on_open"])
@played
async def test_a_model_that_does_not_load_is_closed_in_a_shared_worker(tmp_path: Path, phase: str) -> None:
    async with serving(tmp_path) as served:
        deeds = {phase: "fail", "on_close": "exit"}
        made = spec(tmp_path, config(**deeds))  # type: ignore[arg-type]  # only parameters are named
        arena = Arena("bad", Budget(1 << 20))
        describing = served.workers.describe(made, "echo")
        opening = served.workers.open(made, "echo", [InstanceSpec("bad")], Recorder(), arena)
        unused, work = (opening, describing) if phase == "on_describe" else (describing, opening)
        unused.close()
        with pytest.raises(EdgeServeError):
            await work
        assert "ended with exit status 9" in (await served.listener.lost()).message
        await served.listener.back()
        arena.close()


@played
async def test_a_failed_load_says_why_if_closing_fails_too(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        made = spec(tmp_path, config(on_open="fail", on_close="raise"))
        arena = Arena("bad", Budget(1 << 20))
        with pytest.raises(InvalidArgument, match="asked to fail"):
            await served.workers.open(made, "echo", [InstanceSpec("bad")], Recorder(), arena)
        arena.close()


@played
async def test_models_of_a_backend_share_a_worker_by_default(tmp_path: Path) -> None:
    workers = Workers()
    arenas = [Arena("echo", Budget(1 << 20)) for _ in range(3)]
    listeners = [Recorder() for _ in range(3)]
    first, second, alone = [
        await workers.open(spec(tmp_path, config()), "echo", [InstanceSpec("e")], listener, arena, own_worker=own)
        for listener, arena, own in zip(listeners, arenas, (False, False, True), strict=True)
    ]
    assert first.pids() == second.pids() != alone.pids()
    assert 1 << 20 < first.memory_bytes() < alone.memory_bytes()
    first.execute(0, 1, [request(do="exit")])
    for listener in listeners[:2]:
        await listener.lost()
        await listener.back()
    assert listeners[2].idle()
    await first.close()
    second.execute(0, 2, [request()])
    await listeners[1].reply()
    for model in (second, alone):
        await model.close()
    assert workers.workers() == 0
    for arena in arenas:
        arena.close()


@played
async def test_a_load_that_meets_a_lost_device_ends_its_worker_and_the_others_come_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        bad = spec(tmp_path, config(on_open="lose_device"))
        arena = Arena("bad", Budget(1 << 20))
        with pytest.raises(EdgeServeError, match="asked to lose the device"):
            await served.workers.open(bad, "echo", [InstanceSpec("bad")], Recorder(), arena)
        error = await served.listener.lost()
        assert "ended with exit status 75 (its GPU is lost)" in error.message
        await survives(served)
        arena.close()


@played
async def test_models_on_gpus_share_a_worker_without_those_on_the_cpu(tmp_path: Path) -> None:
    """A device that is lost ends the worker, and models on the CPU serve on."""
    workers = Workers()
    configs = [{**config(), "instance_group": [{"kind": kind}]} for kind in ("KIND_GPU", "KIND_CPU", "KIND_GPU")]
    arenas = [Arena("echo", Budget(1 << 20)) for _ in configs]
    first, on_cpu, second = [
        await workers.open(spec(tmp_path, one), "echo", [InstanceSpec("e", one["instance_group"][0]["kind"][5:])],
                           Recorder(), arena)
        for one, arena in zip(configs, arenas, strict=True)
    ]  # fmt: skip
    assert first.pids() == second.pids() != on_cpu.pids()
    assert workers.runs("echo", on_gpus=True)
    for model in (first, second):
        await model.close()
    assert workers.runs("echo")
    assert not workers.runs("echo", on_gpus=True)
    await on_cpu.close()
    for arena in arenas:
        arena.close()


@played
async def test_readiness_is_the_models_own(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        assert not await served.model.refusal(5)
        (tmp_path / "not_ready").touch()
        assert await served.model.refusal(5)


@pytest.mark.parametrize("busy", [False, True])
@played
async def test_a_model_that_does_not_close_is_killed(tmp_path: Path, busy: bool) -> None:
    async with serving(tmp_path, config(on_close="" if busy else "sleep"), limits=ProcessLimits(close=0.3)) as served:
        if busy:
            served.send(request(do="sleep", ms=20_000))
        (pid,) = served.model.pids()
        await served.close()
        assert not psutil.pid_exists(pid)
        assert served.listener.idle()


def test_instances_that_are_closed_at_once_are_closed_one_after_the_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Some by themselves, and the others with the model: each once, and then the backend."""

    async def work() -> None:
        async with serving(tmp_path, config(on_close="slowly"), instances=5) as served:
            removed = [asyncio.ensure_future(served.model.remove(number)) for number in range(3)]
            await asyncio.sleep(0)
            await asyncio.gather(*removed, served.close())

    run(work())
    assert not [line for line in caplog.messages if "did not close cleanly" in line]


@played
async def test_stop_ends_everything(tmp_path: Path) -> None:
    workers = Workers(ProcessLimits(close=1))
    arena = Arena("echo", Budget(1 << 20))
    model = await workers.open(spec(tmp_path, config()), "echo", [InstanceSpec("e")], Recorder(), arena)
    await workers.describe(spec(tmp_path, config()), "echo", own_worker=True)
    assert len(model.pids()) == 1
    await workers.stop()
    assert not started_here()
    arena.close()


@played
async def test_nothing_leaks_over_many_models(tmp_path: Path) -> None:
    """In the front end and in the worker, which stays because one model does."""
    async with serving(tmp_path) as served:
        worker = psutil.Process(served.model.pids()[0])

        async def cycle(count: int) -> None:
            for _ in range(count):
                arena = Arena("other", served.budget, 1 << 20)
                listener = Recorder()
                made = spec(tmp_path, config())
                model = await served.workers.open(made, "echo", [InstanceSpec("e")], listener, arena)
                model.execute(0, 1, [request(range(20_000))])
                reply = await listener.reply()
                assert reply.lease is not None
                reply.lease.release()
                await model.close()
                arena.close()

        def held() -> tuple[int, int, int]:
            gc.collect()
            return len(os.listdir("/proc/self/fd")), worker.num_fds(), worker.num_threads()

        await cycle(5)
        before, memory = held(), worker.memory_info().rss
        await cycle(100)
        end = time.monotonic() + 5
        while held() != before and time.monotonic() < end:  # a thread ends just after its answer
            await asyncio.sleep(0.01)
        assert held() == before
        assert worker.memory_info().rss - memory < 8 << 20


@played
async def test_the_loop_is_never_blocked_for_long(tmp_path: Path) -> None:
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - before)

    watching = asyncio.create_task(watch())
    with yardstick() as machine:
        async with serving(tmp_path) as served:
            served.send(request(do="exit"))
            await served.listener.lost()
            await survives(served)
    watching.cancel()
    assert longest < machine.allows(0.005)


@played
async def test_an_open_that_is_called_off_needs_its_workers_no_more(tmp_path: Path) -> None:
    workers, arena = Workers(ProcessLimits(close=1)), Arena("echo", Budget(1 << 20))
    slow = spec(tmp_path, config(on_open="sleep"))
    opening = asyncio.create_task(workers.open(slow, "echo", [InstanceSpec("echo_0")], Recorder(), arena))
    while not workers.workers():
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert workers.workers() == 0
    await workers.stop()
    arena.close()
