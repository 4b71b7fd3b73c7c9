"""Machines for the tests, one for each kind and release; without --machine nothing in this folder is collected."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from deploy.debian.package import build
from image import qemu
from image.artifacts import newest
from image.run import ROOT, for_arm
from tests.system import disk, nspawn, vm
from tests.system.disk import Disk
from tests.system.machine import Boot, Machine
from tests.system.nspawn import Nspawn
from tests.system.service import Service
from tests.system.trees import Tree
from tests.system.vm import Vm

#: time limit of one test in seconds, with the boot of its machine
_LIMITS = {"nspawn": 360, "vm": 3000, "disk": 3000}
_WHY_NOT = {"nspawn": nspawn.why_not, "vm": vm.why_not, "disk": disk.why_not}
#: tests that do not install or change the package: they pass on the device image too
_ON_IMAGE = ("test_restarts.py", "test_faults.py", "test_status.py")
_IMAGE_TESTS = Path(__file__).with_name("image")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--machine", choices=tuple(_LIMITS), help="boot the package in a container, or in QEMU, or the device image"
    )
    parser.addoption("--release", action="append", choices=("bookworm", "trixie"), help="of Debian; several times")
    parser.addoption("--no-skips", action="store_true", help="a test that is skipped fails, with its reason")
    parser.addoption("--update", type=Path, help="edge_N.build.json of a newer image (make test-image-update)")
    parser.addoption("--image", type=Path, help="for --machine disk: .raw or .img.zst (default: the newest of dist/)")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    kind = config.getoption("--machine", None)
    of_image = _IMAGE_TESTS in (collection_path, *collection_path.parents)
    if kind == "disk":
        on_image = of_image or collection_path.name in _ON_IMAGE or collection_path.is_dir()
        return None if on_image else True
    return None if kind and not of_image else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kind = config.getoption("--machine", None)
    for item in items if kind else ():
        item.add_marker(pytest.mark.timeout(_LIMITS[kind]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make a skipped test fail if the run is to prove something."""
    report = yield
    if report.skipped and item.config.getoption("--no-skips", False):
        report.outcome = "failed"
        report.longrepr = f"skipped, and --no-skips was given: {report.longrepr}"
    return report


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Group the tests by release, so that one machine runs at a time."""
    if "release" in metafunc.fixturenames:
        usual = {"nspawn": ["bookworm"], "vm": ["bookworm", "trixie"], "disk": ["trixie"]}
        releases = metafunc.config.getoption("--release") or usual[metafunc.config.getoption("--machine")]
        metafunc.parametrize("release", releases, scope="session")


@pytest.fixture(scope="session")
def kind(request: pytest.FixtureRequest) -> str:
    """Return `nspawn`, `vm`, or `disk`."""
    name: str = request.config.getoption("--machine")
    why = _WHY_NOT[name]()
    if why:
        pytest.skip(f"no machine can be booted here: {why}")
    return name


@pytest.fixture(scope="session")
def image(kind: str, request: pytest.FixtureRequest) -> Path:
    """Return the device image, byte for byte as it ships."""
    path: Path = request.config.getoption("--image") or newest(ROOT / "dist")
    assert path.is_file(), f"{path} is no file"
    if why := qemu.why_not(for_arm(path)):
        pytest.skip(f"{path.name} cannot be booted here: {why}")
    return path


@pytest.fixture(scope="session")
def package(kind: str, release: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the package for the release."""
    return build(release, "amd64", tmp_path_factory.mktemp("deb"))


@pytest.fixture(scope="session")
def machine(kind: str, release: str, request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Yield a booted system."""
    boot: Boot
    if kind == "disk":
        boot = Disk(request.getfixturevalue("image"))
    else:
        # Debian 12 has no systemd library here, so that both implementations are tested
        tree = Tree(release, boots=kind == "vm", journald_library=release == "trixie")
        boot = Nspawn(tree) if kind == "nspawn" else Vm(tree, request.getfixturevalue("package"))
    machine = Machine(boot)
    try:
        if isinstance(boot, Nspawn) and (why := boot.refused()):
            pytest.skip(f"no container runs here: {why}")
        machine.start()
        yield machine
    finally:
        boot.stop()


@pytest.fixture(scope="session")
def installed(machine: Machine, request: pytest.FixtureRequest) -> Service:
    """Return the service on a machine with the package installed, not started."""
    service = Service(machine)
    if machine.boot.kind == "nspawn":
        service.install(request.getfixturevalue("package"))
    return service


@pytest.fixture
def fresh(installed: Service) -> Service:
    """Return the service as after installation: stopped, no models."""
    installed.clean()
    return installed


@pytest.fixture
def service(fresh: Service) -> Service:
    """Return the running service with one model."""
    fresh.add_shipped_models("simple")
    fresh.start()
    return fresh
