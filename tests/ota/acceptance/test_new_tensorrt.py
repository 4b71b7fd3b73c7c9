"""A new system of a device brings another TensorRT: the agent builds the plan, and the health gate waits for it.

The publisher, the agent, and edge-serve are real. CUDA and TensorRT are stand-ins, of which a plan of another version
is refused as by the genuine one.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from image.device import decide, health, server
from tests.backends import onnx_models
from tests.devices import stand_in
from tests.ota.site import ENVIRONMENT, Site, site
from tests.ota.system.root_side import ImageDevice
from tests.server.running import Running, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
CONFIG = b'platform: "tensorrt_plan"\nmax_batch_size: 8\ninstance_group { kind: KIND_GPU gpus: [ 0 ] }\n'
BUILD = {"model": "det", "onnx": "1/model.onnx", "plan": "1/model.plan", "workspace_mb": 64}


class Machine:
    """A device of the image, whose systems differ in their TensorRT."""

    def __init__(self, base: Path, agent: Site) -> None:
        self.agent = agent
        self.base, self.image = base, ImageDevice(base / "image")
        self.library = stand_in.build(base)
        self.program = base / "edge-serve"

    @contextlib.contextmanager
    def boots(self, version: int, tensorrt: str, **record: object) -> Iterator[Running]:
        """Start a system as its units do: the boot step, then the server."""
        self.image.boots(version, "", **record)
        known = self.base / tensorrt / f"tensorrt-{tensorrt}.dist-info"
        known.mkdir(parents=True, exist_ok=True)
        (known / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tensorrt\nVersion: {tensorrt}\n")
        path = f"{known.parent}:{ROOT}/tests/stand_ins:{ROOT}"
        prefix = [*stand_in.prefix(self.library), f"PYTHONPATH={path}", f"STAND_IN_TENSORRT={tensorrt}"]
        words = " ".join(f"'{one}'" for one in prefix)
        self.program.write_text(f'#!/bin/sh\nexec {words} {sys.executable} -m edge_serve "$@"\n')
        self.program.chmod(0o755)
        self.agent.run("boot")
        flags = ("--model-repository", str(self.base / "models"), "--admin-socket", str(self.base / "admin.sock"))
        with running(*flags, "--exit-on-error=false", prefix=prefix) as found:
            yield found


def write_release(device: Site) -> None:
    """Publish a release with a plan that each device builds, and a golden test."""
    onnx = device.base / "sum.onnx"
    of = (onnx_models.FLOAT, ("N", 4))
    onnx_models.save(onnx, [onnx_models.node("Add", ["A", "B"], ["SUM"])], {"A": of, "B": of}, {"SUM": of})
    tensors = {
        "A": struct.pack("<4f", *[1] * 4),
        "B": struct.pack("<4f", *[2] * 4),
        "SUM": struct.pack("<4f", *[3] * 4),
    }
    rows = [{"name": name, "datatype": "FP32", "shape": [1, 4], "file": name} for name in tensors]
    golden = {"schema": 1, "samples": [{"name": "first", "inputs": rows[:2], "outputs": rows[2:]}]}
    files = {f"golden/{name}": data for name, data in tensors.items()}
    files |= {"golden/golden.json": json.dumps(golden).encode()}
    model = device.publisher.model("det", {"config.pbtxt": CONFIG, "1/model.onnx": onnx.read_bytes(), **files})
    variants = device.base / "variants.json"
    variants.write_text(json.dumps({"variants": [
        {"id": "build", "kind": "onnx-build", "priority": 1, "match": {"tensorrt": ">=10.0"}, "build": [BUILD]}
    ]}))  # fmt: skip
    device.publisher.run("bundle", "det", "--release", 17, "--model", model, "--family", "det", "--variants", variants)
    device.publisher.do("release", "det.17", "--engines")
    device.want(17)


def answers(served: Running) -> bool:
    inputs = [{"name": name, "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]} for name in ("A", "B")]
    status, body = served.post("/v2/models/det/infer", {"inputs": inputs})
    return status == 200 and json.loads(body)["outputs"][0]["data"] == [2, 4, 6, 8]


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Site, Machine]]:
    """A device without models, and its publisher."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    with site(tmp_path, ENVIRONMENT) as found:
        found.server.stop()
        machine = Machine(tmp_path, found)
        found.settings |= {"system_root": machine.image.root, "edge_serve": machine.program}
        write_release(found)
        yield found, machine


@pytest.mark.fault("X2")
def test_a_new_tensorrt_passes_the_health_gate_and_a_fall_back_serves_at_once(device: tuple[Site, Machine]) -> None:
    found, machine = device
    socket = str(found.base / "admin.sock")
    with machine.boots(1, "10.3.0") as served:
        found.run("apply")
        assert answers(served)
        baseline = decide.baseline_of(1, 2, server.ask(socket))
    assert baseline["models"] == ["det"]

    with machine.boots(2, "10.9.0", confirmed=[1], pending=2) as served:
        served.wait_for_log("not compatible with this version of TensorRT|please rebuild")
        assert not answers(served)
        assert decide.judge(baseline, server.ask(socket), 0, decide.FAILED_SECONDS).word == "bad"
        found.run("run-plans")
        assert health.wait_for_verdict(baseline, lambda: server.ask(socket)).word == "good"
        assert answers(served)
        assert [one["event"] for one in found.json("history")][-1] == "built"
        assert os.readlink(found.models / "det").endswith("/det/17@2")
        machine.image.boots(2, "", confirmed=[1, 2], pending=None, previous=1)
        found.run("apply", "--scheduled")
        assert (found.state / "plans/system").read_text() == "2"
        assert "det: release 17 serves" in found.run("status")

    with machine.boots(1, "10.3.0", confirmed=[1], bad={"2": "an operator went back"}, previous=None) as served:
        assert answers(served)
