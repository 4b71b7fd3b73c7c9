"""The status file of the device image, as the server reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_serve.messages.status import SystemEntry, SystemFacts, SystemFault
from edge_serve.observe.status.device_file import read_system
from image.device import report


def test_the_file_that_the_device_writes_is_read(tmp_path: Path) -> None:
    run, root = tmp_path / "run", tmp_path / "root"
    (root / "boot/EFI/Linux").mkdir(parents=True)
    (root / "usr/lib").mkdir(parents=True)
    (root / "usr/lib/os-release").write_text('ID=debian\nIMAGE_ID=edge\nIMAGE_VERSION="12"\n')
    for name in ("edge_11.efi", "edge_12+2-1.efi", "edge_13+0-3.efi", "other.efi"):
        (root / "boot/EFI/Linux" / name).write_text("kernel")
    report.report("data-full", "The data partition is full.", "Remove models.", run=run, clock=lambda: 0.0)
    report.update_status(run, root, ["10.0.0.2"])
    found = read_system(str(run / "status.json"))
    assert found == SystemFacts(
        addresses=("10.0.0.2",),
        version="12",
        entries=(SystemEntry("11", "good"), SystemEntry("12", "trying"), SystemEntry("13", "bad")),
        faults=(SystemFault("data-full", "The data partition is full.", "1970-01-01T00:00:00Z", "Remove models."),),
    )
    report.clear("data-full", run=run)
    report.clear("data-full", run=run)
    report.update_status(run, root, [])
    assert (read_system(str(run / "status.json")) or found).faults == ()


def test_without_the_file_this_is_not_the_image(tmp_path: Path) -> None:
    assert read_system(str(tmp_path / "none")) is None
    assert read_system("") is None


@pytest.mark.parametrize("content", ["", "[]", "{", '{"schema": 2}', "[" * 100000])
def test_a_file_of_another_kind_is_a_problem_and_no_failure(tmp_path: Path, content: str) -> None:
    path = tmp_path / "status.json"
    path.write_text(content)
    found = read_system(str(path))
    assert found is not None
    assert found.problem == f"{path} is not a status file of the device image with schema 1"


def test_members_of_a_wrong_type_count_as_absent(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    wrong = {"schema": 1, "name": [], "addresses": [1, "10.0.0.2"], "entries": {}, "faults": [3, {"code": 1}]}
    path.write_text(json.dumps(wrong))
    assert read_system(str(path)) == SystemFacts(addresses=("10.0.0.2",), faults=(SystemFault("1", ""),))
