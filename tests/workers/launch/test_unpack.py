"""Archives: what is unpacked, what is refused, and what is kept."""

from __future__ import annotations

import fcntl
import io
import json
import os
import random
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from edge_serve.errors import EdgeServeError, InvalidArgument, Unavailable
from edge_serve.files import locked
from edge_serve.workers.launch import unpack
from edge_serve.workers.launch.unpack import extract, unpack_archive

Add = Callable[[tarfile.TarFile], None]


def file(name: str, content: bytes = b"x", mode: int = 0o644, mtime: int = 1_600_000_000) -> Add:
    def add(tar: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode, member.mtime = len(content), mode, mtime
        tar.addfile(member, io.BytesIO(content))

    return add


def other(name: str, kind: bytes, target: str = "") -> Add:
    def add(tar: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.mode = kind, target, 0o755
        tar.addfile(member)

    return add


def symlink(name: str, target: str) -> Add:
    return other(name, tarfile.SYMTYPE, target)


def archive(path: Path, *members: Add) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for add in members:
            add(tar)
    return path


def test_files_modes_times_and_inner_links_are_kept(tmp_path: Path) -> None:
    made = archive(
        tmp_path / "a.tar.gz",
        file("bin/python", b"#!", 0o4775),
        file("lib/module.py", b"1"),
        symlink("bin/python3", "python"),
        symlink("lib64", "lib"),
        file("lib64/late.py", b"2"),
        other("lib/hard.py", tarfile.LNKTYPE, "lib/module.py"),
        other("empty", tarfile.DIRTYPE),
    )

    extract(made, tmp_path / "out")

    out = tmp_path / "out"
    assert (out / "bin/python").stat().st_mode & 0o7777 == 0o755  # no setuid, not writable for others
    assert (out / "lib/module.py").stat().st_mode & 0o7777 == 0o644
    assert (out / "lib/module.py").stat().st_mtime == 1_600_000_000
    assert (out / "bin/python3").read_bytes() == b"#!"
    assert (out / "lib/late.py").read_bytes() == b"2"
    assert (out / "lib/hard.py").samefile(out / "lib/module.py")
    assert (out / "empty").is_dir()


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ([file("../evil")], "'../evil' lies outside"),
        ([file("/evil")], "'/evil' lies outside"),
        ([file("a/../../evil")], "lies outside"),
        ([symlink("a", "/etc")], "is a link to '/etc', outside"),
        ([symlink("a", "../out2")], "is a link to '../out2', outside"),
        (
            [symlink("./bin/python3.11", "/usr/bin/python3.11")],
            "outside of the archive; this is a virtual environment: name",
        ),
        ([symlink("d/a", "..")], ""),
        # each link alone looks as if it stayed inside; together they would lead out
        ([symlink("l", "nowhere/.."), symlink("nowhere", "."), symlink("l2", "l/.."), file("l2/evil")], "outside"),
        ([file("deep/x"), symlink("p", "deep"), symlink("p/up", "../..")], "outside"),
        ([other("h", tarfile.LNKTYPE, "/etc/passwd")], "is no file of the archive"),
        ([other("h", tarfile.LNKTYPE, "missing")], "is no file of the archive"),
        ([other("pipe", tarfile.FIFOTYPE)], "is neither a file"),
        ([other("disk", tarfile.BLKTYPE)], "is neither a file"),
        ([file("d/x"), file("d")], "has the name of a directory"),
    ],
)
def test_nothing_leaves_the_directory(tmp_path: Path, members: list[Add], text: str) -> None:
    made = archive(tmp_path / "a.tar.gz", *members)
    (tmp_path / "cage").mkdir()

    if text:
        with pytest.raises(InvalidArgument, match=text):
            extract(made, tmp_path / "cage" / "out")
    else:
        extract(made, tmp_path / "cage" / "out")

    assert {path.name for path in tmp_path.iterdir()} == {"a.tar.gz", "cage"}
    assert [path.name for path in (tmp_path / "cage").iterdir()] == ["out"]


