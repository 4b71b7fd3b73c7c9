"""The stand-in for TensorRT does what its users count on, also where they err."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

SCRIPT = """
import ctypes, numpy as np, tensorrt as trt
from cuda.bindings.runtime import host
from tests.stand_ins.plans import plan, tensor

class Log(trt.ILogger):
    def __init__(self):
        super().__init__()
        self.last = ""
    def log(self, severity, msg):
        self.last = msg

log = Log()
runtime = trt.Runtime(log)
inputs = [tensor(name, "INPUT", "FLOAT", (-1, 4)) for name in ("INPUT0", "INPUT1")]
outputs = [tensor(name, "OUTPUT", "FLOAT", (-1, 4)) for name in ("OUTPUT0", "OUTPUT1")]
ranges = ((1, 4), (4, 4), (8, 4))
made = plan("addsub", inputs + outputs, [dict(INPUT0=ranges, INPUT1=ranges)], version=trt.__version__)
"""

RUN = """
engine = runtime.deserialize_cuda_engine(made)
context, stream = engine.create_execution_context(), host.stream_create()
values = np.arange(8, dtype=np.float32).reshape(2, 4)
for name in ("INPUT0", "INPUT1"):
    assert context.set_input_shape(name, (2, 4))
    device = host.malloc(values.nbytes)
    host.memcpy_async(device, values.ctypes.data, values.nbytes, stream)
    context.set_tensor_address(name, device)
assert context.get_tensor_shape("OUTPUT0") == (2, 4)
result = np.zeros_like(values)
device = host.malloc(values.nbytes)
for name in ("OUTPUT0", "OUTPUT1"):
    context.set_tensor_address(name, device)
assert context.execute_async_v3(stream), log.last
host.stream_synchronize(stream)
assert not context.set_input_shape("INPUT0", (9, 4)), "beyond the profile"
print(log.last)
"""


def stand_in(code: str, **environ: str) -> str:
    """Run a script with the stand-ins on its path. Return what it printed."""
    path = {"PYTHONPATH": f"{HERE}:{ROOT}", "PATH": "/usr/bin:/bin", **environ}
    done = subprocess.run([sys.executable, "-c", SCRIPT + code], env=path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_plan_runs_and_a_shape_beyond_its_profile_is_refused() -> None:
    assert "Static dimension mismatch while setting input shape" in stand_in(RUN)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("made = b'abc'", "Magic tag does not match"),
        ("made = made[:40]", "unexpected end of archive"),
        ("made = made.replace(b'10.3.0', b'8.6.1')", "expecting library version 10.3.0 got 8.6.1"),
        ("made = made.replace(b'\"8.7\"', b'\"9.0\"')", "expecting compute 8.7 got compute 9.0"),
    ],
    ids=["another file", "truncated", "another version", "another device"],
)
def test_plan_that_does_not_fit_is_none_with_a_text(code: str, text: str) -> None:
    assert text in stand_in(f"{code}\nassert runtime.deserialize_cuda_engine(made) is None\nprint(log.last)")


def test_versions_lack_what_the_genuine_ones_lack() -> None:
    code = "engine = runtime.deserialize_cuda_engine(made)\nprint(*(hasattr(engine, name) for name in NAMES))"
    names = "NAMES = ('device_memory_size', 'device_memory_size_v2', 'get_tensor_profile_values')\n"
    for version, has in {"8.6.0": "True False False", "10.3.0": "True True True", "11.4.1": "False True True"}.items():
        assert stand_in(names + code, STAND_IN_TENSORRT=version).strip() == has
