"""`edge-serve build`: the real command and its child process, over the stand-in for TensorRT."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge_serve.backends.tensorrt.plan import meta_path
from edge_serve.commands import build as command
from edge_serve.devices.device import Gpus
from edge_serve.engines.model import file_request
from edge_serve.engines.options import parse_options
from edge_serve.engines.process import _read, run_build
from edge_serve.engines.request import BuildProgress, EngineRequest
from edge_serve.engines.settings import CacheSettings
from edge_serve.errors import EdgeServeError, Internal
from edge_serve.workers.launch.interpreter import own_interpreter
from tests.backends import onnx_models

ROOT = Path(__file__).parents[2]
CONFIG = 'platform: "tensorrt_plan"\nmax_batch_size: 8\ndynamic_batching { preferred_batch_size: 4 }\n'


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let child processes find the stand-ins."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}/tests/stand_ins:{ROOT}")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)


def model(root: Path, name: str = "add", config: str = CONFIG) -> Path:
    """Write a model with an ONNX file. Return its version directory."""
    version = onnx_models.add_sub(root / name / "1" / "model.onnx", ("N", 4), onnx_models.FLOAT).parent
    (root / name / "config.pbtxt").write_text(config)
    return version


def request(folder: Path) -> EngineRequest:
    onnx = onnx_models.add_sub(folder / "model.onnx", ("N", 4), onnx_models.FLOAT)
    options = parse_options("--opt-shapes=A:2x4,B:2x4", "a test")
    return file_request(onnx, CacheSettings(folder / "cache"), Gpus(), options, 0)


def run(asked: EngineRequest, told: list[BuildProgress] | None = None) -> Any:
    interpreter = own_interpreter()
    return run_build(asked, interpreter.command, interpreter.variables, (told if told is not None else []).append)


def test_model_of_a_repository_is_built_by_its_configuration_and_then_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = model(tmp_path / "models")
    environ = {"CACHE_DIRECTORY": str(tmp_path / "cache"), "EDGE_SERVE_MODEL_REPOSITORY": f"/srv;{tmp_path / 'models'}"}
    assert command.run(["add"], environ) == 0
    text = capsys.readouterr().out
    assert f"{version}/model.plan: built in " in text
    assert "profile 0: A 1x4 to 8x4 (best 4x4), B 1x4 to 8x4 (best 4x4)" in text
    assert json.loads(meta_path(version / "model.plan").read_text())["tensorrt"] == "10.3.0"

    assert command.run([str(version.parent), "--json"], environ) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert found["seconds"] == 0.0
    assert found["engines"][0]["cached"]
    assert found["engines"][0]["meta"] == f"{version}/model.plan.meta.json"


def test_files_that_are_no_regular_files_are_neither_read_nor_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx = model(tmp_path) / "model.onnx"
    before = onnx.read_bytes()
    os.mkfifo(tmp_path / "pipe")
    for output, text in ((onnx, "is the ONNX file itself"), (tmp_path, "no regular file"), (tmp_path / "pipe", "no r")):
        assert command.run([str(onnx), "--output", str(output), "--cache", str(tmp_path / "cache")], {}) == 1
        assert text in capsys.readouterr().err
    assert onnx.read_bytes() == before
    (tmp_path / "pipe").rename(tmp_path / "pipe.onnx")
    assert command.run([str(tmp_path / "pipe.onnx")], {}) == 1
    assert "expected an ONNX file" in capsys.readouterr().err
    assert command.run([str(onnx), "--timing-cache", str(tmp_path / "pipe.onnx")], {}) == 1
    assert "name the file to keep it in" in capsys.readouterr().err


def test_arguments_of_edge_ota_build_a_file_with_the_configuration_around_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version, plan = model(tmp_path), tmp_path / "out" / ("0" * 64 + ".plan")
    arguments = [
        str(version / "model.onnx"), "--output", str(plan), "--cache", str(tmp_path / "cache"), "--timing-cache",
        str(tmp_path / "times" / "timing.cache"), "--workspace-mb", "64", "--json", "--fp16",
    ]  # fmt: skip
    assert command.run(arguments, {}) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seconds"] > 0
    (engine,) = found["engines"]
    assert (engine["plan"], engine["flags"], engine["workspace_bytes"]) == (str(plan), ["FP16"], 64 << 20)
    assert engine["profiles"][0]["A"] == [[1, 4], [4, 4], [8, 4]]
    assert plan.read_bytes().startswith(b"STAND-IN PLAN")
    assert meta_path(plan).exists()
    assert (tmp_path / "times" / "timing.cache").exists()
    assert list((tmp_path / "cache").glob(".*")) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nothing"], "no model 'nothing' in ROOT: expected its directory there"),
        (["add", "--output=x"], "--output is for an ONNX file: plans of model 'add' lie in its versions"),
        (["empty"], "found no ONNX file in 'ROOT/empty/1', expected model.onnx to build the engine from"),
        (["add", "--opt-shapes=x"], "found the shape 'x', expected INPUT:1x3x224x224"),
        (["mixed"], "some instance groups have secondary_devices and others have none"),
        (["words"], "parameter EDGE_SERVE_BUILD_ENGINE of model 'words': unrecognized arguments: yes"),
    ],
)
def test_request_that_cannot_be_built_is_refused_without_a_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    model(tmp_path)
    (model(tmp_path, "empty") / "model.onnx").unlink()
    group = "instance_group { kind: KIND_GPU }"
    model(tmp_path, "mixed", f"{CONFIG}{group}\n{group[:-1]} secondary_devices {{ kind: KIND_NVDLA }} }}\n")
    model(tmp_path, "words", f'{CONFIG}parameters {{ key: "EDGE_SERVE_BUILD_ENGINE" value {{ string_value: "yes" }} }}')
    assert command.run([*arguments, "--model-repository", str(tmp_path)], {}) == 1
    assert text.replace("ROOT", str(tmp_path)) in capsys.readouterr().err


def test_machine_without_tensorrt_or_device_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    version = model(tmp_path)
    monkeypatch.setenv("STAND_IN_CUDA", "devices=0")
    assert command.run([str(version / "model.onnx"), "--json", "--cache", str(tmp_path / "cache")], {}) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"]
    assert found["engines"] == []
    assert "CUDA cannot be used: cuda-bindings: " in found["error"]
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("crash", r"the process that built it crashed \(SIGSEGV\) during: Building Engine"),
        pytest.param("kill", r"was killed \(SIGKILL\) during: .* memory ran out: unload", marks=pytest.mark.slow),
    ],
)
def test_build_that_crashes_or_is_killed_is_one_error_and_the_next_one_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, text: str
) -> None:
    monkeypatch.setenv("STAND_IN_BUILD", f"ends={script}")
    asked = request(tmp_path)
    with pytest.raises(Internal, match=text):
        asyncio.run(run(asked))
    assert list((tmp_path / "cache").glob("*.plan")) == []
    if script == "kill":
        monkeypatch.delenv("STAND_IN_BUILD")
        assert not asyncio.run(run(asked)).cached


@pytest.mark.slow
def test_same_engine_that_is_asked_for_twice_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_BUILD", "milliseconds=150")
    asked = request(tmp_path)

    async def both() -> list[Any]:
        return list(await asyncio.gather(run(asked), run(replace(asked, output=str(tmp_path / "copy.plan")))))

    built = asyncio.run(both())
    assert sorted(one.cached for one in built) == [False, True]
    assert (tmp_path / "copy.plan").read_bytes() == Path(built[0].plan).read_bytes()


def own_children() -> set[str]:
    """Return the processes that this one has started; other tests may have left some that still end."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_cancelled_build_leaves_no_process_and_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_BUILD", "milliseconds=60000")
    children: list[set[str]] = []
    nice: list[int] = []
    before = own_children()

    async def cancelled() -> None:
        building = asyncio.Event()
        interpreter = own_interpreter()

        def tell(progress: BuildProgress) -> None:
            if progress.phase == "Building Engine" and not building.is_set():
                children.append(own_children() - before)
                nice.extend(os.getpriority(os.PRIO_PROCESS, int(pid)) for pid in children[0])
                building.set()

        task = asyncio.create_task(run_build(request(tmp_path), interpreter.command, interpreter.variables, tell))
        await building.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    (pids,) = children
    assert nice == [min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), signal.SIG_DFL)
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {"build.lock"}


