"""EXECUTION_ENV_PATH: a model's own interpreter and packages, and what is said when they do not serve."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from edge_serve.backends.base import InstanceSpec, ModelSpec
from edge_serve.backends.packs import Pack
from edge_serve.errors import EdgeServeError, InvalidArgument
from edge_serve.files import lock_shared, locked
from edge_serve.messages.infer import InferRequest
from edge_serve.messages.tensors import DataType, InferTensor
from edge_serve.workers.front.workers import OpenedModel, Workers
from edge_serve.workers.launch import environments as launch_environments
from edge_serve.workers.launch.environments import Environments
from edge_serve.workers.launch.interpreter import environment_cache
from edge_serve.workers.memory.arena import Arena, Budget
from tests.server.bad_entries import silent_file_systems
from tests.stories import played
from tests.workers.harness import Recorder, run
from tests.workers.venvs import make_environment, pack

MODEL = """
import os, sys
import numpy as np
import triton_python_backend_utils as pb_utils
import clash
from .sibling import describe

class TritonPythonModel:
    def execute(self, requests):
        text = describe(clash.__version__, sys.prefix, os.environ.get("VIRTUAL_ENV", ""))
        answer = pb_utils.Tensor("OUT", np.array([text.encode()], object))
        return [pb_utils.InferenceResponse([answer]) for _ in requests]
"""
SIBLING = """
def describe(*parts):
    return "|".join(parts)
"""
POOL = """
import multiprocessing, sys
import numpy as np
import triton_python_backend_utils as pb_utils

def describe(number):
    return "|".join([str(number), sys.prefix, str("edge_serve.workers" in sys.modules)])

class TritonPythonModel:
    def execute(self, requests):
        with multiprocessing.get_context("METHOD").Pool(1) as pool:
            (text,) = pool.map_async(describe, [7]).get(30)
        answer = pb_utils.Tensor("OUT", np.array([text.encode()], object))
        return [pb_utils.InferenceResponse([answer]) for _ in requests]
"""
CONFIG = {
    "name": "m",
    "backend": "python",
    "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_STRING", "dims": [1]}],
}


def model(directory: Path, environment: str) -> ModelSpec:
    """A model of two files that tells which `clash` it found."""
    (directory / "1").mkdir(parents=True)
    (directory / "1/model.py").write_text(MODEL)
    (directory / "1/sibling.py").write_text(SIBLING)
    parameters = {"EXECUTION_ENV_PATH": {"string_value": environment}}
    return ModelSpec("m", 1, directory, directory / "1", {**CONFIG, "parameters": parameters})


@asynccontextmanager
async def opened(workers: Workers, spec: ModelSpec) -> AsyncIterator[tuple[OpenedModel, Recorder]]:
    listener, arena = Recorder(), Arena("m", Budget(1 << 20))
    try:
        made = await workers.open(spec, "python", [InstanceSpec("m_0")], listener, arena)
        yield made, listener
        await made.close()
    finally:
        arena.close()


async def ask(served: tuple[OpenedModel, Recorder]) -> list[str]:
    """Return the model's view of its environment: the version of `clash`, the prefix, VIRTUAL_ENV."""
    made, listener = served
    one = InferTensor("IN", DataType.INT32, (1,), np.ones(1, np.int32).tobytes())
    made.execute(0, 1, [InferRequest("m", inputs=[one])])
    reply = (await listener.reply()).replies[0]
    assert reply.error is None, reply.error
    (text,) = reply.outputs[0].array()
    return bytes(text).decode().split("|")


@played
async def test_two_models_whose_requirements_clash_are_served_together(tmp_path: Path) -> None:
    """clash 1 and clash 2 cannot be installed into one environment: each model has its own."""
    make_environment(tmp_path / "old", clash="1.0")
    make_environment(tmp_path / "m2" / "env", clash="2.0")
    workers = Workers(environments=Environments(tmp_path / "cache"))
    old = model(tmp_path / "m1", str(tmp_path / "old"))
    new = model(tmp_path / "m2", "$$TRITON_MODEL_DIRECTORY/env")
    async with opened(workers, old) as first, opened(workers, new) as second:
        assert (await ask(first))[:2] == ["1.0", str(tmp_path / "old")]
        assert await ask(second) == ["2.0", str(tmp_path / "m2/env"), str(tmp_path / "m2/env")]
    assert workers.workers() == 0


@played
async def test_an_environment_with_another_edge_serve_gets_the_servers(tmp_path: Path) -> None:
    make_environment(
        tmp_path / "env", clash="1.0", edge_serve="0", triton_python_backend_utils="0", c_python_backend_utils="0"
    )
    workers = Workers(environments=Environments(tmp_path / "cache"))
    async with opened(workers, model(tmp_path / "m", str(tmp_path / "env"))) as served:
        assert (await ask(served))[0] == "1.0"


