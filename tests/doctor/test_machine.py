"""Python, backends, limits and disks, as the doctor finds them."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import pytest

from edge_serve.doctor import machine
from edge_serve.doctor.finding import Finding, all_good, as_document, as_text
from edge_serve.doctor.machine import disk, examine_backends, examine_disks, examine_machine
from edge_serve.workers.launch import landlock


def of_machine(topic: str) -> Finding:
    (finding,) = (finding for finding in examine_machine() if finding.topic == topic)
    return finding


def test_a_line_has_mark_topic_text_and_advice() -> None:
    findings = [Finding("a", "fine", True), Finding("b", "news", None, "read"), Finding("c", "bad\nx", False, "do")]

    assert as_text(findings).splitlines() == [
        "ok  a            fine",
        "--  b            news",
        "                 -> read",
        "!!  c            bad\\nx",
        "                 -> do",
    ]
    assert not all_good(findings)
    assert all_good(findings[:2])
    assert as_document(findings, {"arch": "x"})["ok"] is False
    assert as_document(findings, {})["findings"][1] == {"topic": "b", "text": "news", "good": None, "advice": "read"}


@pytest.mark.parametrize(
    ("version", "good"), [((3, 9), False), ((3, 10), True), ((3, 13), True), ((3, 14), False), ((4, 0), False)]
)
def test_the_version_of_python(monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], good: bool) -> None:
    monkeypatch.setattr(sys, "version_info", version)

    finding = of_machine("python")
    assert (finding.good, finding.advice) == (good, "" if good else "use Python 3.10 to 3.13")


def backends(monkeypatch: pytest.MonkeyPatch, *distributions: str) -> list[Finding]:
    """Return the findings on a machine with these distributions."""
    modules = {name.removesuffix("-gpu") for name in distributions}
    monkeypatch.setattr(machine, "installed", lambda name: "1.2" if name in distributions else "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name in modules or None)
    return list(examine_backends())


def test_a_backend_that_is_missing_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = backends(monkeypatch, "numpy")

    assert [(finding.text, finding.good) for finding in findings[:2]] == [
        ("python: numpy 1.2", True),
        ("onnxruntime: not installed", None),
    ]
    assert findings[1].advice == "pip install onnxruntime"


def test_either_package_brings_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = backends(monkeypatch, "numpy", "onnxruntime-gpu")

    assert ("onnxruntime: onnxruntime-gpu 1.2", True) in [(finding.text, finding.good) for finding in findings]


def test_both_packages_overwrite_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = backends(monkeypatch, "numpy", "onnxruntime-gpu", "onnxruntime")

    assert findings[-1].good is False
    assert "overwrite each other" in findings[-1].text


@pytest.mark.parametrize(("hard", "good"), [(4095, False), (4096, True), (resource.RLIM_INFINITY, True)])
def test_open_files(monkeypatch: pytest.MonkeyPatch, hard: int, good: bool) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, hard))

    finding = of_machine("limits")
    assert finding.good is good
    assert ("LimitNOFILE" in finding.advice) is not good


@pytest.mark.parametrize(
    ("version", "good", "text"),
    [(7, True, "kept from the server's files and processes"), (2, None, "may send it signals"), (0, None, "is needed")],
)
def test_sandbox_finding_names_the_confinement_of_models(
    monkeypatch: pytest.MonkeyPatch, version: int, good: bool | None, text: str
) -> None:
    monkeypatch.setattr(landlock, "version", lambda: version)

    finding = of_machine("sandbox")
    assert finding.good is good
    assert text in finding.text


def filled(*, free: int, total: int, inodes: int = 1000, flag: int = 0) -> os.statvfs_result:
    """A disk with these many bytes."""
    return os.statvfs_result((1, 1, total, free, free, 1000, inodes, inodes, flag, 255))


GIB = 1 << 30


@pytest.mark.parametrize(
    ("found", "good"),
    [
        (filled(free=20 * GIB, total=100 * GIB), True),
        (filled(free=GIB, total=100 * GIB), False),
        (filled(free=100 << 20, total=GIB), False),
        (filled(free=20 * GIB, total=100 * GIB, inodes=5), False),
        pytest.param(filled(free=0, total=GIB, flag=os.ST_RDONLY), None, id="the root of the device image"),
        pytest.param(filled(free=100 << 20, total=GIB, flag=os.ST_RDONLY), False, id="made read-only after an error"),
    ],
)
def test_a_disk_that_is_nearly_full(found: os.statvfs_result, good: bool | None) -> None:
    assert disk("/var", found).good is good


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="needs a second file system")
def test_a_link_counts_for_the_disk_that_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to("/dev/shm")
    (finding,) = examine_disks([str(tmp_path / "models")])
    assert finding.text.startswith("/dev/shm: ")


def test_each_disk_is_listed_once_and_other_file_systems_are_not(tmp_path: Path) -> None:
    findings = list(examine_disks([str(tmp_path), str(tmp_path / "not" / "there"), "/proc/1"]))

    assert len(findings) == 1
    assert "GiB free" in findings[0].text
