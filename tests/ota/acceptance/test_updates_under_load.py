"""Updates of a device under 16 busy connections: nothing is lost, no client sees a bad release, and a bad one goes.

The programs are real: the publisher, the agent, and edge-serve.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from ota.agent.device.facts import ThisDevice
from tests.ota.acceptance.clients import busy
from tests.ota.site import ENVIRONMENT, Site, site
from tests.server.running import ADD_SUB, ADD_SUB_CONFIG
from tests.server.sequence_models import CONTROLS, FACE, SUM, step

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: fails one request in twenty, after the requests of its trial
FAILING = ADD_SUB.replace(
    "        for request in requests:\n",
    """        for request in requests:
            self.seen = getattr(self, "seen", 0) + 1
            if self.seen > 200 and self.seen % 20 == 0:
                replies.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("deliberate")))
                continue
""",
)
#: fails negative numbers, in each release
PICKY = ADD_SUB.replace(
    '            b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()\n',
    """            b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            if (a < 0).any():
                replies.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("negative")))
                continue
""",
)


#: sequences wait while the next release is tried
IDLE = "max_sequence_idle_microseconds: 120000000"


def golden(total: int) -> dict[str, bytes]:
    """Return golden/ of an add/sub model whose sums are said to be `total`."""
    ones = struct.pack("<16i", *[1] * 16)
    tensors = {"INPUT0": ones, "INPUT1": ones, "OUTPUT0": struct.pack("<16i", *[total] * 16)}
    rows = [{"name": name, "datatype": "INT32", "shape": [1, 16], "file": name} for name in tensors]
    document = {"schema": 1, "samples": [{"name": "first", "inputs": rows[:2], "outputs": rows[2:]}]}
    files = {f"golden/{name}": data for name, data in tensors.items()}
    return {"golden/golden.json": json.dumps(document).encode(), **files}


def publish(device: Site, release: int, code: str = ADD_SUB, total: int = 2) -> None:
    """Publish a release of det with a golden test, and roll it out."""
    files = {"config.pbtxt": ADD_SUB_CONFIG.encode(), "1/model.py": f"# {release}\n{code}".encode(), **golden(total)}
    model = device.publisher.model("det", files)
    device.publisher.run("bundle", "det", "--release", release, "--model", model, "--family", "det")
    device.publisher.do("release", f"det.{release}", "--engines")
    device.want(release)


def publish_sequences(device: Site, release: int) -> None:
    """Publish a release of a model of sequences, and roll it out."""
    batching = f"sequence_batching {{ {CONTROLS} {IDLE} oldest {{ max_candidate_sequences: 128 }} }}"
    files = {"config.pbtxt": f"{FACE}{batching}".encode(), "1/model.py": f"# {release}\n{SUM}".encode()}
    model = device.publisher.model("sums", files)
    device.publisher.run("bundle", "sums", "--release", release, "--model", model, "--family", "det")
    device.publisher.do("release", f"sums.{release}", "--engines")
    device.want(release, "sums")


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A device that serves release 16 of det and of sums."""
    base = tmp_path_factory.mktemp("fleet")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.chdir(base)
        with site(base, ENVIRONMENT, "--ota-status-file", str(base / "state" / "status.json")) as found:
            publish(found, 16)
            publish_sequences(found, 16)
            found.run("apply")
            yield found


def event(device: Site) -> str:
    found: str = device.json("history")[-1]["event"]
    return found


@pytest.mark.fault("L7")
def test_an_update_loses_no_request_and_no_open_sequence(device: Site) -> None:
    for number in range(1, 101):
        assert step(device.server, "sums", number, number, "start")[1][0] == number
    publish(device, 17)
    publish_sequences(device, 17)
    with busy(device.server.http) as seen:
        time.sleep(0.5)
        device.run("apply")
        for number in range(1, 101):
            assert step(device.server, "sums", number, 1)[1][0] == number + 1, "the sequence lost its state"
        time.sleep(0.5)
    for number in range(1, 101):
        assert step(device.server, "sums", number, 1, "end")[1][0] == number + 2
    assert seen.failures == []
    assert set(seen.versions) == {"16", "17"}
    assert step(device.server, "sums", 500, 5, "start end")[1][0] == 5


@pytest.mark.fault("L2")
def test_no_client_sees_a_release_that_fails_its_golden_test(device: Site) -> None:
    publish(device, 18, total=3)
    with busy(device.server.http) as seen:
        device.run("apply", status=7)
    assert "OUTPUT0" in device.err
    assert seen.failures == []
    assert set(seen.versions) == {"17"}
    assert "18" in device.run("status")


@pytest.mark.fault("L4")
def test_a_release_that_fails_under_load_is_back_within_seconds(device: Site) -> None:
    before = device.serving()
    publish(device, 19, FAILING)
    states: list[tuple[float, int]] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            status, body = device.server.get("/edge-serve/status")
            rows = {row["version"]: row for row in json.loads(body)["models"] if row["name"] == "det"}
            totals = rows.get("19", {}).get("totals")
            states.append((time.monotonic(), totals["failures"]["MODEL"] if totals and status == 200 else 0))

    watching = threading.Thread(target=watch)
    with busy(device.server.http) as seen:
        watching.start()
        device.run("apply", status=7, probation_seconds=120, probation_requests=100_000)
        back = time.monotonic()
        ended.set()
        watching.join()
        time.sleep(0.5)
    crossed = next(when for when, failures in states if failures >= 5)
    assert back - crossed < 30
    assert {text for _, text in seen.failures} <= {"deliberate"}, "another request than those of release 19 failed"
    assert device.serving() == before
    assert "requests failed" in device.run("status")
    assert event(device) in ("rolled_back", "bad")
    metrics = device.server.get("/metrics", device.server.metrics)[1].decode()
    assert "edge_ota_rollbacks_total 1\n" in metrics
    assert f'edge_ota_release{{model="det",release="{before}"}} 1' in metrics


@pytest.mark.parametrize("kind", ["malformed", "failing on both"])
def test_requests_that_are_wrong_by_themselves_roll_nothing_back(device: Site, kind: str) -> None:
    first = {"malformed": 20, "failing on both": 22}[kind]
    odd = '{"inputs": 7}'
    if kind == "failing on both":
        row = {"datatype": "INT32", "shape": [1, 16], "data": [-1] * 16}
        odd = json.dumps({"inputs": [{"name": name, **row} for name in ("INPUT0", "INPUT1")]})
    publish(device, first, PICKY)
    device.run("apply")
    publish(device, first + 1, PICKY)
    with busy(device.server.http, odd=odd) as seen:
        time.sleep(2)
        device.run("apply", probation_seconds=5, probation_requests=200)
    assert (seen.failures, device.serving()) == ([], str(first + 1))
    assert sum(seen.odd.values()) > 200
    assert "200" not in seen.odd


@pytest.mark.fault("L9")
def test_where_memory_holds_one_release_a_failed_one_is_replaced_by_the_old_one(
    device: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = device.serving()
    monkeypatch.setattr(ThisDevice, "fits_beside", lambda self, memory_bytes: False)
    publish(device, 30, total=3)
    with busy(device.server.http) as seen:
        device.run("apply", status=7)
        time.sleep(0.5)
    assert device.serving() == before
    assert set(seen.versions) == {before}
    assert seen.failures == [], "requests wait until the old release serves again"

    publish(device, 31)
    with busy(device.server.http) as seen:
        device.run("apply")
    assert (seen.failures, device.serving()) == ([], "31")
