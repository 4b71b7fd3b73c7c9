"""A repository of many small models starts with the default settings, in little memory too."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.server.many_models import can_limit_memory, memory_limit, small_models
from tests.server.running import running

GIB = 1 << 30

needs_control_groups = pytest.mark.skipif(not can_limit_memory(), reason="needs memory control groups, and root")


def starts(root: Path, count: int, prefix: Sequence[str] = (), limit: float = 30.0) -> None:
    """All models become ready, and the server with them."""
    with running(f"--model-repository={root}", ready=False, prefix=prefix) as server:
        server.wait_for_log(r"edge-serve \S+ ready in", limit)
        status, answer = server.post("/v2/repository/index")
        assert status == 200, server.log()
        entries = json.loads(answer)
        assert [entry for entry in entries if entry.get("state") != "READY"] == []
        assert len(entries) == count
        assert server.get("/v2/health/ready")[0] == 200
        assert server.stop() == 0


@needs_control_groups
def test_small_models_of_one_worker_start_in_one_gigabyte(tmp_path: Path) -> None:
    small_models(tmp_path, onnx=25)
    with memory_limit(GIB) as prefix:
        starts(tmp_path, 25, prefix)


@pytest.mark.slow
@needs_control_groups
def test_python_models_wait_for_memory_that_others_are_promised(tmp_path: Path) -> None:
    small_models(tmp_path, onnx=2, python=10)
    with memory_limit(GIB // 2) as prefix:
        starts(tmp_path, 12, prefix)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("gigabytes", [0, 3])
def test_a_thousand_models_start(tmp_path: Path, gigabytes: int) -> None:
    if gigabytes and not can_limit_memory():
        pytest.skip("needs memory control groups, and root")
    small_models(tmp_path, onnx=1000, python=60)
    with memory_limit(gigabytes * GIB) if gigabytes else contextlib.nullcontext(()) as prefix:
        starts(tmp_path, 1060, prefix, 600)