def test_a_later_member_replaces_a_link_instead_of_writing_through_it(tmp_path: Path) -> None:
    made = archive(tmp_path / "a.tar.gz", file("kept", b"kept"), symlink("a", "kept"), file("a", b"new"))

    extract(made, tmp_path / "out")

    assert (tmp_path / "out/kept").read_bytes() == b"kept"
    assert (tmp_path / "out/a").read_bytes() == b"new"
    assert not (tmp_path / "out/a").is_symlink()


@pytest.mark.parametrize("content", [b"", b"no archive at all", os.urandom(4096)])
def test_other_files_than_archives_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tar.gz").write_bytes(content)

    with pytest.raises(InvalidArgument, match=r"is not a whole tar archive .*: .*[^:]$"):
        unpack_archive(tmp_path / "a.tar.gz", tmp_path / "cache")

    assert not list((tmp_path / "cache").iterdir())


def test_a_cache_that_cannot_be_written_says_which_option_names_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = archive(tmp_path / "a.tar.gz", file("a", b"a"))
    (tmp_path / "home").touch()
    unpack.main([str(made), str(tmp_path / "home/cache")])
    unpack.main([str(tmp_path / "none"), str(tmp_path / "cache")])

    no_cache, no_archive = (json.loads(line)["error"] for line in capsys.readouterr().out.splitlines())
    assert no_cache == (
        f"'{made}' cannot be unpacked into '{tmp_path}/home/cache': '{tmp_path}/home/cache': Not a directory; name a "
        "directory that the server may write with --execution-env-directory"
    )
    assert no_archive == f"'{tmp_path}/none' cannot be read: No such file or directory"


def test_a_cut_archive_is_refused(tmp_path: Path) -> None:
    made = archive(tmp_path / "a.tar.gz", file("a", os.urandom(100_000)))
    made.write_bytes(made.read_bytes()[:50_000])

    with pytest.raises(EdgeServeError, match=r"a\.tar\.gz"):
        unpack_archive(made, tmp_path / "cache")

    assert not list((tmp_path / "cache").iterdir())


def damaged(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :]


