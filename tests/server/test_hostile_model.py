"""A hostile model.py tries to get at the server, its keys and other models, where the kernel has Landlock."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.program import CHECKOUT
from edge_serve.workers.launch import landlock
from tests.certificates import Authority
from tests.server.hostile import CONFIG, MODEL, question, results
from tests.server.running import Running, python_model, running
from tests.server.secured import Reply, UnixConnection, ask
from tests.workers.venvs import make_environment, pack

DENIED, UNSEEN, REFUSED = "Permission denied", "Operation not permitted", "HTTP/1.1 403 Forbidden"
#: no rights beyond those of a user, as under the service: root's reach farther
PLAIN = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()

pytestmark = pytest.mark.skipif(
    landlock.version() < landlock.OLDEST or (bool(PLAIN) and shutil.which("setpriv") is None),
    reason="needs a kernel with Landlock, and setpriv",
)


@dataclass
class Scene:
    """A server with models that do not trust each other."""

    root: Path
    server: Running
    key: Path = Path()

    def attempt(self, *attempts: list[Any], model: str = "hostile") -> list[str]:
        status, body = self.server.post(f"/v2/models/{model}/infer", question(list(attempts)))
        assert status == 200, (body, self.server.log())
        return results(json.loads(body))

    def administrate(self, path: str) -> Reply:
        with contextlib.closing(UnixConnection(self.root / "admin.sock")) as connection:
            return ask(connection, "GET", path)

    def worker_of(self, model: str) -> int:
        document = json.loads(self.administrate("/edge-serve/status").body)
        return next(int(one["pid"]) for one in document["workers"] if model in json.dumps(one))


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Not below /tmp or the home directory, where nothing is protected."""
    open_places = ("/tmp", os.path.realpath(tempfile.gettempdir()), os.path.realpath(os.path.expanduser("~")))
    places = [str(CHECKOUT), "/var/lib", "/srv", "/opt"]
    place = next((one for one in places if os.access(one, os.W_OK) and not one.startswith(open_places)), None)
    if place is None:
        pytest.skip("no directory outside of /tmp and the home directory can be written")
    path = Path(tempfile.mkdtemp(prefix=".edge-serve-hostile-", dir=place))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def scene(folder: Path) -> Iterator[Scene]:
    for name in ("hostile", "victim"):
        python_model(folder / "models", name, MODEL, CONFIG)
    archive = pack(make_environment(folder / "environment"), folder / "environment.tar.gz")
    parameter = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{archive}" }} }}'
    python_model(folder / "models", "packed", MODEL, CONFIG + parameter)
    (folder / "models/common").mkdir()
    (folder / "models/common/labels.txt").write_text("cat\n")
    for name in ("state", "tls", "data"):
        (folder / name).mkdir()
        (folder / name / "file").write_text("x")
    pair = Authority(folder / "tls").issue("server")
    (folder / "tls/tokens").write_text("")
    flags = (
        f"--model-repository={folder / 'models'}", f"--state-directory={folder / 'state'}",
        f"--execution-env-directory={folder / 'cache'}", f"--admin-socket={folder / 'admin.sock'}",
        f"--grpc-server-key={pair.key}", f"--grpc-server-cert={pair.certificate}",
        f"--token-file={folder / 'tls/tokens'}", "--anonymous-role=infer", "--exit-on-error=false",
    )  # fmt: skip
    with running(*flags, prefix=PLAIN) as server:
        yield Scene(folder, server, pair.key)


def test_a_model_does_its_work(scene: Scene) -> None:
    own = scene.root / "models/hostile"

    found = scene.attempt(
        ["work"], ["read", f"{own}/config.pbtxt"], ["create", f"{own}/1/cache"], ["read", f"{scene.root}/data/file"],
        ["write", f"{scene.root}/data/file"], ["read", f"{scene.root}/models/common/labels.txt"],
    )  # fmt: skip

    assert found == ["worked", str((own / "config.pbtxt").stat().st_size), "done", "1", "done", "4"]


def test_the_code_of_an_environment_does_its_work(scene: Scene) -> None:
    assert scene.attempt(["work"], ["read", "/etc/passwd"], model="packed")[0] == "worked"


