"""Files of a release, fetched into the store over links and from servers that fail."""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import random
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ota import files
from ota.documents.manifest import FileEntry
from ota.documents.names import blob_path
from ota.errors import FetchError, NoSpace, NotInRepository, Postponed, StoreError, Untrusted
from ota.fetch.chunks import pieces_of
from ota.fetch.directory import DirectorySource
from ota.fetch.limits import MOST_IN_A_ROW, MOST_RETRIES
from ota.layout import StateLayout
from tests.ota.clock import FakeClock
from tests.ota.faulty_server import FaultyServer

from .steps import blobs, entry_of, noise, repository, sha256, store_manifest, web

CHUNK = 300_000
WHOLE = noise(700_000, 1)
CHUNKED = noise(1_000_000, 2)
ENTRIES = {"whole": entry_of(WHOLE), "chunked": entry_of(CHUNKED, CHUNK)}
KINDS = pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with FaultyServer(repository((WHOLE, 0), (CHUNKED, CHUNK), (b"", 0))) as server:
        yield server


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def check(state: Path, *entries: FileEntry) -> None:
    """The blobs are there, right, and readable by the group; nothing else is left."""
    for entry in entries:
        path = StateLayout(state).blob(entry.sha256)
        assert sha256(path.read_bytes()) == entry.sha256
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(StateLayout(state).partial.iterdir()) == []


def begun(state: Path, entry: FileEntry, data: bytes) -> None:
    """An earlier run left a partial file."""
    partial = StateLayout(state).partial / entry.sha256
    partial.parent.mkdir(parents=True)
    partial.write_bytes(data)
    partial.chmod(0o640)


def data_of(entry: FileEntry) -> bytes:
    return WHOLE if entry.size == len(WHOLE) else CHUNKED


def ranges(server: FaultyServer) -> list[str]:
    return [one.headers["Range"] for one in server.requests if "Range" in one.headers]


def test_files_come_each_once(server: FaultyServer, state: Path) -> None:
    entries = [*ENTRIES.values(), entry_of(b""), entry_of(WHOLE, path="other/name.onnx")]
    fetcher = blobs(state, [web(server.url)])
    assert fetcher.missing(entries) == len(WHOLE) + len(CHUNKED)
    fetcher.fetch(entries)

    check(state, *entries)
    assert len(server.requests) == 1 + len(pieces_of(ENTRIES["chunked"]))  # the empty file needs none
    assert server.sent == len(WHOLE) + len(CHUNKED)
    assert fetcher.missing(entries) == 0
    blobs(state, [web(server.url)]).fetch(entries)
    assert server.sent == len(WHOLE) + len(CHUNKED)


@KINDS
@pytest.mark.fault("N1")
@pytest.mark.parametrize("cut", [0, 1, 200_000, 299_999, 300_000])
def test_a_link_that_breaks_costs_no_byte_twice(server: FaultyServer, state: Path, entry: FileEntry, cut: int) -> None:
    server.fault(cut_at=cut, times=2)
    blobs(state, [web(server.url)]).fetch([entry])

    check(state, entry)
    assert server.sent == entry.size


@KINDS
@pytest.mark.fault("N1")
def test_the_next_run_resumes(server: FaultyServer, state: Path, entry: FileEntry) -> None:
    begun(state, entry, data_of(entry)[:450_000])
    assert blobs(state, [web(server.url)]).missing([entry]) == entry.size - 450_000
    blobs(state, [web(server.url)]).fetch([entry])

    check(state, entry)
    assert server.sent == entry.size - 450_000
    assert ranges(server) == ["bytes=150000-" if entry.chunks else "bytes=450000-"]


@KINDS
@pytest.mark.fault("N2")
def test_a_partial_file_of_the_full_length_is_only_checked(server: FaultyServer, state: Path, entry: FileEntry) -> None:
    begun(state, entry, data_of(entry))
    blobs(state, [web(server.url)]).fetch([entry])

    check(state, entry)
    assert server.requests == []