@pytest.mark.parametrize("has_environment", [False, True], ids=["the server's Python", "its own Python"])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@played
async def test_a_model_has_a_pool_of_processes(tmp_path: Path, method: str, has_environment: bool) -> None:
    environment = make_environment(tmp_path / "env") if has_environment else None
    asked = model(tmp_path / "m", str(environment or ""))
    (tmp_path / "m/1/model.py").write_text(POOL.replace("METHOD", method))
    async with opened(Workers(environments=Environments(tmp_path / "cache")), asked) as served:
        number, prefix, has_worker = await ask(served)
        assert (number, prefix) == ("7", str(environment or sys.prefix))
        assert has_worker == "False"  # the worker's main module is not imported again in each process


@played
async def test_an_environment_sees_nothing_of_the_servers_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere/clash").mkdir(parents=True)
    (tmp_path / "elsewhere/clash/__init__.py").write_text("__version__ = 'the server has it'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    make_environment(tmp_path / "env", clash="3.0")
    workers = Workers(environments=Environments(tmp_path / "cache"))
    async with opened(workers, model(tmp_path / "m", str(tmp_path / "env"))) as served:
        assert (await ask(served))[0] == "3.0"


@pytest.mark.slow
@played
async def test_an_archive_is_unpacked_once_and_kept_while_it_is_used(tmp_path: Path) -> None:
    archive = pack(make_environment(tmp_path / "env", clash="4.0"), tmp_path / "env.tar.gz")
    cache = tmp_path / "cache"
    workers = Workers(environments=Environments(cache))
    async with opened(workers, model(tmp_path / "m", str(archive))) as served:
        version, _, root = await ask(served)
        assert version == "4.0"
        assert Path(root).parent == cache
        pack(make_environment(tmp_path / "env2", clash="5.0"), archive)
        async with opened(workers, model(tmp_path / "m2", str(archive))) as second:
            assert (await ask(second))[0] == "5.0"
        assert Path(root).is_dir(), "the first model still runs with it"
    async with opened(workers, model(tmp_path / "m3", str(archive))) as again:
        assert (await ask(again))[0] == "5.0"
    assert not Path(root).exists(), "nobody needs it any more"


@played
async def test_an_archive_that_waits_for_another_is_given_its_own_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is unpacked by a process, and one unpacks at a time."""
    running: list[str] = []
    most = 0

    async def output(command: Sequence[str], *_: object) -> tuple[str, int]:
        nonlocal most
        running.append(command[-2])
        most = max(most, len(running))
        await asyncio.sleep(0.01)
        running.remove(command[-2])
        return json.dumps({"directory": str(tmp_path)}), 0

    monkeypatch.setattr(launch_environments, "_output", output)
    archives = [tmp_path / name for name in ("a.tar", "b.tar")]
    for one in archives:
        one.touch()
    environments, locks = Environments(tmp_path / "cache"), list[int]()
    await asyncio.gather(*(environments._unpack(one, locks) for one in archives))
    for lock in locks:
        os.close(lock)
    assert most == 1


@played
async def test_an_archive_that_cannot_be_looked_up_in_time_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_environments, "LOOK_UP_SECONDS", 0.05)
    monkeypatch.setattr(launch_environments, "_is_unpacked", lambda archive, cache: time.sleep(0.3))
    (tmp_path / "a.tar").touch()
    locks: list[int] = []
    with pytest.raises(InvalidArgument, match="is not a whole tar archive"):
        await Environments(tmp_path / "cache")._unpack(tmp_path / "a.tar", locks)


@played
async def test_an_archive_that_takes_too_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_environments, "UNPACK_SECONDS", 0.3)
    (tmp_path / "env.tar").touch()
    (tmp_path / "cache").mkdir()
    with locked(tmp_path / "cache"), pytest.raises(InvalidArgument, match=r"unpacking '.*/env\.tar' took longer than"):
        await Environments(tmp_path / "cache")._unpack(tmp_path / "env.tar", [])


@pytest.mark.parametrize("has_environment", [True, False])
@played
async def test_a_pack_is_locked_until_its_worker_has_ended(tmp_path: Path, has_environment: bool) -> None:
    environment = make_environment(tmp_path / "own/venv") if has_environment else None
    directory = environment.parent if environment is not None else tmp_path
    spec = ModelSpec("m", 1, tmp_path, tmp_path / "1", {}, pack=Pack("own", directory, environment=environment))
    taken = await Environments(tmp_path / "cache").take(spec)
    with pytest.raises(BlockingIOError), locked(directory, fcntl.LOCK_EX | fcntl.LOCK_NB):
        pass
    taken.release()
    with locked(directory, fcntl.LOCK_EX | fcntl.LOCK_NB):
        pass


@played
async def test_a_pack_that_is_locked_for_a_moment_can_be_loaded(tmp_path: Path) -> None:
    spec = ModelSpec("m", 1, tmp_path, tmp_path, {}, pack=Pack("own", tmp_path))
    with locked(tmp_path):
        taking = asyncio.ensure_future(Environments(tmp_path / "cache").take(spec))
        await asyncio.sleep(0.05)
    (await taking).release()


@played
async def test_a_pack_that_is_being_deleted_starts_no_worker(tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "own/venv")
    spec = ModelSpec(
        "m", 1, tmp_path, tmp_path / "1", {}, pack=Pack("own", environment.parent, environment=environment)
    )
    with (
        locked(environment.parent),
        pytest.raises(
            InvalidArgument, match="pack 'own' of model 'm': it is being replaced or removed at this moment: load"
        ),
    ):
        await Environments(tmp_path / "cache").take(spec)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
@pytest.mark.parametrize("is_pack", [False, True], ids=["EXECUTION_ENV_PATH", "pack"])
def test_a_share_that_does_not_answer_fails_its_model_and_does_not_hold_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_pack: bool
) -> None:
    monkeypatch.setattr(launch_environments, "LOOK_UP_SECONDS", 0.3)
    mount = tmp_path / "mount"
    spec = model(tmp_path / "m", str(mount / "env"))
    if is_pack:
        spec = ModelSpec(
            "m", 1, tmp_path, tmp_path, {}, pack=Pack("own", mount / "own", environment=mount / "own/venv")
        )

    async def body() -> None:
        taking = asyncio.ensure_future(Environments(tmp_path / "cache").take(spec))
        turns = 0
        while not taking.done():
            await asyncio.sleep(0.01)
            turns += 1
        with pytest.raises(InvalidArgument, match=r"'m': '.*' does not answer within 0\.3 s; see to the file system"):
            taking.result()
        assert turns > 5

    with silent_file_systems([mount]):
        run(body())


@played
async def test_a_lock_that_comes_too_late_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_environments, "LOOK_UP_SECONDS", 0.1)
    resumed = threading.Event()

    def lock_late(path: Path) -> int:
        resumed.wait()
        return lock_shared(path)

    monkeypatch.setattr(launch_environments, "lock_shared", lock_late)
    spec = ModelSpec("m", 1, tmp_path, tmp_path, {}, pack=Pack("own", tmp_path))
    try:
        with pytest.raises(InvalidArgument, match="does not answer"):
            await Environments(tmp_path / "cache").take(spec)
    finally:
        resumed.set()
    for _ in range(200):
        await asyncio.sleep(0.01)
        with contextlib.suppress(BlockingIOError), locked(tmp_path, fcntl.LOCK_EX | fcntl.LOCK_NB):
            return
    pytest.fail("the pack is still locked")


@played
async def test_a_worker_that_died_comes_back_with_its_environment(tmp_path: Path) -> None:
    make_environment(tmp_path / "env", clash="6.0")
    workers = Workers(environments=Environments(tmp_path / "cache"))
    async with opened(workers, model(tmp_path / "m", str(tmp_path / "env"))) as served:
        made, listener = served
        psutil.Process(made.pids()[0]).kill()
        await listener.lost()
        await listener.back()
        assert (await ask(served))[0] == "6.0"


def with_python(program: bytes) -> Callable[[Path], str]:
    """Return a function that makes an environment with this program as its bin/python."""

    def make(path: Path) -> str:
        (path / "bin").mkdir(parents=True)
        (path / "bin/python").write_bytes(program)
        (path / "bin/python").chmod(0o755)
        return str(path)

    return make


OLD_PYTHON = b"""#!/bin/sh
echo '[[3, 8], "1.20", ""]'
"""
OTHER_MACHINE = b"\x7fELF nonsense"
WITHOUT_LIBRARIES = b"#!/bin/sh\necho libfoo.so not found >&2\nexit 127\n"


@pytest.mark.parametrize(
    ("written", "advice"),
    [
        ("environment", "for the one in the model's directory write $$TRITON_MODEL_DIRECTORY/environment"),
        ("$TRITON_MODEL_DIRECTORY/environment", "write $$TRITON_MODEL_DIRECTORY with two dollar signs"),
        ("4711TRITON_MODEL_DIRECTORY/environment", "write $$TRITON_MODEL_DIRECTORY with two dollar signs"),
        ("enviroment", "; put it there, or remove the parameter"),
    ],
)
def test_a_path_that_is_not_there_says_how_it_is_written(tmp_path: Path, written: str, advice: str) -> None:
    (tmp_path / "m/environment").mkdir(parents=True)

    with pytest.raises(EdgeServeError) as caught:
        run(Environments(tmp_path / "cache").take(model(tmp_path / "m", written)))

    told = str(caught.value).partition("archive of an environment")[2]
    assert advice in told
    assert bool(advice) == bool(told)


def empty(path: Path) -> str:
    path.mkdir()
    return str(path)


def text_file(path: Path) -> str:
    path.write_text("no archive")
    return str(path)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda path: str(path), "does not exist; expected a directory or an archive"),
        (lambda path: str(path.with_name("x" * 300)), "cannot be read: File name too long"),
        (empty, "found no bin/python in"),
        (text_file, "is not a whole tar archive"),
        (lambda path: str(make_environment(path, numpy=False)), "has no NumPy that can be imported (ModuleNotFound"),
        (with_python(OLD_PYTHON), "has Python 3.8, expected 3.10 or newer"),
        (with_python(OTHER_MACHINE), "cannot be started: Exec format error"),
        (with_python(WITHOUT_LIBRARIES), "does not run (status 127): libfoo.so not found"),
    ],
)
@played
async def test_each_failure_is_one_clear_error(tmp_path: Path, make: Callable[[Path], str], text: str) -> None:
    environment = make(tmp_path / "env")
    workers = Workers(environments=Environments(tmp_path / "cache"))
    spec = model(tmp_path / "m", environment)
    for attempt in (
        workers.open(spec, "python", [InstanceSpec("m_0")], Recorder(), Arena("m", Budget(1 << 20))),
        workers.describe(spec, "python"),
    ):
        with pytest.raises(EdgeServeError) as caught:
            await attempt
        assert str(caught.value).startswith("EXECUTION_ENV_PATH of model 'm': ")
        assert text in str(caught.value)
        assert "\n" not in str(caught.value)
    assert workers.workers() == 0


@played
async def test_a_missing_package_is_reported_at_load(tmp_path: Path) -> None:
    make_environment(tmp_path / "env")
    workers = Workers(environments=Environments(tmp_path / "cache"))
    with pytest.raises(EdgeServeError, match="No module named 'clash'"):
        async with opened(workers, model(tmp_path / "m", str(tmp_path / "env"))):
            pass
    assert workers.workers() == 0


@played
async def test_an_environment_that_lost_a_package_is_checked_again(tmp_path: Path) -> None:
    root = make_environment(tmp_path / "env")
    spec = model(tmp_path / "m", str(root))
    environments = Environments(tmp_path / "cache")
    await environments.take(spec)
    (numpy,) = root.glob("lib/python*/site-packages/numpy")
    numpy.unlink()
    with pytest.raises(EdgeServeError, match="NumPy"):
        await environments.take(spec)


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"CACHE_DIRECTORY": "/var/cache/edge-serve:/other"}, "/var/cache/edge-serve/environments"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/edge-serve/environments"),
    ],
)
def test_the_cache_lies_where_caches_lie(environ: dict[str, str], path: str) -> None:
    assert environment_cache("", environ) == Path(path)
    assert environment_cache("/named", environ) == Path("/named")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_other_versions_of_python_run_workers(tmp_path: Path) -> None:
    """Needs other interpreters (pyenv's, or on PATH) and a package index for their NumPy."""
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    homes = [path for path in Path.home().glob(".pyenv/versions/*/bin/python3.1[0-9]") if path.name != f"python{here}"]
    found = {path.name: path for path in homes}
    for minor in range(10, 15):
        if (name := f"python3.{minor}") != f"python{here}" and (path := shutil.which(name)) and name not in found:
            found[name] = Path(path)
    if not found:
        pytest.skip("no other interpreter here")

    async def work(environment: Path) -> None:
        workers = Workers(environments=Environments(tmp_path / "cache"))
        spec = model(tmp_path / f"m-{environment.name}", str(environment))
        async with opened(workers, spec) as served:
            assert (await ask(served))[:2] == ["7.0", str(environment)]

    for name, python in found.items():
        environment = tmp_path / name
        subprocess.run([python, "-m", "venv", environment], check=True)
        subprocess.run([environment / "bin/pip", "install", "-q", "numpy"], check=True)
        (site,) = environment.glob("lib/python*/site-packages")
        (site / "clash.py").write_text("__version__ = '7.0'")
        run(work(environment))
