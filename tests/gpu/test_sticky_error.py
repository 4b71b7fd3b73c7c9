"""A kernel that reads an illegal address on a real GPU, under load; the stand-in libnvinfer of test_bindings has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.test_bindings import path as path
from tests.server.running import running
from tests.server.test_gpu_health import fail_under_load, write


@pytest.mark.timeout(120)
@pytest.mark.parametrize("path", ["10.3.0"], indirect=True)
def test_sticky_error_costs_the_models_of_its_worker_alone(path: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path, {"same": "identity", "poison": "fail", "apart": "identity"})
    prefix = ["env", *(f"{name}={value}" for name, value in path.items())]
    with running(f"--model-repository={tmp_path}", prefix=prefix) as server:
        fail_under_load(server)
