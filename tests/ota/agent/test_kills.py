"""The agent is killed at random moments of installs, while 16 connections ask a real edge-serve."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ota import files
from ota.agent.boot import Boot
from ota.errors import TrialFailed
from ota.server.admin_client import AdminClient
from ota.server.trial import UnitTrial
from ota.store import releases
from tests.backends import onnx_models
from tests.ota.bundles import sha256
from tests.ota.clock import NOW
from tests.ota.device import Device, check_whole
from tests.ota.site import PROGRAM
from tests.server.running import Running, running

KILLS = 500
CONNECTIONS = 16
CONFIG = b'platform: "onnxruntime_onnx"\nparameters { key: "EDGE_SERVE_WORKER" value { string_value: "shared" } }\n'
BODY = json.dumps(
    {"inputs": [{"name": name, "datatype": "INT32", "shape": [1, 4], "data": [1, 2, 3, 4]} for name in ("A", "B")]}
)
#: asks until its standard input is closed; prints how many requests were answered, and those that failed
BUSY = f"""
import json, sys, threading, time
from tests.server.load import Client
stop, counts, failures = threading.Event(), [], []
def ask():
    client, count = Client({{port}}), 0
    while not stop.is_set():
        try:
            status, answer = client.infer("det", {BODY!r})
            right = status == 200 and answer["outputs"][0]["data"] == [2, 4, 6, 8]
        except Exception as error:
            right, status, answer, client = False, 0, repr(error), Client({{port}})
        count += 1
        if not right and len(failures) < 100:
            failures.append((status, answer))
        time.sleep(0.005)
    counts.append(count)
