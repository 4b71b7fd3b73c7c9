"""The generated files of the .proto files are up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.protoc import PROTOS, generate


@pytest.mark.parametrize("folder", PROTOS, ids=lambda folder: Path(folder).name)
def test_generated_files_are_not_older_than_the_proto(folder: Path) -> None:
    pytest.importorskip("grpc_tools")
    assert [path.name for path, content in generate(folder) if path.read_bytes() != content] == [], "run make proto"
