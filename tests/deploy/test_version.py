"""Versions of builds: they rise with each commit, even where dates do not."""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path

import pytest

from deploy import version
from deploy.debian import __main__ as deb
from deploy.version import VersionError, identify


def git(folder: Path, *arguments: str, date: str = "2026-11-22T10:00:00Z") -> None:
    names = {f"GIT_{role}_{part}": "a" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    environ = {**os.environ, **names, **dates}
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, env=environ, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a clone with one commit."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "pyproject.toml").write_text('version = "0.1.0"\n')
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def commit(folder: Path, date: str = "2026-11-22T10:00:00Z") -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "x", date=date)


def rises(older: str, newer: str) -> bool:
    """Return whether dpkg would upgrade."""
    return subprocess.run(["dpkg", "--compare-versions", older, "lt", newer]).returncode == 0


def test_version_rises_with_every_commit_independent_of_dates(checkout: Path) -> None:
    versions = ["0.1.0-1+deb12"]  # of all packages before
    for turn in range(12):
        versions.append(f"{identify(checkout).version}-1+deb12")
        commit(checkout, f"2026-11-2{2 - turn // 4}T10:00:00Z")

    assert all(rises(older, newer) for older, newer in itertools.pairwise(versions)), versions
    assert rises(versions[-1], "0.2.0+git13.0000000-1+deb12")


def test_version_marks_modified_files(checkout: Path) -> None:
    clean = identify(checkout)
    (checkout / "new.py").touch()
    changed = identify(checkout).version
    commit(checkout)

    assert changed == f"{clean.version}.modified"
    assert clean.version.startswith("0.1.0+git1.")
    assert clean.epoch == 1795341600
    assert rises(changed, identify(checkout).version)


def test_shallow_clone_has_no_version(checkout: Path, tmp_path: Path) -> None:
    commit(checkout)
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{checkout}", "shallow")

    with pytest.raises(VersionError, match="git fetch --unshallow"):
        identify(tmp_path / "shallow")


def test_archive_needs_a_version_file(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = checkout / "archive"
    archive.mkdir()
    (archive / "pyproject.toml").write_text('version = "0.1.0"\n')
    os.utime(archive / "pyproject.toml", (1700000000, 1700000000))
    with pytest.raises(VersionError, match=r"no git checkout.*into the file VERSION, such as 0\.1\.0\+git484"):
        identify(archive)

    (archive / "VERSION").write_text("0.1.0+git500.abcdef0\n")
    assert identify(archive) == version.Build("0.1.0+git500.abcdef0", 1700000000)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "5")
    assert identify(archive).epoch == 5
    (archive / "VERSION").write_text("newest\n")
    with pytest.raises(VersionError, match="VERSION has 'newest', expected one like"):
        identify(archive)


def test_missing_git_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, checkout: Path) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(VersionError, match="git is not installed"):
        identify(checkout)


def test_package_without_a_version_is_not_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def unknown() -> None:
        raise VersionError("no version")

    monkeypatch.setattr("deploy.debian.package.identify", unknown)
    monkeypatch.setattr("shutil.which", lambda *args, **kwargs: "/usr/bin/python3")
    assert deb.main(["--release", "bookworm", "--arch", "amd64", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "deb: no version\n"
