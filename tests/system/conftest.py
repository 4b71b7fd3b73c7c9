"""Machines for the tests, one for each kind and release; without --machine nothing in this folder is collected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.debian.package import build
from tests.system import nspawn, vm
from tests.system.machine import Machine
from tests.system.nspawn import Nspawn
from tests.system.service import Service
from tests.system.trees import Tree
from tests.system.vm import Vm

#: time limit of one test in seconds, with the boot of its machine
_LIMITS = {"nspawn": 360, "vm": 3000}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--machine", choices=("nspawn", "vm"), help="boot the package in a container, or in QEMU")
    parser.addoption("--release", action="append", choices=("bookworm", "trixie"), help="of Debian; several times")


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return None if config.getoption("--machine", None) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kind = config.getoption("--machine", None)
    for item in items if kind else ():
        item.add_marker(pytest.mark.timeout(_LIMITS[kind]))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Group the tests by release, so that one machine runs at a time."""
    if "release" in metafunc.fixturenames:
        both = metafunc.config.getoption("--machine") == "vm"
        releases = metafunc.config.getoption("--release") or (["bookworm", "trixie"] if both else ["bookworm"])
        metafunc.parametrize("release", releases, scope="session")


@pytest.fixture(scope="session")
def kind(request: pytest.FixtureRequest) -> str:
    """Return `nspawn` or `vm`."""
    name: str = request.config.getoption("--machine")
    why = (nspawn if name == "nspawn" else vm).why_not()
    if why:
        pytest.skip(f"no machine can be booted here: {why}")
    return name


@pytest.fixture(scope="session")
def package(kind: str, release: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the package for the release."""
    return build(release, "amd64", tmp_path_factory.mktemp("deb"))


@pytest.fixture(scope="session")
def machine(kind: str, release: str, package: Path) -> Iterator[Machine]:
    """Yield a booted system."""
    # Debian 12 has no systemd library here, so that both implementations are tested
    tree = Tree(release, boots=kind == "vm", journald_library=release == "trixie")
    boot = Nspawn(tree) if kind == "nspawn" else Vm(tree, package)
    machine = Machine(boot)
    try:
        if isinstance(boot, Nspawn) and (why := boot.refused()):
            pytest.skip(f"no container runs here: {why}")
        machine.start()
        yield machine
    finally:
        boot.stop()


@pytest.fixture(scope="session")
def installed(machine: Machine, package: Path) -> Service:
    """Return the service on a machine with the package installed, not started."""
    service = Service(machine)
    if machine.boot.kind == "nspawn":
        service.install(package)
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
