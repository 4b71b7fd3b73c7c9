"""Memory of GPUs that clients register: what is refused without CUDA, and what becomes of the process that tries it."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from edge_serve.devices.device import Gpu, Gpus
from edge_serve.errors import AlreadyExists, EdgeServeError, Internal, InvalidArgument, Unsupported
from edge_serve.messages.shared_memory import CudaRegionStatus
from edge_serve.workers.launch.interpreter import Interpreter
from edge_serve.workers.memory import cuda_regions, regions
from edge_serve.workers.memory.cuda_regions import CudaRegion, check_region, try_handle
from edge_serve.workers.memory.regions import SharedMemoryRegions

GPU = Gpu(0, "Test GPU", "GPU-0", (8, 7), 1 << 33)
GPUS = Gpus((GPU,), (13, 0))


def region(name: str = "r", device: int = 0, byte_size: int = 64, handle: bytes = bytes(64)) -> CudaRegion:
    return CudaRegion(CudaRegionStatus(name, device, byte_size), handle)


@pytest.mark.parametrize(
    ("made", "gpus", "error", "text"),
    [
        (region(""), GPUS, InvalidArgument, "'region name' is necessary to register cuda shared memory region"),
        (region(), Gpus(), InvalidArgument, "failed to register CUDA shared memory region: 'r', GPUs not supported"),
        (region(handle=b"x"), GPUS, InvalidArgument,
         "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t; found 1 bytes, expected 64"),
        (region(byte_size=0), GPUS, InvalidArgument,
         "failed to register shared memory region 'r': invalid args; byte_size is 0, expected the size of the memory"),
        (region(device=-1), GPUS, InvalidArgument,
         "failed to register shared memory region 'r': invalid args; there is no GPU -1, expected one of: 0"),
        (region(), Gpus((replace(GPU, integrated=True),), (13, 0)), Unsupported,
         "failed to register CUDA shared memory region: 'r', not supported by GPU 0 (Test GPU), which shares its "
         "memory with the CPU and has no CUDA IPC; register system shared memory"),
    ],
)  # fmt: skip
def test_regions_that_are_refused_without_cuda(
    made: CudaRegion, gpus: Gpus, error: type[EdgeServeError], text: str
) -> None:
    with pytest.raises(error) as refused:
        check_region(made, gpus)
    assert refused.value.message == text


@pytest.mark.skipif(bool(find_spec("cuda") or find_spec("pycuda")), reason="a library for CUDA is installed here")
def test_machine_without_cuda_libraries_says_what_to_install() -> None:
    with pytest.raises(Unsupported, match=r"region: 'r', CUDA cannot be used: .*pip install 'edge-serve\[cuda\]'"):
        try_handle(region())


def test_process_that_crashes_or_hangs_costs_its_registration_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda_regions, "TRY_SECONDS", 0.5)
    for flag, text in (
        ("kill -SEGV $$", "was ended by SIGSEGV"),
        ("exit 7", "ended with status 7"),
        ("echo a library prints", "did not say whether it could"),
        ("sleep 60", "0.5 s"),
    ):
        shell = Interpreter(("/bin/sh", "-c", flag), os.environ)
        monkeypatch.setattr(cuda_regions, "own_interpreter", lambda shell=shell: shell)
        with pytest.raises(Internal, match=rf"region: 'r', .*{text}; see: edge-serve doctor"):
            try_handle(region())
    monkeypatch.setattr(cuda_regions, "own_interpreter", lambda: Interpreter(("/nowhere/python",), os.environ))
    with pytest.raises(Internal, match=r"the process that opens it cannot be started: .*/nowhere/python"):
        try_handle(region())


@pytest.mark.parametrize("version", [(3, 10), sys.version_info])
def test_process_imports_no_module_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...]
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "version_info", version)
    with pytest.raises((InvalidArgument, Unsupported)):  # it has asked CUDA
        try_handle(region())


def test_name_is_taken_once_while_handles_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(regions, "try_handle", lambda made: tried.append(made.status.name))
    registry = SharedMemoryRegions()
    registry.gpus = GPUS

    async def register() -> list[BaseException | None]:
        both = [registry.register_cuda(name, bytes(64), 0, 64) for name in ("r", "r", "s")]
        return await asyncio.gather(*both, return_exceptions=True)

    first, second, third = asyncio.run(register())

    assert (first, third, tried) == (None, None, ["r", "s"])
    assert isinstance(second, AlreadyExists)
    assert registry.cuda_status("") == [CudaRegionStatus("r", 0, 64), CudaRegionStatus("s", 0, 64)]
    assert registry.status("") == []
    registry.unregister("")
    registry.unregister_cuda("r")
    assert [one.name for one in registry.cuda_status("")] == ["s"]