@KINDS
@pytest.mark.fault("N2")
@pytest.mark.parametrize(
    "fault",
    [
        {"no_range": True},
        {"content_range": "bytes 0-9/10"},
        {"status": 416, "times": 1},
        {"headers": {"ETag": '"other"'}},
    ],
)
def test_a_server_that_does_not_resume_starts_over(
    server: FaultyServer, state: Path, entry: FileEntry, fault: dict[str, object]
) -> None:
    begun(state, entry, data_of(entry)[:450_000])
    server.fault(**fault)
    blobs(state, [web(server.url)]).fetch([entry])

    check(state, entry)
    assert len(server.requests) <= len(pieces_of(entry)) + 1


@KINDS
@pytest.mark.fault("N2")
def test_garbage_after_a_power_cut_is_found_and_fetched_again(
    server: FaultyServer, state: Path, entry: FileEntry
) -> None:
    data = bytearray(data_of(entry)[:650_000])
    data[310_000:320_000] = bytes(10_000)
    begun(state, entry, bytes(data))
    blobs(state, [web(server.url)]).fetch([entry])

    check(state, entry)
    wasted = CHUNK if entry.chunks else entry.size
    assert server.sent == entry.size - 650_000 + wasted


@KINDS
def test_a_partial_file_that_is_too_long_starts_over(server: FaultyServer, state: Path, entry: FileEntry) -> None:
    begun(state, entry, data_of(entry) + b"more")
    blobs(state, [web(server.url)]).fetch([entry])

    check(state, entry)


@KINDS
@pytest.mark.fault("N9")
def test_one_flipped_byte_is_refused(server: FaultyServer, state: Path, entry: FileEntry) -> None:
    server.fault(flip_at=250_000, times=1)
    with pytest.raises(Untrusted, match="delivered a file with the SHA-256") as caught:
        blobs(state, [web(server.url)]).fetch([entry])
    assert server.url in caught.value.message
    assert not StateLayout(state).blob(entry.sha256).exists()

    blobs(state, [web(server.url)]).fetch([entry])
    check(state, entry)


@KINDS
@pytest.mark.fault("N9")
def test_a_server_that_always_flips_is_found_out_after_a_torn_partial_file(
    server: FaultyServer, state: Path, entry: FileEntry
) -> None:
    begun(state, entry, bytes(1000))
    server.fault(flip_at=250_000)
    with pytest.raises(Untrusted):
        blobs(state, [web(server.url)]).fetch([entry])
    assert len(server.requests) == 2


@KINDS
@pytest.mark.fault("D6")
def test_a_blob_of_another_length_is_fetched_again(server: FaultyServer, state: Path, entry: FileEntry) -> None:
    path = StateLayout(state).blob(entry.sha256)
    path.parent.mkdir(parents=True)
    path.write_bytes(data_of(entry)[:-1])
    blobs(state, [web(server.url)]).fetch([entry])

    check(state, entry)


@KINDS
@pytest.mark.fault("N9")
@pytest.mark.fault("T6")
def test_the_next_mirror_repairs_what_the_first_one_flipped(
    server: FaultyServer, state: Path, entry: FileEntry
) -> None:
    with FaultyServer(repository((WHOLE, 0), (CHUNKED, CHUNK))) as liar:
        liar.fault(flip_at=250_000)
        blobs(state, [web(liar.url), web(server.url)]).fetch([entry])

        check(state, entry)
        assert len(liar.requests) == 1


@pytest.mark.fault("N9")
@pytest.mark.fault("T6")
def test_a_flip_before_a_cut_is_not_held_against_the_next_mirror(server: FaultyServer, state: Path) -> None:
    with FaultyServer(repository((WHOLE, 0))) as liar:
        liar.fault(flip_at=5, cut_at=200_000, times=1)
        liar.fault(status=503)
        blobs(state, [web(liar.url), web(server.url)]).fetch([ENTRIES["whole"]])

    check(state, ENTRIES["whole"])
    assert ranges(server) == ["bytes=200000-"]


@pytest.mark.fault("T6")
def test_a_mirror_that_lies_in_several_requests_is_found_out(server: FaultyServer, state: Path) -> None:
    server.fault(flip_at=5, cut_at=300_000, times=1)
    server.fault(cut_at=300_000)
    with pytest.raises(Untrusted, match="delivered a file with the SHA-256"):
        blobs(state, [web(server.url)]).fetch([ENTRIES["whole"]])
    assert len(server.requests) == 3


