"""The versions of the stand-in for TensorRT; its behaviour has a suite in tests/nvinfer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

SCRIPT = """
import tensorrt as trt
from tests.stand_ins.plans import plan, tensor

both = [tensor("INPUT0", "INPUT", "FLOAT", (-1, 4)), tensor("OUTPUT0", "OUTPUT", "FLOAT", (-1, 4))]
made = plan("identity", both, [dict(INPUT0=((1, 4), (4, 4), (8, 4)))], version=trt.__version__)
runtime = trt.Runtime(trt.Logger())
"""


def stand_in(code: str, **environ: str) -> str:
    """Run a script with the stand-ins on its path. Return what it printed."""
    path = {"PYTHONPATH": f"{HERE}:{ROOT}", "PATH": "/usr/bin:/bin", **environ}
    done = subprocess.run([sys.executable, "-c", SCRIPT + code], env=path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_versions_lack_what_the_genuine_ones_lack() -> None:
    code = "engine = runtime.deserialize_cuda_engine(made)\nprint(*(hasattr(engine, name) for name in NAMES))"
    names = "NAMES = ('device_memory_size', 'device_memory_size_v2', 'get_tensor_profile_values')\n"
    for version, has in {"8.6.0": "True False False", "10.3.0": "True True True", "11.4.1": "False True True"}.items():
        assert stand_in(names + code, STAND_IN_TENSORRT=version).strip() == has
