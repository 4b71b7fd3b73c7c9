"""The program sends nothing to other machines, and writes only the files that the documentation names."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

from deploy.program import CHECKOUT
from edge_serve.backends.privacy import PRIVATE
from tests.backends.onnx_models import add_sub
from tests.server import quiet_machine
from tests.server.running import python_model
from tests.workers.venvs import make_environment

#: its programs run under strace, in namespaces of their own
pytestmark = pytest.mark.slow

#: a model with an environment and an onnxruntime of its own
IMPORTS = """
import sys
sys.path.append({packages!r})
import onnxruntime

class TritonPythonModel:
    def execute(self, requests):
        return []
"""
#: what an open file may be for: reading is nobody's concern
_WRITES = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|\b(?:creat|mkdir|mkdirat|rename\w*|symlink\w*)\(")


def why_not() -> str:
    """Why this machine cannot make namespaces and look on; "" where it can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    missing = [name for name in ("unshare", "ip", "mount", "strace") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    script = "ip link set lo up && ip route add local 0.0.0.0/0 dev lo && strace -f --seccomp-bpf -o /dev/null true"
    tried = subprocess.run(["unshare", "--net", "--mount", "sh", "-c", script], capture_output=True, text=True)
    return f"no namespaces or no strace here: {tried.stderr.strip()}" if tried.returncode else ""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """The traces of `serve`, `check` and `doctor` with ONNX models, and the questions to the name server."""
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("quiet")
    repository = folder / "models"
    add_sub(repository / "m" / "1" / "model.onnx")
    root = make_environment(folder / "environment", clash="1.0")
    packages = str(Path(onnxruntime.__file__).parents[1])
    parameter = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{root}" }} }}'
    python_model(repository, "own", IMPORTS.format(packages=packages), f'backend: "python"\n{parameter}')
    (folder / "home").mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in PRIVATE}
    done = subprocess.run(
        ["unshare", "--net", "--mount", sys.executable, "-m", quiet_machine.__name__, str(folder), str(repository)],
        cwd=CHECKOUT, env={**environment, "HOME": str(folder / "home")}, capture_output=True, text=True, timeout=55,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + "".join(path.read_text() for path in folder.glob("*.log"))
    return folder, json.loads(done.stdout.splitlines()[-1])


def calls(folder: Path, pattern: re.Pattern[str]) -> list[str]:
    """Traced calls that did not fail and match."""
    lines = [line for path in folder.glob("*.trace") for line in path.read_text().splitlines()]
    return [line for line in lines if pattern.search(line) and " = -1 " not in line]


def test_the_models_were_served(seen: tuple[Path, dict[str, object]]) -> None:
    folder, report = seen

    assert report["statuses"] == [0, 0]
    assert "2 of 2 models can be served" in (folder / "check.log").read_text()
    assert calls(folder, re.compile(r"/m/1/model\.onnx"))  # strace sees what workers do


def test_no_process_asks_a_name_server(seen: tuple[Path, dict[str, object]]) -> None:
    assert seen[1]["questions"] == [quiet_machine.CONTROL]


def test_no_process_connects_to_anything(seen: tuple[Path, dict[str, object]]) -> None:
    assert calls(seen[0], re.compile(r"sa_family=AF_INET")) == []


def test_nothing_is_written_outside_the_documented_directories(seen: tuple[Path, dict[str, object]]) -> None:
    folder, _ = seen

    written = [line for line in calls(folder, _WRITES) if not re.search(r'"/dev/null"|"/proc/self/', line)]

    assert [line for line in written if "__pycache__" not in line] == []
    assert [path for name in ("home", "work") for path in (folder / name).rglob("*")] == []


def test_the_unit_has_the_same_variables() -> None:
    unit = (CHECKOUT / "systemd/edge-serve.service").read_text()

    assert {f"{name}={value}" for name, value in PRIVATE.items()} <= set(re.findall(r"^Environment=(.*)$", unit, re.M))
