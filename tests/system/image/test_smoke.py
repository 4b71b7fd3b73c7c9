"""The shipped image, byte for byte, driven from outside only: as a flashed device on a desk, and its owner.

Nothing comes in through its firmware. The boot partition is written before the boot, as by a laptop.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.browser import chromium
from tests.ota.publish.publisher import PASSPHRASE
from tests.prometheus import eventually, prometheus
from tests.system.disk import Disk
from tests.system.fleet import DEVICE
from tests.system.image import esp, site
from tests.system.image.site import Clock, Site
from tests.system.machine import Machine, wait_until
from tests.system.service import HTTP, METRICS, Service

GRPC, SSH = 8001, 22
MODEL = "simple"
#: of the fleet's publisher: edge-ota replaces no model that the device has from elsewhere
RELEASED = "adder"
#: seconds to the first run of edge-ota: one minute, up to five by chance, and the update under emulation
FIRST_UPDATE = 900
_A, _B = np.arange(16, dtype=np.int32).reshape(1, 16), np.full((1, 16), 5, dtype=np.int32)


@pytest.fixture(scope="module")
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield the publisher of the device, with a release that the device does not have yet, behind nginx."""
    if why := site.why_not() or esp.why_not():
        pytest.skip(why)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGE_OTA_PUBLISH_PASSPHRASE", PASSPHRASE)
        made = Site(tmp_path_factory.mktemp("site"))
        made.publish(RELEASED, 1)
        with made.served():
            yield made


@pytest.fixture(scope="module")
def device(image: Path, owner: Site, clock: Clock) -> Iterator[Service]:
    """Yield the service of a device that was flashed, provisioned, and switched on."""
    boot = Disk(image, shipped=True)
    service = Service(Machine(boot))
    try:
        owner.provision(boot.disk)
        clock.step("the disk is written and provisioned")
        boot.start()
        ready = wait_until(lambda: service.status_of("GET", "/v2/health/ready") == 200, 60 * boot.patience, 0.2)
        assert ready, f"the device is not ready; its console:\n{boot.console()}"
        clock.step("the device is ready, seen from outside")
        yield service
    finally:
        boot.stop()


def address(device: Service, port: int) -> str:
    host, forwarded = device.machine.boot.address(port)
    return f"{host}:{forwarded}"


def inferred(client: Any, module: Any, model: str = MODEL) -> None:
    """Infer with one of the two modules of tritonclient, and compare the result."""
    inputs = [module.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for one, data in zip(inputs, (_A, _B), strict=True):
        one.set_data_from_numpy(data)
    found = client.infer(model, inputs)
    assert np.array_equal(found.as_numpy("OUTPUT0"), _A + _B)
    assert np.array_equal(found.as_numpy("OUTPUT1"), _A - _B)


def test_tritonclient_infers_over_http(device: Service, clock: Clock) -> None:
    import tritonclient.http as module

    with module.InferenceServerClient(address(device, HTTP), connection_timeout=60, network_timeout=60) as client:
        assert client.is_server_ready()
        inferred(client, module)
    clock.step("tritonclient has inferred over HTTP")


def test_tritonclient_infers_over_grpc(device: Service, clock: Clock) -> None:
    import tritonclient.grpc as module

    with module.InferenceServerClient(address(device, GRPC)) as client:
        assert client.is_server_ready(client_timeout=60)
        inferred(client, module)
    clock.step("tritonclient has inferred over gRPC")


@pytest.mark.skipif(not shutil.which("prometheus"), reason="needs prometheus: apt-get install prometheus")
def test_prometheus_scrapes_the_device(device: Service, clock: Clock, tmp_path: Path) -> None:
    assert device.infer(MODEL) == 200
    with prometheus(tmp_path, device.machine.boot.address(METRICS)[1]) as api:
        assert eventually(api, 'up{job="edge"} == 1', 60) == "1"
        count = float(eventually(api, f'nv_inference_request_success{{model="{MODEL}"}}', 60))
    assert count >= 1
    clock.step("Prometheus has the metrics")


def test_the_status_page_works_in_a_browser(device: Service, clock: Clock) -> None:
    with chromium() as browser:
        page = browser.page()
        page.open(f"http://{address(device, HTTP)}/ui")
        page.wait_for(f"document.body.innerText.includes({json.dumps(MODEL)})")
        assert DEVICE in page.text(), "the device has the name of edge-serve.toml"
        assert page.complaints == []
        assert all(f"//{address(device, HTTP)}/" in one for one in page.requests), page.requests
    clock.step("the browser shows the device")


def test_no_ssh_server_answers_without_keys(device: Service) -> None:
    with socket.create_connection(device.machine.boot.address(SSH), 30) as connection:
        connection.settimeout(30)  # QEMU accepts each connection, and closes it if the device refuses
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(100) == b""


def test_edge_ota_installs_a_release_from_nginx(device: Service, owner: Site, clock: Clock) -> None:
    arrived = wait_until(lambda: device.infers(RELEASED), FIRST_UPDATE, 1.0)
    status = device.ask("GET", "/edge-serve/status")[1]
    assert arrived, f"{RELEASED} does not serve; nginx saw:\n{owner.requests()[-2000:]}\n{status[-3000:]}"
    assert json.loads(device.ask("GET", f"/v2/models/{RELEASED}")[1])["versions"] == ["1"]
    assert f'edge_ota_release{{model="{RELEASED}",release="1"}} 1' in device.metrics()
    assert device.infer(MODEL) == 200, "the other models serve on"
    clock.step(f"edge-ota has installed {RELEASED} from nginx")
