"""Plans that `tests.gpu.plans` built with TensorRT 8.6: served by that version, and by a later lean runtime."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as http

from edge_serve.devices.device import Gpus
from tests.gpu import plans
from tests.server.running import Running, running

COMPATIBLE = [name for name in plans.names() if name.endswith(plans.COMPATIBLE)]
#: hides TensorRT, so that the lean runtime is loaded
HIDDEN = "raise ImportError('hidden by a test')\n"


@pytest.fixture
def built(gpus: Gpus) -> dict[str, str]:
    """Return the plans for this GPU, and the version of TensorRT that built each."""
    capability = ".".join(map(str, gpus.found[0].capability))
    described = {path.name.removesuffix(".plan.meta.json"): path for path in plans.FOLDER.glob("*.plan.meta.json")}
    metas = {name: json.loads(path.read_text()) for name, path in described.items()}
    found = {name: str(meta["tensorrt"]) for name, meta in metas.items() if meta["capability"] == capability}
    if not found:
        pytest.skip(f"no plans for compute capability {capability} in {plans.FOLDER}: python -m tests.gpu.plans")
    return found


@contextmanager
def serving(names: list[str], folder: Path, path: str = "") -> Iterator[Running]:
    """Serve plans.

    Args:
        path: goes before PYTHONPATH.
    """
    root = folder / "models"
    for name in names:
        (root / name / "1").mkdir(parents=True)
        for suffix in (".plan", ".plan.meta.json"):
            shutil.copy(plans.FOLDER / f"{name}{suffix}", root / name / "1" / f"model{suffix}")
        config = f'platform: "tensorrt_plan"\ninstance_group {{ kind: KIND_GPU }}\n{plans.case(name).config}'
        (root / name / "config.pbtxt").write_text(config)
    prefix = ["env", f"PYTHONPATH={os.pathsep.join(filter(None, [path, os.environ.get('PYTHONPATH')]))}"]
    flags = ("--exit-on-error=false", "--backend-config=tensorrt,version-compatible=true")
    with running(f"--model-repository={root}", *flags, prefix=prefix) as server:
        yield server


def reasons(server: Running) -> dict[str, str]:
    """Return why each model does not serve; "" for one that does."""
    return {one["name"]: one.get("reason", "") for one in json.loads(server.post("/v2/repository/index", {})[1])}


def check(server: Running, name: str, folder: Path) -> None:
    """Compare the answers with ONNX Runtime's."""
    client = http.InferenceServerClient(server.url)
    for shape in plans.case(name).shapes:
        given = plans.values(shape)
        tensor = http.InferInput("X", list(shape), "FP32")
        tensor.set_data_from_numpy(given)
        found, wanted = client.infer(name, [tensor]).as_numpy("Y"), plans.expected(name, given, folder)
        assert found.shape == wanted.shape
        assert np.abs(found.astype(np.float64) - wanted).max() <= plans.case(name).tolerance, name


@pytest.mark.timeout(300)
def test_plans_are_served_by_the_version_that_built_them(built: dict[str, str], tmp_path: Path) -> None:
    if importlib.util.find_spec("tensorrt") is None:
        pytest.skip("tensorrt is not installed")
    import tensorrt

    names = [name for name, version in built.items() if version == tensorrt.__version__]
    if not names:
        pytest.skip(f"no plan was built by TensorRT {tensorrt.__version__}, but by {sorted(set(built.values()))}")
    with serving(names, tmp_path) as server:
        assert reasons(server) == dict.fromkeys(names, "")
        for name in names:
            check(server, name, tmp_path)


@pytest.mark.timeout(300)
def test_version_compatible_plans_are_served_by_the_lean_runtime(built: dict[str, str], tmp_path: Path) -> None:
    """One that is not compatible is refused with both versions."""
    if importlib.util.find_spec("tensorrt_lean") is None:
        pytest.skip("tensorrt_lean is not installed: pip install tensorrt-lean-cu12")
    names = [name for name in COMPATIBLE if name in built]
    assert names, "python -m tests.gpu.plans builds version-compatible plans"
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "tensorrt.py").write_text(HIDDEN)
    plain = [name for name in plans.CASES if name in built][:1]
    with serving([*names, *plain], tmp_path, str(hidden)) as server:
        refused = reasons(server)
        assert {name: refused[name] for name in names} == dict.fromkeys(names, "")
        for name in names:
            check(server, name, tmp_path)
        for name in plain:
            assert built[name] in refused[name], refused[name]
