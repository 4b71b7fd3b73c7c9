"""What the doctor finds, on machines that tests make up."""

from __future__ import annotations

import resource
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge_serve import doctor
from edge_serve.config.server import parse_argv
from edge_serve.doctor import Finding
from edge_serve.workers import landlock


def found(findings: Iterator[Finding], topic: str) -> list[Finding]:
    return [finding for finding in findings if finding.topic == topic]


def test_a_line_has_mark_topic_text_and_advice() -> None:
    text, good = doctor.report(
        iter([Finding("a", "fine", True), Finding("b", "news", None, "read"), Finding("c", "bad", False, "do")])
    )

    assert text.splitlines() == [
        "ok  a            fine",
        "--  b            news",
        "                 -> read",
        "!!  c            bad",
        "                 -> do",
    ]
    assert not good


def test_news_is_not_bad() -> None:
    assert doctor.report(iter([Finding("b", "news")]))[1]


def test_nothing_that_needs_doing_is_without_advice() -> None:
    for finding in doctor.examine():
        assert finding.good is not False or finding.advice, finding


@pytest.mark.parametrize(
    ("version", "good"), [((3, 9), False), ((3, 10), True), ((3, 13), True), ((3, 14), False), ((4, 0), False)]
)
def test_the_version_of_python(monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], good: bool) -> None:
    monkeypatch.setattr(sys, "version_info", version)

    (finding,) = found(doctor.examine(ports=()), "python")

    assert (finding.good, finding.advice) == (good, "" if good else "use Python 3.10 to 3.13")


def installed(monkeypatch: pytest.MonkeyPatch, *distributions: str) -> list[Finding]:
    """What is said of backends on a machine with these distributions."""
    modules = {name.removesuffix("-gpu") for name in distributions}
    monkeypatch.setattr(doctor, "_version", lambda name: "1.2" if name in distributions else "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name in modules or None)
    return found(doctor.examine(ports=()), "backend")


def test_a_backend_that_is_missing_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = installed(monkeypatch, "numpy")

    assert [(finding.text, finding.good) for finding in findings[:2]] == [
        ("python: numpy 1.2", True),
        ("onnxruntime: not installed", None),
    ]
    assert findings[1].advice == "pip install 'edge-serve[onnx]'"


def test_either_package_brings_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = installed(monkeypatch, "numpy", "onnxruntime-gpu")

    assert ("onnxruntime: onnxruntime-gpu 1.2", True) in [(finding.text, finding.good) for finding in findings]


def test_both_packages_overwrite_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = installed(monkeypatch, "numpy", "onnxruntime-gpu", "onnxruntime")

    assert findings[-1].good is False
    assert "overwrite each other" in findings[-1].text


@pytest.mark.parametrize(("hard", "good"), [(4095, False), (4096, True), (resource.RLIM_INFINITY, True)])
def test_open_files(monkeypatch: pytest.MonkeyPatch, hard: int, good: bool) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, hard))

    (finding,) = found(doctor.examine(ports=()), "limits")

    assert finding.good is good
    assert ("LimitNOFILE" in finding.advice) is not good


def test_a_port_that_is_taken_is_told() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]

        (taken,) = found(doctor.examine(ports=(port,)), "port")
    (free,) = found(doctor.examine(ports=(port,)), "port")

    assert (taken.text, taken.good) == (f"{port}: Address already in use", False)
    assert (free.text, free.good) == (f"{port}: free", True)


def test_every_port_of_a_server_is_tried() -> None:
    config = parse_argv(["--model-repository=models"], {})
    ports = [finding.text.partition(":")[0] for finding in found(doctor.examine(), "port")]

    assert ports == [str(port) for port in (config.http_port, config.grpc_port, config.metrics_port)]


@pytest.mark.parametrize(("text", "name"), [("NVRM version: 555\nGCC\n", "NVRM version: 555"), ("", "")])
def test_a_gpu_is_named_by_its_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, name: str) -> None:
    driver = tmp_path / "version"
    driver.write_text(text)
    real: Callable[..., Path] = Path
    monkeypatch.setattr(doctor, "Path", lambda name: driver if name == "/proc/driver/nvidia/version" else real(name))

    (finding,) = found(doctor.examine(ports=()), "gpu")

    assert (finding.text, finding.good) == (name, True)


@pytest.mark.parametrize(
    ("version", "good", "text"),
    [(7, True, "kept from the server's files and processes"), (2, None, "may send it signals"), (0, None, "is needed")],
)
def test_it_says_from_what_models_are_kept(
    monkeypatch: pytest.MonkeyPatch, version: int, good: bool | None, text: str
) -> None:
    monkeypatch.setattr(landlock, "version", lambda: version)

    (finding,) = found(doctor.examine(), "sandbox")

    assert finding.good is good
    assert text in finding.text
