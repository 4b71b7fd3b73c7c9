"""The package's texts and the units of each release; the package itself is built and installed by tests/system."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.debian import __main__ as deb
from deploy.debian.package import SCRIPTS, control, debian_version
from deploy.debian.releases import MACHINES, RELEASES, target, this_release
from deploy.program import CHECKOUT
from deploy.version import Build
from edge_serve.config.settings.server import SETTINGS, parse_argv
from edge_serve.config.settings.table import variable_of

UNITS = "usr/lib/systemd/system"


def installed(root: Path, systemd: int, machine: str = "x86_64") -> Path:
    """Return the tree of units and configuration that `make install` makes."""
    arguments = [f"DESTDIR={root}", f"SYSTEMD={systemd}", f"MACHINE={machine}"]
    subprocess.run(["make", "--silent", "install-system", *arguments], cwd=CHECKOUT, check=True)
    return root


@pytest.mark.parametrize("name", RELEASES)
def test_systemd_of_each_release_knows_every_drop_in(name: str, tmp_path: Path) -> None:
    systemd = RELEASES[name].systemd
    root = installed(tmp_path, systemd)
    asked = [int(path.stem.rpartition("-")[2]) for path in (root / UNITS).glob("*.d/50-systemd-*.conf")]
    offered = [int(path.stem.rpartition("-")[2]) for path in (CHECKOUT / "systemd").glob("*.d/50-systemd-*.conf")]

    assert sorted(asked) == sorted(number for number in offered if number <= systemd)


def test_units_that_run_models_get_the_devices_of_their_processor(tmp_path: Path) -> None:
    """The service, and the builds of engines and trials of releases, which edge-ota starts."""
    pc, jetson = installed(tmp_path / "pc", 252), installed(tmp_path / "jetson", 249, "aarch64")

    for unit in ("edge-serve", "edge-ota-build@", "edge-ota-trial@"):
        found = [sorted(path.name for path in (root / UNITS / f"{unit}.service.d").glob("1*")) for root in (pc, jetson)]
        assert found == [["10-nvidia.conf"], ["10-nvidia.conf", "11-tegra.conf"]]


def test_the_service_stops_before_the_network_of_every_release(tmp_path: Path) -> None:
    """The image masks this drop-in, and others have it."""
    root = installed(tmp_path, 249)
    assert "After=network.target" in (root / UNITS / "edge-serve.service.d/20-network.conf").read_text().splitlines()


def test_reinstallation_keeps_the_configuration(tmp_path: Path) -> None:
    root = installed(tmp_path, 252)
    files = [root / "etc/edge-serve/edge-serve.conf", root / "etc/edge-serve/conf.d/device.conf"]
    for file in files:
        file.write_text("EDGE_SERVE_HTTP_PORT=9000\n")
    installed(tmp_path, 252)

    assert [file.read_text() for file in files] == ["EDGE_SERVE_HTTP_PORT=9000\n"] * 2


def test_package_has_no_conffiles(tmp_path: Path) -> None:
    """Without conffiles an upgrade asks no questions."""
    assert [path for path in (installed(tmp_path, 252) / "etc").rglob("*") if path.is_file()] == []


def test_only_root_reads_credentials(tmp_path: Path) -> None:
    assert (installed(tmp_path, 252) / "etc/edge-serve/credentials").stat().st_mode & 0o777 == 0o700


def test_control_file_depends_on_the_python_of_the_release() -> None:
    text = control("0.1.0+git484.1cac580-1+deb13", RELEASES["trixie"], "arm64", 1234)

    assert "Version: 0.1.0+git484.1cac580-1+deb13\n" in text
    assert "Architecture: arm64\n" in text
    assert "Depends: python3.13, libc6 (>= 2.41)" in text
    assert text.endswith("service.\n"), "dpkg wants a newline at the end"


def test_wheels_are_chosen_for_the_target_and_not_for_this_machine() -> None:
    arguments = target(RELEASES["jammy"], "arm64").wheels()

    assert "--python-version=3.10" in arguments
    assert "--platform=manylinux_2_35_aarch64" in arguments
    assert "--platform=manylinux_2_36_aarch64" not in arguments, "Ubuntu 22.04 has glibc 2.35"
    assert set(MACHINES.values()) == {"x86_64", "aarch64"}


def test_this_release_is_read_from_os_release(tmp_path: Path) -> None:
    file = tmp_path / "os-release"
    file.write_text('NAME="Debian GNU/Linux"\nVERSION_CODENAME=trixie\n')
    assert this_release(file) == "trixie"
    file.write_text("NAME=Other\nVERSION_CODENAME=whatever\n")
    assert this_release(file) is None


@pytest.mark.parametrize("name", SCRIPTS)
def test_maintainer_scripts_parse(name: str) -> None:
    subprocess.run(["dash" if shutil.which("dash") else "sh", "-n", CHECKOUT / "deploy/debian" / name], check=True)


def test_configuration_has_settings_of_the_server_only() -> None:
    text = (CHECKOUT / "systemd/edge-serve.conf").read_text()
    known = {variable_of(name) for name in SETTINGS}

    assert set(re.findall(r"\bEDGE_SERVE_\w+", text)) <= known


def test_configuration_and_its_examples_are_valid() -> None:
    lines = (CHECKOUT / "systemd/edge-serve.conf").read_text().splitlines()
    for pattern in (r"(EDGE_SERVE_\w+)=(.*)", r"#?(EDGE_SERVE_\w+)=(.+)"):
        given = {match[1]: match[2] for line in lines if (match := re.fullmatch(pattern, line))}
        config = parse_argv([], given)
        assert config.http_address == "::"
        assert config.grpc_address == "127.0.0.1"


def test_release_without_os_release_file_is_none(tmp_path: Path) -> None:
    assert this_release(tmp_path / "none") is None


def test_missing_dpkg_deb_or_folder_fails_before_the_build(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--release", "bookworm", "--arch", "amd64", "--out", str(tmp_path / "file" / "dist")]
    (tmp_path / "file").touch()
    monkeypatch.setattr(deb, "this_machine", lambda: target(RELEASES["bookworm"], "amd64"))
    monkeypatch.setattr("shutil.which", lambda program: None)
    assert deb.main(arguments) == 1
    assert "dpkg-deb is not installed" in capsys.readouterr().err
    monkeypatch.setattr("shutil.which", lambda program: f"/usr/bin/{program}")
    assert deb.main(arguments) == 1
    assert capsys.readouterr().err == f"deb: bookworm: cannot write '{tmp_path}/file/dist': Not a directory\n"


@pytest.mark.parametrize("arguments", [["--release", "jammy"], ["--release", "trixie", "--arch", "arm64"]])
def test_a_package_with_cuda_is_for_the_release_of_the_image(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deb.main(["--gpu", "--out", str(tmp_path / "out"), *arguments]) == 2
    assert capsys.readouterr().err == "deb: --gpu is for --release trixie --arch amd64 only\n"
    assert not (tmp_path / "out").exists()


def test_a_package_with_cuda_has_a_distinct_version() -> None:
    build = Build("0.1.0+git9.abc", 0)
    assert debian_version(build, RELEASES["trixie"], gpu="cuda12") == "0.1.0+git9.abc-1+deb13+cuda12"
    assert debian_version(build, RELEASES["trixie"]) == "0.1.0+git9.abc-1+deb13"


def run_script(root: Path, name: str, *arguments: str) -> list[str]:
    """Run a maintainer script below another root, under a systemd that serves without edge-ota; its commands."""
    (root / "run/systemd/system").mkdir(parents=True, exist_ok=True)
    active = "*is-active*edge-serve.service) echo activating ;; *is-active*edge-serve.socket) echo active ;;"
    shell = f'#!/bin/sh\necho "$@" >>{root}/log\ncase "$*" in {active} *is-active*) echo inactive; exit 3 ;; esac\n'
    (root / "systemctl").write_text(shell)
    (root / "systemctl").chmod(0o755)
    (root / "log").write_text("")
    text = (CHECKOUT / "deploy/debian" / name).read_text().replace("/run/", f"{root}/run/").replace("/opt/", f"{root}/")
    subprocess.run(["sh", "-c", text, name, *arguments], check=True, env={"PATH": f"{root}:/usr/bin:/bin"})
    return (root / "log").read_text().splitlines()


def test_removal_keeps_units_enabled_until_a_purge(tmp_path: Path) -> None:
    said = run_script(tmp_path, "prerm", "remove")
    assert any(line.startswith("stop ") for line in said)
    assert not any("disable" in line for line in said)
    purged = (CHECKOUT / "deploy/debian/postrm").read_text()
    units = [
        path.name for path in (CHECKOUT / "systemd").iterdir() if path.is_file() and "[Install]" in path.read_text()
    ]
    assert len(units) == 8
    assert all(f"/etc/systemd/system/*.wants/{unit}" in purged for unit in units)


@pytest.mark.parametrize("way", ["remove", "deconfigure"])
def test_units_run_again_when_dpkg_takes_a_removal_back(tmp_path: Path, way: str) -> None:
    run_script(tmp_path, "prerm", way)
    assert run_script(tmp_path, "postinst", f"abort-{way}") == ["start --no-block edge-serve.socket edge-serve.service"]
    assert run_script(tmp_path, "postinst", f"abort-{way}") == []


def test_an_installation_after_a_removal_starts_no_unit(tmp_path: Path) -> None:
    run_script(tmp_path, "prerm", "remove")
    run_script(tmp_path, "postrm", "remove")
    assert run_script(tmp_path, "postinst", "abort-remove") == []
