"""The workers that are started before the server is imported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from edge_serve import first_workers
from edge_serve.config.settings.server import parse_argv
from edge_serve.first_workers import start_first_workers
from edge_serve.workers.launch.spawn import Spawned
from tests.server.running import FREE_PORTS, Running, python_model, running

pytestmark = pytest.mark.slow  # a server for each way of a start

ONNX = Path(__file__).parents[2] / "model_repository/simple"
_MODULE = "edge_serve.workers.child.main"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """An ONNX model, and a Python model that is a link, as the models of a bundle are."""
    shutil.copytree(ONNX, tmp_path / "models/simple")
    (tmp_path / "models/python").symlink_to(python_model(tmp_path / "elsewhere", "python"))
    return tmp_path / "models"


def start(*flags: str) -> list[Spawned]:
    return start_first_workers(parse_argv(flags, {}))


def end(first: Sequence[Spawned]) -> list[str]:
    """End the processes. Return their backends."""
    for one in first:
        one.kill()
        assert one.popen.returncode == -9
    return [one.backend for one in first]


def backends_of(server: Running) -> list[str]:
    """Return what each worker of a server was started for; "" = after the models were found."""
    lines = [one.cmdline() for one in psutil.Process(server.process.pid).children()]
    return sorted(line[-1] for line in lines if _MODULE in line)


#: says what makes the front end import NumPy
_WATCHED = """
import os, sys, traceback
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            where = " ".join(f"{frame.filename}:{frame.name}" for frame in traceback.extract_stack())
            os.write(2, f"numpy is imported by {where}\\n".encode())  # whole, beside the log's own thread
sys.meta_path.insert(0, Watch())
from edge_serve.cli import main
sys.exit(main())
"""


def said_by(program: str, repository: Path, words: str) -> tuple[str, str, int]:
    """Run a server by this program until a line has the words. Return the line, what came after, and the status."""
    command = [sys.executable, "-c", program, "serve", f"--model-repository={repository}", *FREE_PORTS]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        line = next(line for line in server.stderr if words in line)
        server.terminate()
        rest = server.stderr.read()
    return line, rest, server.returncode


def test_the_front_end_imports_numpy_once_it_is_ready_and_not_for_its_start(repository: Path) -> None:
    by, _, _ = said_by(_WATCHED, repository, "numpy is imported by")
    _, asked, through = by.partition("importlib/__init__.py:import_module")
    assert asked, f"the server asks for it by its name, others by a statement: {by}"
    assert "edge_serve/" not in through, "it is asked for itself, and not a module that imports it"


def test_a_numpy_that_cannot_be_imported_is_reported_and_ends_nothing(repository: Path) -> None:
    broken = _WATCHED.replace("os.write(", "raise ImportError('half of it is missing')  # ")
    said, rest, status = said_by(broken, repository, "NumPy cannot be imported")
    assert "half of it is missing; install edge-serve again" in said
    assert "all requests answered" in rest
    assert status == 0


def test_records_are_compiled_once_the_server_is_ready(repository: Path) -> None:
    reporting = """
import os, sys
from edge_serve import records
compiles = records.compile_records
def report():
    before = len(records._waiting)
    compiles()
    os.write(2, b"%d records waited, %d wait\\n" % (before, len(records._waiting)))
records.compile_records = report
from edge_serve.cli import main
sys.exit(main())
"""
    said, _, _ = said_by(reporting, repository, "records waited")
    before, after = (int(word) for word in said.split() if word.isdecimal())
    assert before > 50
    assert after == 0


def test_a_worker_imports_asyncio_only_for_a_model_that_needs_it() -> None:
    code = """