threads = [threading.Thread(target=ask) for _ in range({CONNECTIONS})]
[one.start() for one in threads]
sys.stdin.read()
stop.set()
[one.join() for one in threads]
print(json.dumps([sum(counts), failures]))
"""


CHAIN = b"""
platform: "ensemble"
input { name: "A" data_type: TYPE_INT32 dims: [ -1, 4 ] }
input { name: "B" data_type: TYPE_INT32 dims: [ -1, 4 ] }
output { name: "SUM" data_type: TYPE_INT32 dims: [ -1, 4 ] }
ensemble_scheduling {
  step {
    model_name: "first" model_version: -1
    input_map { key: "A" value: "A" } input_map { key: "B" value: "B" }
    output_map { key: "SUM" value: "BETWEEN" }
  }
  step {
    model_name: "second" model_version: -1
    input_map { key: "A" value: "BETWEEN" } input_map { key: "B" value: "B" }
    output_map { key: "SUM" value: "SUM" }
  }
}
"""


def golden_files(expected: Sequence[int]) -> dict[str, bytes]:
    """Return golden/ with one sample: 1, 2, 3, 4 twice, and the sums that are expected."""
    tensors = {name: struct.pack("<4i", 1, 2, 3, 4) for name in ("A", "B")} | {"SUM": struct.pack("<4i", *expected)}
    rows = {name: {"name": name, "datatype": "INT32", "shape": [1, 4], "file": name} for name in tensors}
    sample = {"name": "first", "inputs": [rows["A"], rows["B"]], "outputs": [rows["SUM"]]}
    document = json.dumps({"schema": 1, "samples": [sample]}).encode()
    return {"golden/golden.json": document, **{f"golden/{name}": data for name, data in tensors.items()}}


class Model:
    """Releases of an ONNX model: its weights differ, its answers do not."""

    def __init__(self, device: Device, folder: Path) -> None:
        self.device = device
        self.onnx = onnx_models.add_sub(folder / "model.onnx").read_bytes()

    def publish(self, release: int, golden: Sequence[int] = ()) -> None:
        """Publish a release; `golden`: the sums that its golden test expects."""
        self.device.trust.documents[f"engines/vision/{sha256(CONFIG)}"] = CONFIG
        self.device.publish("det", release, {"det": self.files(release, golden)})

    def files(self, release: int, golden: Sequence[int] = ()) -> dict[str, bytes]:
        """Return the files of a release."""
        found = {"config.pbtxt": CONFIG, f"{release}/model.onnx": self.onnx, f"{release}/labels.txt": b"%d" % release}
        return {**found, **(golden_files(golden) if golden else {})}

    def publish_chain(self, release: int, golden: Sequence[int] = ()) -> None:
        """Publish an ensemble of two of these models; `golden` is of the second one."""
        self.device.trust.documents[f"engines/vision/{sha256(CONFIG)}"] = CONFIG
        models = {
            "first": self.files(release),
            "second": self.files(release, golden),
            "chain": {"config.pbtxt": CHAIN, f"{release}/labels.txt": b""},
        }
        self.device.publish("chain", release, models)


def killed(device: Device, seconds: float) -> None:
    """Run the agent in a process of its own, and kill it."""
    child = os.fork()
    if not child:
        try:
            device.run()
        finally:
            os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@contextlib.contextmanager
def busy(port: int) -> Iterator[list[Any]]:
    """Ask while this lasts; the list is filled at the end."""
    found: list[Any] = []
    code = BUSY.replace("{port}", str(port))
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield found
        finally:
            out, _ = process.communicate(timeout=60)
            found.extend(json.loads(out))


def version(server: Running) -> int:
    status, body = server.post("/v2/models/det/infer", json.loads(BODY))
    assert status == 200, body
    return int(json.loads(body)["model_version"])


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.fault("C3")
def test_kills_of_the_server_are_survived(tmp_path: Path) -> None:
    """edge-serve is killed while the agent switches, and started again behind the boot step, as systemd does."""
    device = Device(tmp_path)
    model, seeded = Model(device, tmp_path), random.Random(9)
    socket = tmp_path / "admin.sock"
    flags = ("--model-repository", str(device.repository), "--admin-socket", str(socket))
    device.server = AdminClient(str(socket))  # type: ignore[assignment]  # the real one
    with running(*flags):
        model.publish(1)
        device.run()
    for release in range(2, 10):
        model.publish(release)
        with running(*flags) as server:
            child = os.fork()
            if not child:
                try:
                    device.outcomes()
                finally:
                    os._exit(0)
            time.sleep(seeded.uniform(0, 0.1))
            server.process.kill()
            os.waitpid(child, 0)
        Boot(device.settings, NOW, lambda text: None).run()
        with running(*flags) as server:
            assert version(server) in (release - 1, release)
            assert device.run()["det"].release == release
            assert version(server) == release


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.fault("L9")
def test_where_memory_holds_one_release_the_old_one_comes_back(tmp_path: Path) -> None:
    """The new one fails its golden test in the switch; requests wait, and are answered or told why not."""
    device = Device(tmp_path)
    device.facts.room = False
    socket = tmp_path / "admin.sock"
    with running("--model-repository", str(device.repository), "--admin-socket", str(socket)) as server:
        device.server = AdminClient(str(socket))  # type: ignore[assignment]  # the real one
        model = Model(device, tmp_path)
        model.publish(1)
        device.run()
        with busy(server.http) as load:
            time.sleep(0.5)
            model.publish(2, golden=[9, 9, 9, 9])
            with pytest.raises(TrialFailed, match="golden"):
                device.run()
            assert version(server) == 1
            model.publish(3, golden=[2, 4, 6, 8])
            assert device.run()["det"].release == 3
            time.sleep(0.2)
            assert version(server) == 3
    answered, failures = load
    assert answered > 100
    told = {str(answer.get("error"))[:60] for _, answer in failures}
    assert all(status >= 400 and answer.get("error") for status, answer in failures), told
    print(answered, len(failures), told)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_an_ensemble_is_not_switched_when_one_of_its_members_fails_its_golden_test(tmp_path: Path) -> None:
    device = Device(tmp_path)
    socket = tmp_path / "admin.sock"
    with running("--model-repository", str(device.repository), "--admin-socket", str(socket)) as server:
        device.server = AdminClient(str(socket))  # type: ignore[assignment]  # the real one
        device.trial = UnitTrial("", PROGRAM)  # type: ignore[assignment]  # the real one
        model = Model(device, tmp_path)
        model.publish_chain(1)
        device.run()
        model.publish_chain(2, golden=[9, 9, 9, 9])
        with pytest.raises(TrialFailed, match=r"second: sample 'first': output 'SUM'"):
            device.run()
        ready = [(row["name"], row["version"]) for row in device.server.status()["models"]]  # type: ignore[attr-defined]
        assert sorted(ready) == [("chain", "1"), ("first", "1"), ("second", "1")]
        assert server.get("/v2/models/chain/ready")[0] == 200
        model.publish_chain(3, golden=[2, 4, 6, 8])
        assert device.run()["chain"].release == 3


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.fault("C3")
@pytest.mark.fault("L7")
def test_kills_at_random_moments_lose_no_request(tmp_path: Path) -> None:
    kills = int(os.environ.get("EDGE_OTA_TEST_KILLS", KILLS))
    device = Device(tmp_path)
    model = Model(device, tmp_path)
    seeded, took = random.Random(500), 0.3
    socket = tmp_path / "admin.sock"
    with running("--model-repository", str(device.repository), "--admin-socket", str(socket)) as server:
        device.server = AdminClient(str(socket))  # type: ignore[assignment]  # the real one
        model.publish(1)
        device.run()
        with busy(server.http) as load:
            for release in range(2, 2 + kills):
                model.publish(release)
                killed(device, seeded.uniform(0, 1.2 * took))
                assert version(server) in (release - 1, release)
                assert check_whole(device.repository / "det") in (release - 1, release)
                began = time.monotonic()
                assert device.run()["det"].release == release
                took = 0.8 * took + 0.2 * (time.monotonic() - began)
                assert version(server) == release
                old = device.layout.release("det", release - 2)
                if releases.read_record(old) is not None:
                    files.remove_tree(old)
    answered, failures = load
    print(f"{kills} kills, {answered} requests, a run takes {took:.2f} s")
    assert failures == []
    assert answered > 10 * kills