@pytest.mark.parametrize("model", ["hostile", "packed"])
def test_a_model_reads_and_writes_no_files_of_the_server(scene: Scene, model: str) -> None:
    root = scene.root

    found = scene.attempt(
        ["read", str(scene.key)], ["write", str(scene.key)], ["write", f"{root}/tls/tokens"],
        ["create", f"{root}/tls/new"], ["read", f"{root}/state/crashes.json"], ["create", f"{root}/state/new"],
        ["move", f"{root}/state/file", "/tmp/file"], ["create", f"{root}/cache/new"], ["create", f"{root}/new"],
        model=model,
    )  # fmt: skip

    assert [one for one in found if one not in (DENIED, "Invalid cross-device link")] == []


@pytest.mark.parametrize("model", ["hostile", "packed"])
def test_a_model_reads_and_changes_no_other_model(scene: Scene, model: str) -> None:
    victim = scene.root / "models/victim"

    found = scene.attempt(
        ["read", f"{victim}/1/model.py"], ["write", f"{victim}/1/model.py"], ["create", f"{victim}/1/numpy.py"],
        ["move", f"{victim}", f"{scene.root}/models/gone"], ["create", f"{scene.root}/models/new"],
        model=model,
    )  # fmt: skip

    assert found == [DENIED] * 5


def test_an_environment_cannot_be_changed_by_its_model(scene: Scene) -> None:
    (site,) = scene.root.glob("cache/*/lib/python*/site-packages")

    assert scene.attempt(["create", f"{site}/usercustomize.py"], model="packed") == [DENIED]


@pytest.mark.parametrize("model", ["hostile", "packed"])
def test_a_model_reads_no_other_process(scene: Scene, model: str) -> None:
    """Neither the front end's memory, with clients' tokens and tensors, nor another model's."""
    for process in ("front end", scene.worker_of("victim")):
        number = scene.server.process.pid if process == "front end" else process
        found = scene.attempt(
            *([what, f"/proc/{number}/{name}"] for name in ("mem", "environ", "maps") for what in ("read", "write")),
            ["spy", number], ["arenas", number],
            model=model,
        )  # fmt: skip
        assert [one for one in found if one not in (DENIED, UNSEEN)] == []


def test_a_model_sends_no_signals_to_others(scene: Scene) -> None:
    if landlock.version() < 6:
        pytest.skip("Landlock 6 is needed")

    found = scene.attempt(["kill", "front end", signal.SIGKILL], ["kill", scene.worker_of("victim"), signal.SIGKILL])

    assert found == [UNSEEN, UNSEEN]
    time.sleep(0.2)
    assert scene.server.get("/v2/models/victim/ready")[0] == 200


def test_the_socket_for_administration_is_closed_to_models(scene: Scene) -> None:
    path = str(scene.root / "admin.sock")

    assert scene.attempt(["unix", path], ["unix", path, "daemon"], ["create", path]) == [REFUSED, REFUSED, DENIED]
    assert scene.administrate("/v2").status == 200


def test_control_groups_cannot_be_written(scene: Scene) -> None:
    """A write there freezes, moves, or kills processes. Any file will do: the kernel checks the right first."""
    path = next((one for one in Path("/sys/fs/cgroup").rglob("cgroup.procs") if os.access(one, os.W_OK)), None)
    if path is None:
        pytest.skip("no control groups here")

    assert scene.attempt(["write", str(path)]) == [DENIED]


def test_the_network_is_open_to_models(scene: Scene) -> None:
    """Out of the box, and written down in docs/security.md; the unit forbids the first."""
    with socket.create_server(("127.0.0.1", 0)) as there:
        assert scene.attempt(["bind", "127.0.0.1", 0], ["connect", "127.0.0.1", there.getsockname()[1]]) == ["done"] * 2


def test_a_worker_that_is_started_again_is_kept_out_too(scene: Scene) -> None:
    before = scene.worker_of("hostile")
    os.kill(before, signal.SIGKILL)
    end = time.monotonic() + 30
    while scene.server.get("/v2/models/hostile/ready")[0] != 200 or scene.worker_of("hostile") == before:
        assert time.monotonic() < end
        time.sleep(0.05)

    assert scene.attempt(["read", str(scene.key)]) == [DENIED]


def test_the_sandbox_can_be_switched_off(folder: Path) -> None:
    repository = folder / "others"
    for name in ("hostile", "victim"):
        python_model(repository, name, MODEL, CONFIG)
    with running(f"--model-repository={repository}", "--worker-sandbox=false", prefix=PLAIN) as server:
        found = Scene(folder, server).attempt(
            ["read", f"{repository}/victim/1/model.py"], ["spy", "front end"], ["kill", "front end", 0]
        )

    assert found[1:] == ["done", "done"]
    assert found[0].isdigit()