import sys
import edge_serve.workers.child.main
from edge_serve.backends import loader
loader.import_ahead("python")
print("edge_serve.backends.python.instance" in sys.modules, "asyncio" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_models_run_in_them_and_in_others_once_they_are_lost(repository: Path) -> None:
    with running(f"--model-repository={repository}") as server:
        assert backends_of(server) == ["onnxruntime", "python"]
        assert server.add_sub("python")[0] == 200
        for pid in server.workers():
            os.kill(pid, 9)
        server.wait_for_log("worker onnxruntime .* was ended by SIGKILL")
        end = time.monotonic() + 30
        while server.get("/v2/health/ready")[0] != 200 or backends_of(server) != ["", ""]:
            assert time.monotonic() < end, server.log()
            time.sleep(0.05)
        assert server.add_sub("python")[0] == 200


def test_one_that_no_model_takes_ends(tmp_path: Path) -> None:
    shutil.copy(ONNX / "1/model.onnx", python_model(tmp_path, "python") / "1/model.onnx")
    with running(f"--model-repository={tmp_path}") as server:
        assert backends_of(server) == ["python"], "the file of ONNX is not the model's"


def test_they_end_when_a_repository_cannot_be_read(repository: Path) -> None:
    flags = (f"--model-repository={repository}", f"--model-repository={repository}/nowhere", "--exit-on-error=false")
    with running(*flags, ready=False) as server:
        server.wait_for_log("not ready until it can be read")
        assert backends_of(server) == []


@pytest.mark.parametrize(
    ("flags", "backends"),
    [
        pytest.param((), ["onnxruntime", "python"], id="all models are loaded"),
        pytest.param(("--model-control-mode=explicit",), [], id="no model is loaded"),
        pytest.param(("--model-control-mode=explicit", "--load-model=*"), ["onnxruntime", "python"], id="star"),
        pytest.param(("--model-control-mode=explicit", "--load-model=python"), ["python"], id="one is loaded"),
        pytest.param(("--model-control-mode=explicit", "--load-model=[s]imple"), [], id="a name is no pattern"),
        pytest.param(("--model-control-mode=explicit", "--load-model=/python"), [], id="a name is no path"),
        pytest.param(("--backend-config=onnxruntime,enable-global-threadpool=1",), ["python"], id="a pool of threads"),
    ],
)
def test_they_are_those_of_the_models_to_load(repository: Path, flags: tuple[str, ...], backends: list[str]) -> None:
    assert end(start(f"--model-repository={repository}", *flags)) == backends


def test_each_python_model_has_one(tmp_path: Path) -> None:
    python_model(tmp_path / "elsewhere", "python")
    directory = python_model(tmp_path / "elsewhere", "python", version=2)
    (tmp_path / "models").mkdir()
    for name in ("a", "b"):
        (tmp_path / "models" / name).symlink_to(directory)
    assert end(start(f"--model-repository={tmp_path}/models")) == ["python", "python"]


def test_there_are_no_more_than_cores(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        python_model(repository, f"python{number}")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    assert end(start(f"--model-repository={repository}")) == ["onnxruntime", "python", "python"]


def test_a_repository_that_is_missing_or_silent_costs_no_time(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not start(f"--model-repository={repository}/nowhere")
    monkeypatch.setattr(first_workers, "_FIND_SECONDS", 0.05)

    def answer_late(*_: object) -> Iterator[Path]:
        time.sleep(5)
        yield repository / "python/1/model.py"

    monkeypatch.setattr(Path, "glob", answer_late)
    assert not start(f"--model-repository={repository}")


def test_they_end_with_a_server_that_dies_during_its_imports(repository: Path) -> None:
    code = f"""
import os, sys
from edge_serve.config.settings.server import parse_argv
from edge_serve.first_workers import start_first_workers
first = start_first_workers(parse_argv(["--model-repository={repository}"], {{}}))
print(*(one.popen.pid for one in first), flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    pids = list(map(int, done.stdout.split()))
    assert len(pids) == 2, done.stderr
    end = time.monotonic() + 30
    while any(map(lives, pids)):
        assert time.monotonic() < end
        time.sleep(0.02)


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
