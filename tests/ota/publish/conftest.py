"""A publisher with one family, for each test that asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ota import cli
from tests.ota.publish.publisher import PASSPHRASE, Publisher

#: made once: it is most of the time of a command
PARSER = cli._parser(["publish"])


@pytest.fixture
def publisher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publisher:
    """A publisher that has made nothing yet; its keys' passphrase is in the environment."""
    monkeypatch.setenv("EDGE_OTA_PUBLISH_PASSPHRASE", PASSPHRASE)
    monkeypatch.setattr("ota.cli._parser", lambda argv: PARSER)
    monkeypatch.chdir(tmp_path)
    return Publisher(tmp_path)


@pytest.fixture
def published(publisher: Publisher) -> Publisher:
    """A publisher with the family `det`, and det 1 published."""
    publisher.init("--family", "det")
    publisher.release(1)
    return publisher