@pytest.mark.fault("T6")
def test_a_mirror_that_breaks_off_comes_after_the_others(server: FaultyServer, state: Path) -> None:
    """It delivered 300 KB in each of 100 requests, and then the run failed, without a request to the other mirror."""
    with FaultyServer(repository((WHOLE, 0), (CHUNKED, CHUNK))) as breaking:
        breaking.fault(cut_at=300_000)
        blobs(state, [web(breaking.url), web(server.url)]).fetch(list(ENTRIES.values()))

        for entry in ENTRIES.values():
            check(state, entry)
        assert len(breaking.requests) == 1
    assert server.requests[0].headers["Range"] == "bytes=300000-"


class SlowSource:
    """A mirror that sends `speed` bytes in each second."""

    def __init__(self, clock: FakeClock, speed: int) -> None:
        self.clock, self.speed = clock, speed
        self.sent = 0

    def get(self, path: str, most_bytes: int) -> bytes:
        raise NotInRepository(path)

    def stream(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        while offset < length:
            self.clock.sleep(1)
            block = WHOLE[offset : offset + self.speed]
            self.sent += len(block)
            offset += len(block)
            yield block


@pytest.mark.fault("T6")
def test_a_slow_mirror_is_left_if_there_is_another(server: FaultyServer, state: Path) -> None:
    clock = FakeClock()
    slow = SlowSource(clock, 300)
    blobs(state, [slow, web(server.url)], clock=clock, timeout=30.0).fetch([ENTRIES["whole"]])

    check(state, ENTRIES["whole"])
    assert slow.sent == 31 * 300


@pytest.mark.parametrize("count", [1, 2])
def test_a_slow_link_loses_no_try(state: Path, count: int) -> None:
    """Each mirror is as slow as the link, and the last one is kept."""
    clock = FakeClock()
    sources = [SlowSource(clock, 300) for _ in range(count)]
    blobs(state, sources, clock=clock, timeout=30.0).fetch([ENTRIES["whole"]])

    check(state, ENTRIES["whole"])
    assert clock.slept == [1.0] * math.ceil(len(WHOLE) / 300)


@pytest.mark.fault("D8")
def test_no_temporary_directory_is_used(server: FaultyServer, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/nowhere")
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    blobs(state, [web(server.url)]).fetch([ENTRIES["whole"]])

    check(state, ENTRIES["whole"])


@pytest.mark.fault("N3")
@pytest.mark.parametrize("status", [404, 410])
def test_a_missing_blob_is_final(server: FaultyServer, state: Path, status: int) -> None:
    server.fault(status=status)
    with pytest.raises(NotInRepository):
        blobs(state, [web(server.url)]).fetch([ENTRIES["whole"]])
    assert len(server.requests) == 1


@pytest.mark.fault("N3")
def test_a_server_that_is_always_busy_is_given_up(
    server: FaultyServer, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.5)
    server.fault(status=503)
    clock = FakeClock()
    with pytest.raises(FetchError, match="HTTP 503"):
        blobs(state, [web(server.url)], clock=clock).fetch([ENTRIES["whole"]])
    assert len(server.requests) == MOST_IN_A_ROW
    assert clock.slept == [0.75, 1.5, 3.0, 6.0]


@pytest.mark.fault("N3")
def test_retry_after_is_kept(server: FaultyServer, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.0)
    server.fault(status=429, headers={"Retry-After": "120"}, times=1)
    clock = FakeClock()
    blobs(state, [web(server.url)], clock=clock).fetch([ENTRIES["whole"]])

    assert clock.slept == [120.0]


@pytest.mark.fault("N3")
def test_a_link_that_always_breaks_ends_the_run_and_not_the_download(server: FaultyServer, state: Path) -> None:
    data = noise(4000, 3)
    server.files.update(repository((data, 0)))
    server.fault(cut_at=1)
    entry = entry_of(data)
    with pytest.raises(FetchError, match="the connection ended after 1 of"):
        blobs(state, [web(server.url)]).fetch([entry])
    assert len(server.requests) == MOST_IN_A_ROW <= MOST_RETRIES

    assert (StateLayout(state).partial / entry.sha256).read_bytes() == data[:MOST_IN_A_ROW]


@pytest.mark.fault("N1")
def test_a_link_that_breaks_often_gets_there(server: FaultyServer, state: Path) -> None:
    server.fault(cut_every=20_000)
    blobs(state, [web(server.url)]).fetch([ENTRIES["whole"]])

    check(state, ENTRIES["whole"])
    assert len(server.requests) == 35


@pytest.mark.fault("N5")
def test_a_captive_portal_leaves_what_is_there(server: FaultyServer, state: Path) -> None:
    begun(state, ENTRIES["whole"], WHOLE[:100_000])
    server.fault(status=200, body=b"<html>log in</html>", headers={"Content-Type": "text/html"}, times=1)
    with pytest.raises(FetchError, match="captive portal"):
        blobs(state, [web(server.url)]).fetch([ENTRIES["whole"]])
    blobs(state, [web(server.url)]).fetch([ENTRIES["whole"]])

    check(state, ENTRIES["whole"])
    assert server.sent < len(WHOLE)


@pytest.mark.fault("T2")
def test_endless_data_does_not_fill_the_disk(server: FaultyServer, state: Path) -> None:
    server.fault(endless=True)
    with pytest.raises(FetchError, match="sends more than 700000 bytes"):
        blobs(state, [web(server.url)]).fetch([ENTRIES["whole"]])
    assert sum(path.stat().st_size for path in state.rglob("*") if path.is_file()) <= len(WHOLE)


@pytest.mark.fault("N10")
def test_a_server_that_publishes_during_the_download(server: FaultyServer, state: Path) -> None:
    old, new = noise(500_000, 4), noise(500_000, 5)
    entry = entry_of(old)
    server.files[blob_path(entry.sha256)] = old
    server.fault(cut_at=200_000, times=1)
    fetcher = blobs(state, [web(server.url)])
    server.fault(headers={"ETag": '"new"'})
    server.files[blob_path(entry.sha256)] = old[:200_000] + new[200_000:]  # a publisher that is not atomic
    with pytest.raises(Untrusted):
        fetcher.fetch([entry])
    server.faults.clear()
    server.files[blob_path(entry.sha256)] = old
    blobs(state, [web(server.url)]).fetch([entry])
    check(state, entry)


class TestChunksThatAreThere:
    """Chunks of an older release are copied and not fetched."""

    @pytest.fixture
    def old(self, state: Path) -> Path:
        """The store has release 16, with all chunks but the second one."""
        data = noise(CHUNK, 7) + CHUNKED[:CHUNK] + CHUNKED[2 * CHUNK :]
        store_manifest(state, entry_of(data, CHUNK, path="16/model.onnx"))
        path = StateLayout(state).blob(sha256(data))
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        return path

    def test_only_the_others_are_fetched(self, server: FaultyServer, state: Path, old: Path) -> None:
        fetcher = blobs(state, [web(server.url)])
        assert fetcher.missing([ENTRIES["chunked"]]) == CHUNK
        fetcher.fetch([ENTRIES["chunked"]])

        check(state, ENTRIES["chunked"])
        assert server.sent == CHUNK

    @pytest.mark.fault("D6")
    def test_a_copy_that_has_rotted_is_fetched(self, server: FaultyServer, state: Path, old: Path) -> None:
        with old.open("r+b") as file:
            file.seek(CHUNK + 7)
            file.write(b"rot")
        blobs(state, [web(server.url)]).fetch([ENTRIES["chunked"]])

        check(state, ENTRIES["chunked"])
        assert server.sent == 2 * CHUNK

    def test_a_file_that_is_short(self, server: FaultyServer, state: Path, old: Path) -> None:
        os.truncate(old, CHUNK + 10)
        blobs(state, [web(server.url)]).fetch([ENTRIES["chunked"]])

        check(state, ENTRIES["chunked"])
        assert server.sent == len(CHUNKED)

    @pytest.mark.parametrize("damage", ["blob is gone", "manifest is gone", "manifest is torn"])
    def test_chunks_that_are_not_known_are_fetched(
        self, server: FaultyServer, state: Path, old: Path, damage: str
    ) -> None:
        manifest = StateLayout(state).manifest("det", 16)
        if damage == "manifest is torn":
            manifest.write_bytes(manifest.read_bytes()[:100])
        else:
            (old if damage == "blob is gone" else manifest).unlink()
        blobs(state, [web(server.url)]).fetch([ENTRIES["chunked"]])

        check(state, ENTRIES["chunked"])
        assert server.sent == len(CHUNKED)

    def test_a_chunk_that_repeats_is_fetched_once(self, server: FaultyServer, state: Path) -> None:
        data = bytes(3 * CHUNK) + b"end"
        server.files.update(repository((data, CHUNK)))
        blobs(state, [web(server.url)]).fetch([entry_of(data, CHUNK)])

        check(state, entry_of(data, CHUNK))
        assert server.sent == CHUNK + 3


def test_chunks_that_do_not_make_up_their_file(server: FaultyServer, state: Path) -> None:
    entry = FileEntry("1/model.onnx", sha256(b"else"), len(CHUNKED), CHUNK, ENTRIES["chunked"].chunks)
    with pytest.raises(Untrusted, match="do not make up the file of its manifest: publish a new release"):
        blobs(state, [web(server.url)]).fetch([entry])
    assert not StateLayout(state).blob(entry.sha256).exists()


@pytest.mark.fault("D6")
def test_a_disk_that_returns_other_bytes(server: FaultyServer, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, count, offset: bytes(len(real(descriptor, count, offset))))
    with pytest.raises(StoreError, match="the disk returns other bytes than were written"):
        blobs(state, [web(server.url)]).fetch([ENTRIES["whole"]])


@pytest.fixture
def stick(tmp_path: Path) -> Path:
    folder = tmp_path / "stick"
    (folder / "metadata").mkdir(parents=True)
    for path, data in repository((WHOLE, 0), (CHUNKED, CHUNK)).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        assert isinstance(data, bytes)
        (folder / path).write_bytes(data)
    return folder


@KINDS
@pytest.mark.fault("D1")
@pytest.mark.fault("D2")
@pytest.mark.fault("D4")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_disk_that_fails_at_any_operation(
    stick: Path, state: Path, monkeypatch: pytest.MonkeyPatch, entry: FileEntry, number: int
) -> None:
    """A later run completes what came, wherever the disk fails."""
    source = DirectorySource(stick)
    state.mkdir()
    operations: list[files.DiskOperation] = []
    monkeypatch.setattr(files, "point", operations.append)
    blobs(state / "first", [source]).fetch([entry])
    assert {one.kind for one in operations} == {"create", "write", "fsync", "rename", "mkdir"}

    for nth in range(len(operations)):
        countdown = itertools.count(-nth)

        def fail(operation: files.DiskOperation, countdown: Iterator[int] = countdown) -> None:
            if next(countdown) == 0:
                raise OSError(number, os.strerror(number), operation.path)

        monkeypatch.setattr(files, "point", fail)
        with pytest.raises(NoSpace if number in (errno.ENOSPC, errno.EDQUOT) else StoreError):
            blobs(state / str(nth), [source]).fetch([entry])
        blobs(state / str(nth), [source]).fetch([entry])
        check(state / str(nth), entry)
    source.close()


def test_a_partial_file_that_is_a_link_is_not_followed(server: FaultyServer, state: Path, tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"precious")
    (state / "partial").mkdir(parents=True)
    (state / "partial" / ENTRIES["whole"].sha256).symlink_to(tmp_path / "target")
    with pytest.raises(StoreError):
        blobs(state, [web(server.url)]).fetch([ENTRIES["whole"]])
    assert (tmp_path / "target").read_bytes() == b"precious"


@pytest.mark.fault("X1")
def test_a_stick_that_is_pulled_leaves_a_part_and_another_stick_completes_it(
    state: Path, stick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pread
    reads: list[int] = []

    def pread(descriptor: int, count: int, offset: int) -> bytes:
        if "stick" in os.readlink(f"/proc/self/fd/{descriptor}"):
            reads.append(count)
            if len(reads) > 3:
                raise OSError(errno.EIO, "Input/output error")
        return real(descriptor, count, offset)

    monkeypatch.setattr(os, "pread", pread)
    with DirectorySource(stick) as source, pytest.raises(FetchError, match="pulled out"):
        blobs(state, [source]).fetch([ENTRIES["chunked"]])
    assert (state / "partial" / ENTRIES["chunked"].sha256).stat().st_size > CHUNK
    monkeypatch.undo()
    with DirectorySource(stick) as source:
        blobs(state, [source]).fetch([ENTRIES["chunked"]])
    check(state, ENTRIES["chunked"])


class TestLimits:
    """Rate, hours, metered links, and the length of a run."""

    def test_the_rate_is_kept(self, server: FaultyServer, state: Path) -> None:
        clock = FakeClock()
        blobs(state, [web(server.url)], clock=clock, rate_limit=100_000).fetch([ENTRIES["whole"]])

        assert 6.5 <= sum(clock.slept) <= 7.0

    def test_a_metered_link_waits_for_the_operator(self, server: FaultyServer, state: Path) -> None:
        with pytest.raises(Postponed, match="the link is metered"):
            blobs(state, [web(server.url)], metered=True).fetch([ENTRIES["whole"]])
        assert server.requests == []
        blobs(state, [web(server.url)], metered=True, apply=True).fetch([ENTRIES["whole"]])
        check(state, ENTRIES["whole"])

    def test_the_hours_end_during_a_download(
        self, server: FaultyServer, state: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TZ", "UTC")
        clock = FakeClock(1_700_000_000.0)  # 22:13:20 UTC
        limits = {"clock": clock, "rate_limit": 10_000, "download_hours": "21:00-22:14"}
        with pytest.raises(Postponed, match=r"downloads wait for their hours .21:00-22:14 local time"):
            blobs(state, [web(server.url)], **limits).fetch([ENTRIES["whole"]])  # type: ignore[arg-type]
        there = (state / "partial" / ENTRIES["whole"].sha256).stat().st_size
        assert 256 * 1024 <= there < len(WHOLE)
        clock.seconds += 86_400 - 3000
        blobs(state, [web(server.url)], **limits | {"rate_limit": 0}).fetch([ENTRIES["whole"]])  # type: ignore[arg-type]
        check(state, ENTRIES["whole"])

    def test_a_run_has_an_end(self, server: FaultyServer, state: Path) -> None:
        with pytest.raises(Postponed, match=r"fetched for 0.1 minutes \(MOST_MINUTES\): the next run resumes"):
            blobs(state, [web(server.url)], rate_limit=50_000, most_minutes=0.1).fetch([ENTRIES["whole"]])

    def test_a_run_without_an_end(self, server: FaultyServer, state: Path) -> None:
        clock = FakeClock()
        blobs(state, [web(server.url)], clock=clock, rate_limit=1000, most_minutes=0).fetch([ENTRIES["whole"]])
        assert sum(clock.slept) > 600

    def test_waiting_for_another_try_ends_with_the_run(self, server: FaultyServer, state: Path) -> None:
        server.fault(status=503, headers={"Retry-After": "60"})
        with pytest.raises(Postponed):
            blobs(state, [web(server.url)], most_minutes=1).fetch([ENTRIES["whole"]])


@KINDS
def test_progress_is_reported_at_most_twice_a_second(server: FaultyServer, state: Path, entry: FileEntry) -> None:
    clock = FakeClock()
    seen: list[tuple[float, int, int]] = []
    begun(state, entry, data_of(entry)[:100_000])
    server.fault(flip_at=50_000, no_range=True, times=1)
    fetcher = blobs(state, [web(server.url)], clock=clock, rate_limit=50_000)
    for _ in range(2):
        with contextlib.suppress(Untrusted):
            fetcher.fetch([entry], lambda done, total: seen.append((clock.seconds, done, total)))
    times = [one[0] for one in seen[:-1]]

    assert all(later - earlier >= 0.5 for earlier, later in itertools.pairwise(times))
    assert seen[-1][1:] == (entry.size, entry.size)
    assert all(0 <= done <= total == entry.size for _, done, total in seen)
