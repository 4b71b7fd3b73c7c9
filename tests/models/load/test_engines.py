"""Builds of engines at load, up to the process that builds (`tests/server/test_tensorrt` has the rest)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from edge_serve.backends.base import ModelSpec
from edge_serve.devices.device import Gpu, Gpus
from edge_serve.engines.model import BUILD_PARAMETER
from edge_serve.errors import Cancelled
from edge_serve.models.load.engines import EngineBuilds
from edge_serve.workers.launch.interpreter import Interpreter
from tests.stories import played

GPUS = Gpus((Gpu(0, "Orin", "GPU-1", (8, 7), 1 << 30),), (12, 6))


def spec(folder: Path) -> ModelSpec:
    version = folder / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").touch()
    config = {
        "name": "m", "backend": "tensorrt", "instance_group": [{"kind": "KIND_GPU", "gpus": [0]}],
        "parameters": {BUILD_PARAMETER: {"string_value": "true"}},
    }  # fmt: skip
    return ModelSpec("m", 1, folder / "m", version, config)


@played
async def test_build_can_be_cancelled_before_its_process_starts(tmp_path: Path) -> None:
    """An unload would wait until the engine is built, which takes minutes."""
    preparing = asyncio.Event()

    async def interpreter(own: list[Path]) -> Interpreter:
        preparing.set()
        await asyncio.Event().wait()
        raise AssertionError

    builds = EngineBuilds(dict, interpreter, {"CACHE_DIRECTORY": str(tmp_path)})
    opening = asyncio.create_task(builds.open("m", spec(tmp_path), GPUS))
    await preparing.wait()
    builds.cancel("m")
    done, _ = await asyncio.wait({opening}, timeout=1)
    opening.cancel()
    assert done, "the cancellation is lost"
    with pytest.raises(Cancelled, match="model 'm' is unloaded"):
        await opening


def test_cache_is_there_before_workers_start(tmp_path: Path) -> None:
    """Landlock closes it to a worker if it appears later."""
    builds = EngineBuilds(dict, lambda own: None, {"CACHE_DIRECTORY": str(tmp_path)})  # type: ignore[arg-type,return-value]
    asyncio.run(builds.make_directory())
    assert (tmp_path / "engines").is_dir()