@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w:bz2"])
def test_one_wrong_bit_of_a_compressed_archive_is_noticed(
    tmp_path: Path, mode: Literal["w:gz", "w:xz", "w:bz2"]
) -> None:
    """The bits that decompress to other bytes, which the checksums tell, and those that do not decompress."""
    made, words = io.BytesIO(), random.Random(0)
    with tarfile.open(fileobj=made, mode=mode) as tar:
        for name in ("a", "b"):
            file(name, b" ".join(words.choice([b"one", b"two", b"three"]) for _ in range(2000)))(tar)
    content = made.getvalue()
    path = tmp_path / "a.tar"
    for place in {*range(10, len(content), len(content) // 12), len(content) - 20}:
        path.write_bytes(damaged(content, place))
        with pytest.raises(InvalidArgument, match="is not a whole tar archive"):
            unpack_archive(path, tmp_path / "cache")
    assert not [entry for entry in (tmp_path / "cache").iterdir() if entry.is_dir()]


def test_a_plain_archive_without_its_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        file("a", bytes(1000))(tar)
        file("b", b"x" * 1000)(tar)
    whole = path.read_bytes()
    with tarfile.open(path) as tar:
        _, second = tar
    end = second.offset_data + 1024
    spoilt = {"cut between members": whole[: second.offset], "cut after the last": whole[:end]}
    spoilt |= {"one block of the end": whole[: end + 512], "another name": damaged(whole, second.offset)}

    for what, content in spoilt.items():
        path.write_bytes(content)
        with pytest.raises(InvalidArgument, match="is not a whole tar archive"):
            extract(path, tmp_path / what)

    path.write_bytes(whole[: end + 1024])  # without the zeros that fill up the last record
    extract(path, tmp_path / "out")


@pytest.mark.parametrize("mtime", ["1e300", "inf", "nan"])
def test_an_archive_with_an_impossible_time_is_refused(tmp_path: Path, mtime: str) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("a")
        member.pax_headers = {"mtime": mtime}
        tar.addfile(member)

    with pytest.raises(InvalidArgument, match="is not a whole tar archive"):
        extract(path, tmp_path / "out")


def test_limits_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = archive(tmp_path / "a.tar.gz", file("a", b"12345"), file("b", b"12345"))
    monkeypatch.setattr(unpack, "MOST_BYTES", 9)
    with pytest.raises(Unavailable, match="holds more than fits"):
        extract(made, tmp_path / "out")
    monkeypatch.setattr(unpack, "MOST_BYTES", 10)
    monkeypatch.setattr(unpack, "MOST_MEMBERS", 1)
    with pytest.raises(InvalidArgument, match="more than 1 members"):
        extract(made, tmp_path / "out2")


def test_equal_bytes_are_unpacked_once(tmp_path: Path) -> None:
    made = archive(tmp_path / "a.tar.gz", file("a"))
    copy = tmp_path / "b.tar.gz"
    copy.write_bytes(made.read_bytes())
    cache = tmp_path / "cache"

    first = unpack_archive(made, cache)
    (first / "mark").touch()

    assert unpack_archive(copy, cache) == first
    assert unpack_archive(made, cache) == first
    assert (first / "mark").exists()


def test_a_changed_archive_is_unpacked_again_and_the_old_one_removed(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    made = archive(tmp_path / "a.tar.gz", file("a", b"1"))
    first = unpack_archive(made, cache)
    (cache / "left-behind.part").mkdir()
    archive(made, file("a", b"2"))

    with locked(first, fcntl.LOCK_SH):
        second = unpack_archive(made, cache)
        assert first.exists(), "somebody uses it"
    assert (second / "a").read_bytes() == b"2"

    assert unpack_archive(made, cache) == second
    assert sorted(path.name for path in cache.iterdir()) == sorted([second.name, f"{second.name}.json"])


def test_an_archive_that_is_replaced_while_it_is_unpacked_is_stored_under_its_own_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (archive(tmp_path / f"{name}.tar.gz", file(name)) for name in ("old", "new"))
    made = tmp_path / "env.tar.gz"
    made.write_bytes(old.read_bytes())
    cache = tmp_path / "cache"

    def replaced(path: Path, target: Path) -> None:
        monkeypatch.undo()
        os.replace(new, made)
        extract(path, target)

    monkeypatch.setattr(unpack, "extract", replaced)
    first = unpack_archive(made, cache)
    assert (first / "new").exists()
    assert sorted(cache.iterdir()) == [first, first.with_suffix(".json")]
    with locked(first, fcntl.LOCK_SH):  # a worker runs in it
        made.write_bytes(old.read_bytes())
        assert (unpack_archive(made, cache) / "old").exists()


def test_an_unpacked_environment_is_evicted_after_its_archive_was_removed(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    gone = unpack_archive(archive(tmp_path / "a.tar.gz", file("a", b"1")), cache)
    (tmp_path / "a.tar.gz").unlink()

    unpack_archive(archive(tmp_path / "b.tar.gz", file("a", b"2")), cache)

    assert not gone.exists()


def test_an_unchanged_archive_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = archive(tmp_path / "a.tar.gz", file("a"))
    first = unpack_archive(made, tmp_path / "cache")
    monkeypatch.setattr(unpack, "_digest", lambda path: pytest.fail("it was read"))

    assert unpack_archive(made, tmp_path / "cache") == first


def test_a_known_archive_does_not_wait_for_another_that_is_unpacked(tmp_path: Path) -> None:
    cache, made = tmp_path / "cache", archive(tmp_path / "a.tar.gz", file("a"))
    first = unpack_archive(made, cache)
    found: list[Path] = []
    with locked(cache):
        asking = threading.Thread(target=lambda: found.append(unpack_archive(made, cache)), daemon=True)
        asking.start()
        asking.join(5)
        assert found == [first]


def test_two_servers_may_unpack_at_the_same_time(tmp_path: Path) -> None:
    made = archive(tmp_path / "a.tar.gz", file("a"))
    cache = tmp_path / "cache"
    children = []
    for _ in range(4):
        pid = os.fork()
        if not pid:
            status = 1
            try:
                status = 0 if (unpack_archive(made, cache) / "a").read_bytes() == b"x" else 1
            finally:
                os._exit(status)
        children.append(pid)

    end = time.monotonic() + 30
    while children and time.monotonic() < end:
        pid, status = os.waitpid(children[0], 0)
        assert status == 0
        children.remove(pid)
    assert not children
