"""A publisher with the role `system`."""

from __future__ import annotations

from pathlib import Path

import pytest

from ota import cli
from tests.ota.publish.publisher import PASSPHRASE, Publisher

#: made once: it is most of the time of a command
PARSER = cli.build_parser(["publish"])


@pytest.fixture
def publisher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publisher:
    """A publisher that has made nothing yet; its keys' passphrase is in the environment."""
    monkeypatch.setenv("EDGE_OTA_PUBLISH_PASSPHRASE", PASSPHRASE)
    monkeypatch.chdir(tmp_path)
    build = cli.build_parser
    monkeypatch.setattr("ota.cli.build_parser", lambda argv: PARSER if argv[:1] == ["publish"] else build(argv))
    return Publisher(tmp_path)