def test_cancellation_that_comes_together_with_a_line_is_not_lost() -> None:
    """`asyncio.wait_for` before Python 3.12 returned the line, and the build ran to its end."""

    async def cancelled() -> None:
        stream, told = asyncio.StreamReader(), asyncio.Event()
        reading = asyncio.create_task(_read(stream, lambda progress: told.set()))
        stream.feed_data(b'{"phase": "parsing", "percent": null}\n')
        await told.wait()
        await asyncio.sleep(0)
        stream.feed_data(b'{"phase": "building", "percent": null}\n')
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait({reading}, timeout=1)
        lost = not reading.cancelled()
        stream.feed_eof()
        assert not lost

    asyncio.run(cancelled())


def test_error_of_a_child_process_of_another_version_keeps_its_text() -> None:
    """Its files may have been replaced under a server that runs, by those of a version with other fields."""

    async def failed() -> EdgeServeError | None:
        stream = asyncio.StreamReader()
        stream.feed_data(b'{"error": "no kernel for this layer", "kind": "InvalidArgument"}\n')
        stream.feed_eof()
        return (await _read(stream, lambda progress: None)).error

    error = asyncio.run(failed())
    assert type(error) is Internal
    assert error.message == "no kernel for this layer"


@pytest.mark.slow
def test_build_dies_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_BUILD", "milliseconds=60000")
    asked = request(tmp_path)

    async def killed() -> None:
        interpreter = own_interpreter()
        arguments = [*interpreter.command, "edge_serve", "build", asked.onnx, "--cache", asked.cache]
        shapes = "--opt-shapes=A:2x4,B:2x4"
        process = await asyncio.create_subprocess_exec(*arguments, shapes, env=dict(interpreter.variables))
        lock, children = Path(asked.cache, "build.lock"), Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not lock.exists():
            await asyncio.sleep(0.02)
        (child,) = children.read_text().split()
        process.kill()
        await process.wait()
        while Path(f"/proc/{child}").exists() and "\nState:\tZ" not in Path(f"/proc/{child}/status").read_text():
            await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(killed(), 30))


@pytest.mark.parametrize("as_json", [False, True])
def test_a_path_that_cannot_be_read_is_one_line(
    tmp_path: Path, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / ("x" * 300 + ".onnx")  # as a directory that the user may not read, for root too
    assert command.run([str(path), *(["--json"] if as_json else [])]) == 1
    output = capsys.readouterr()
    said = json.loads(output.out)["error"] if as_json else output.err
    assert f"cannot read '{path}': File name too long" in said
