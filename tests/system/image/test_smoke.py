"""The shipped image, byte for byte, driven from outside only: as a flashed device on a desk, and its owner.

Nothing comes in through its firmware. The boot partition is written before the boot, as by a laptop.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.browser import chromium
from tests.ota.publish.publisher import PASSPHRASE
from tests.prometheus import eventually, prometheus
from tests.system.disk import Disk, Hardware
from tests.system.fleet import DEVICE
from tests.system.image import cable, esp, site
from tests.system.image.cable import Cable
from tests.system.image.site import Clock, Site
from tests.system.machine import Machine, wait_until
from tests.system.service import HTTP, METRICS, Service

GRPC = 8001
MODEL = "simple"
#: of the fleet's publisher: edge-ota replaces no model that the device has from elsewhere
RELEASED = "simple_released"
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
def wire() -> Iterator[Cable | None]:
    """Yield a cable on which all ports of the device can be tried; None where this host cannot have one."""
    if cable.why_not():
        yield None
        return
    with cable.cable() as made:
        yield made


@pytest.fixture(scope="module")
def device(image: Path, owner: Site, wire: Cable | None, clock: Clock) -> Iterator[Service]:
    """Yield the service of a device that was flashed, provisioned, and switched on."""
    boot = Disk(image, shipped=True, hardware=Hardware(more=wire.words() if wire else ()))
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


def test_only_infer_and_metrics_accept_connections(device: Service, wire: Cable | None, clock: Clock) -> None:
    if wire is None:
        pytest.skip(cable.why_not())
    assert wire.open_ports() == [HTTP, GRPC, METRICS], "and no SSH, because the device has no keys"
    clock.step("all 65535 ports of TCP were tried")


def test_the_device_answers_to_its_name(device: Service, wire: Cable | None) -> None:
    if wire is None:
        pytest.skip(cable.why_not())
    assert wire.resolve(f"{DEVICE}.local").startswith("fe80:")


def test_edge_ota_installs_a_release_from_nginx(device: Service, owner: Site, clock: Clock) -> None:
    arrived = wait_until(lambda: device.infers(RELEASED), FIRST_UPDATE, 1.0)
    status = device.ask("GET", "/edge-serve/status")[1]
    assert arrived, f"{RELEASED} does not serve; nginx saw:\n{owner.requests()[-2000:]}\n{status[-3000:]}"
    assert json.loads(device.ask("GET", f"/v2/models/{RELEASED}")[1])["versions"] == ["1"]
    assert f'edge_ota_release{{model="{RELEASED}",release="1"}} 1' in device.metrics()
    assert device.infer(MODEL) == 200, "the other models serve on"
    clock.step(f"edge-ota has installed {RELEASED} from nginx")
