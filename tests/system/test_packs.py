"""A backend pack as a package: installed offline, served in the sandbox of the unit, upgraded, removed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from deploy.debian.pack import HOME, build_pack
from tests.packs.openvino.tensorflow_files import expected, graph
from tests.system.agent import KEPT
from tests.system.machine import wait_until
from tests.system.service import MODELS, Service

WEIGHTS = np.random.default_rng(7).normal(size=(6, 4)).astype(np.float32)
X = np.random.default_rng(8).normal(size=(1, 6)).astype(np.float32)


@pytest.fixture(scope="session")
def pack(kind: str, release: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the package of the pack `openvino` for the release."""
    return build_pack("openvino", release, "amd64", tmp_path_factory.mktemp("pack"))


def infers(service: Service) -> bool:
    """Return whether the TensorFlow graph answers, and right."""
    data = X.ravel().tolist()
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 6], "data": data}]}
    if service.status_of("POST", "/v2/models/graph/infer", body) != 200:
        return False
    answer = json.loads(service.ask("POST", "/v2/models/graph/infer", body)[1])
    np.testing.assert_allclose(answer["outputs"][0]["data"], expected(X, WEIGHTS).ravel(), atol=1e-6)
    return True


def test_a_pack_is_installed_served_upgraded_and_removed(fresh: Service, pack: Path) -> None:
    machine, patience = fresh.machine, 30 * fresh.patience
    fresh.add_shipped_models("simple")
    machine.put(f"{MODELS}/graph/1/model.graphdef", graph(WEIGHTS))
    fresh.start()
    assert fresh.infer() == 200
    assert not infers(fresh)
    assert "edge-serve pack install openvino" in fresh.journal()

    machine.put(f"{KEPT}/{pack.name}", pack.read_bytes())
    machine.run(f"dpkg -i {KEPT}/{pack.name}", 300)  # restarts the service
    assert wait_until(lambda: infers(fresh), patience), fresh.journal()[-4000:]
    assert fresh.show("MemoryDenyWriteExecute") == "no"
    assert fresh.infer() == 200
    (first,) = machine.run(f"ls /{HOME}/versions").split()

    machine.run(f"dpkg -i {KEPT}/{pack.name}", 300)
    assert wait_until(lambda: machine.run(f"ls /{HOME}/versions").split() != [first], patience)
    assert wait_until(lambda: len(machine.run(f"ls /{HOME}/versions").split()) == 1, patience)
    assert wait_until(lambda: infers(fresh), patience), fresh.journal()[-4000:]
    assert "ok  openvino" in machine.run(f"edge-serve pack list --backend-directory /{HOME}/backends")

    machine.run("dpkg -r edge-serve-backend-openvino", 120)
    assert wait_until(lambda: fresh.infers() and not infers(fresh), patience), fresh.journal()[-4000:]
    assert machine.try_run(f"ls /{HOME}").status != 0
    assert wait_until(lambda: fresh.show("MemoryDenyWriteExecute") == "yes", patience)
