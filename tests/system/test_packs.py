"""Backend packs as packages: installed offline, served in the sandbox of the unit, upgraded, removed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from deploy.debian.pack import HOME, SOURCES, build_pack
from deploy.debian.releases import RELEASES, target
from edge_serve.pack.install import find_lock
from tests.system import pack_models
from tests.system.agent import KEPT
from tests.system.machine import wait_until
from tests.system.pack_models import PackModel, X
from tests.system.service import MODELS, Service

#: packs whose library makes code at run time
MAKES_CODE = {"openvino", "pytorch"}
#: `make test-system` has the first; the others take longer (`make test-packs-system`)
PACKS = ["openvino", *(pytest.param(one, marks=pytest.mark.slow) for one in ("fil", "pytorch", "pytorch --gpu"))]


@pytest.fixture(scope="module", params=PACKS)
def chosen(request: pytest.FixtureRequest) -> str:
    """Return a pack, and which build of it."""
    given: str = request.param
    return given


@pytest.fixture(scope="module")
def name(chosen: str) -> str:
    """Return the name of the pack."""
    return chosen.split()[0]


@pytest.fixture(scope="module")
def pack(chosen: str, name: str, kind: str, release: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the package of the pack for the release, compressed less than one that ships."""
    folder = tmp_path_factory.mktemp("pack")
    if chosen == "pytorch":
        need_torch(release, folder)
    return build_pack(name, release, "amd64", folder, gpu=chosen.endswith(" --gpu"), level=1)


def need_torch(release: str, folder: Path) -> None:
    """Skip the test where no index that pip asks has PyTorch's wheel, which PyPI lacks."""
    wanted = target(RELEASES[release], "amd64")
    lock = find_lock(SOURCES / "pytorch", wanted.python, wanted.machine)
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", *wanted.wheels()]
    command += [f"--target={folder}", f"--requirement={lock}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode and "DO NOT MATCH THE HASHES" not in done.stderr:  # a wrong file is no reason to skip
        text = (
            f"pip finds no wheel of torch for Python {wanted.python} (PIP_EXTRA_INDEX_URL names the index that has it)"
        )
        pytest.skip(f"{text}: {done.stderr.strip().splitlines()[-2:]}")


@pytest.fixture(scope="module")
def model(name: str, tmp_path_factory: pytest.TempPathFactory) -> PackModel:
    """Return a model for the pack."""
    return pack_models.MODELS[name](tmp_path_factory.mktemp("model"))


def infers(service: Service, model: PackModel) -> bool:
    """Return whether the model answers, and right."""
    tensor = {"name": model.tensor, "datatype": "FP32", "shape": [1, 6], "data": X.ravel().tolist()}
    if service.status_of("POST", "/v2/models/m/infer", {"inputs": [tensor]}) != 200:
        return False
    answer = json.loads(service.ask("POST", "/v2/models/m/infer", {"inputs": [tensor]})[1])
    np.testing.assert_allclose(answer["outputs"][0]["data"], model.answer.ravel(), atol=1e-6)
    return True


@pytest.mark.timeout(900)
def test_a_pack_is_installed_served_upgraded_and_removed(
    fresh: Service, name: str, pack: Path, model: PackModel
) -> None:
    machine, patience = fresh.machine, 60 * fresh.patience
    fresh.add_shipped_models("simple")
    for path, content in model.files.items():
        machine.put(f"{MODELS}/m/{path}", content)
    fresh.start()
    assert fresh.infer() == 200
    assert not infers(fresh, model)
    assert f"edge-serve pack install {name}" in fresh.journal()

    machine.put(f"{KEPT}/{pack.name}", pack.read_bytes())
    machine.run(f"dpkg -i {KEPT}/{pack.name}", 300)  # restarts the service
    assert wait_until(lambda: infers(fresh, model), patience), fresh.journal()[-4000:]
    assert fresh.show("MemoryDenyWriteExecute") == ("no" if name in MAKES_CODE else "yes")
    assert fresh.infer() == 200
    (first,) = machine.run(f"ls /{HOME}/versions").split()

    machine.run(f"dpkg -i {KEPT}/{pack.name}", 300)
    assert wait_until(lambda: machine.run(f"ls /{HOME}/versions").split() != [first], patience)
    assert wait_until(lambda: len(machine.run(f"ls /{HOME}/versions").split()) == 1, patience)
    assert wait_until(lambda: infers(fresh, model), patience), fresh.journal()[-4000:]
    assert f"ok  {name}" in machine.run(f"edge-serve pack list --backend-directory /{HOME}/backends")

    machine.run(f"rm {KEPT}/{pack.name}; dpkg -r edge-serve-backend-{name}", 120)
    assert wait_until(lambda: fresh.infers() and not infers(fresh, model), patience), fresh.journal()[-4000:]
    assert wait_until(lambda: machine.try_run(f"ls /{HOME}").status != 0, patience)
    assert wait_until(lambda: fresh.show("MemoryDenyWriteExecute") == "yes", patience)
