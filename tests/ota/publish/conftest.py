"""A publisher with one family, for each test that asks for it."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ota import cli
from tests.ota.publish.fleet import DEVICES, Fleet, Simulated
from tests.ota.publish.publisher import PASSPHRASE, Publisher

#: made once: it is most of the time of a command
PARSER = cli.build_parser(["publish"])


@pytest.fixture
def publisher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publisher:
    """A publisher that has made nothing yet; its keys' passphrase is in the environment, and its clock is confirmed."""
    monkeypatch.setattr("ota.trust.clock_floor.is_synchronized", lambda: True)
    monkeypatch.setenv("EDGE_OTA_PUBLISH_PASSPHRASE", PASSPHRASE)
    monkeypatch.setattr("ota.cli.build_parser", lambda argv: PARSER)
    monkeypatch.chdir(tmp_path)
    return Publisher(tmp_path)


@pytest.fixture
def published(publisher: Publisher) -> Publisher:
    """A publisher with the family `det`, and det 1 published."""
    publisher.init("--family", "det")
    publisher.release(1)
    return publisher


@pytest.fixture(scope="module")
def prepared() -> Iterator[Callable[[int], Fleet]]:
    """Publishers with det 1 and det 2, and so many devices that run 1."""
    memory = Path("/dev/shm")
    base = Path(tempfile.mkdtemp(prefix="edge-ota-", dir=memory if memory.is_dir() else None))

    @functools.cache
    def fleet(count: int) -> Fleet:
        publisher = Publisher(base / str(count))
        publisher.base.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("EDGE_OTA_PUBLISH_PASSPHRASE", PASSPHRASE)
            patch.chdir(publisher.base)
            publisher.init("--family", "det")
            publisher.release(1)
            publisher.release(2)
            found = Fleet(publisher)
            found.add(count)
            publisher.do("rollout start", "plant", "det", 2, "prod=5")
        return found

    yield fleet
    shutil.rmtree(base)


def _copied(prepared: Fleet, publisher: Publisher) -> Fleet:
    shutil.copytree(prepared.publisher.dir, publisher.dir)
    return Fleet(publisher, [Simulated(one.document, one.key, 1) for one in prepared.devices])


@pytest.fixture
def fleet(prepared: Callable[[int], Fleet], publisher: Publisher) -> Fleet:
    """A hundred devices."""
    return _copied(prepared(100), publisher)


@pytest.fixture
def thousand(prepared: Callable[[int], Fleet], publisher: Publisher) -> Fleet:
    """A thousand devices."""
    return _copied(prepared(DEVICES), publisher)
