"""What only a real GPU shows about visibility and the sandbox: readings, the cost of a context, and restrictions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_serve.config.settings.server import parse_argv
from edge_serve.devices.device import Gpus
from edge_serve.observe.metrics.gpu import find_gpus
from edge_serve.workers.launch import landlock
from edge_serve.workers.launch.interpreter import own_interpreter
from edge_serve.workers.launch.sandbox import Sandbox

#: makes a context by the driver's API, copies a few bytes to the device and back, and prints what the context took
CONTEXT = """
import ctypes, sys
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, f"{name} failed with CUDA error {code}"
if "mdwe" in sys.argv:  # PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN (Linux 6.3), as MemoryDenyWriteExecute=yes
    assert ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) == 0, "no prctl"
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer, free, total = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(1 << 20))
call("cuMemcpyHtoD_v2", pointer, b"edge", ctypes.c_size_t(4))
back = ctypes.create_string_buffer(4)
call("cuMemcpyDtoH_v2", back, pointer, ctypes.c_size_t(4))
assert back.raw == b"edge"
print("copied", flush=True)
sys.stdin.read()
"""


def context(*arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start a process with a context, and wait until it has copied."""
    command = [*prefix, sys.executable, "-c", CONTEXT, *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    if process.stdout.readline() != "copied\n":
        pytest.fail(f"no context: {process.communicate()[1][-500:]}")
    return process


def test_context_works_where_no_memory_is_both_writable_and_executable() -> None:
    """MemoryDenyWriteExecute= of the unit."""
    context("mdwe").communicate()


@pytest.mark.skipif(landlock.version() < landlock.OLDEST, reason="this kernel has no Landlock")
def test_context_works_in_the_domain_of_a_worker(tmp_path: Path) -> None:
    for name in ("models/m", "models/other", "state"):
        (tmp_path / name).mkdir(parents=True)
    flags = [f"--model-repository={tmp_path / 'models'}", f"--state-directory={tmp_path / 'state'}"]
    sandbox = Sandbox.of(parse_argv(flags, {}), os.environ)
    assert sandbox is not None
    rules = sandbox.confine(own_interpreter(), [tmp_path / "models/m"]).command[-1]

    context(prefix=(sys.executable, "-I", "-S", landlock.__file__, rules)).communicate()


def test_memory_of_a_context_is_read_from_nvml(
    gpus: Gpus, capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> None:
    """ADR 30 cites published figures: the line that this test prints is ours. `make hw-check` reports the property."""
    read = find_gpus()
    uuid = gpus.found[0].uuid
    before = {one.uuid: one for one in read()}
    if uuid not in before or before[uuid].memory_used is None:
        pytest.skip("NVML does not report the memory of this GPU: pip install 'edge-serve[nvml]'")
    process = context()
    after = {one.uuid: one for one in read()}[uuid]
    process.communicate()

    took = (after.memory_used or 0) - (before[uuid].memory_used or 0) - (1 << 20)
    with capsys.disabled():
        reported = after.processes.get(process.pid)
        record_property("MiB of a CUDA context", round(took / 2**20))
        record_property("MiB of its process by NVML", None if reported is None else round(reported / 2**20))
        print(f"\na CUDA context takes {took / 2**20:.0f} MiB here; NVML reports {reported} bytes of its process")
    assert 0 < took < 2 << 30


@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="there is no nvidia-smi")
@pytest.mark.parametrize(
    ("field", "name", "unit"),
    [
        ("memory.total", "memory_total", 1 << 20),
        ("power.limit", "power_limit", 1),
        ("temperature.gpu", "temperature", 1),
    ],
)
def test_readings_are_those_of_nvidia_smi(field: str, name: str, unit: int, gpus: Gpus) -> None:
    command = ["nvidia-smi", "-i", gpus.found[0].uuid, f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    found = {one.uuid: getattr(one, name) for one in find_gpus()()}.get(gpus.found[0].uuid)
    if not re.fullmatch(r"[\d.]+", text) or found is None:
        pytest.skip(f"nvidia-smi says {text!r}, and the reading is {found}")

    assert found / unit == pytest.approx(float(text), rel=0.05)
