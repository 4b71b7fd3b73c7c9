"""Registered regions: what may be registered, what is found there, and how long a file stays open."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path

import pytest

from edge_serve.errors import AlreadyExists, EdgeServeError, Internal, InvalidArgument, NotFound, Unavailable
from edge_serve.messages.infer import InferRequest, RequestedOutput
from edge_serve.messages.shared_memory import NamedRegions, RegionStatus
from edge_serve.messages.tensors import DataType, Shared, Unseen
from edge_serve.workers.memory import regions as regions_module
from edge_serve.workers.memory.pages import PAGE
from edge_serve.workers.memory.regions import Region, SharedMemoryRegions


@pytest.fixture
def regions(tmp_path: Path) -> SharedMemoryRegions:
    """Over a directory with a file `k` of two pages."""
    (tmp_path / "k").write_bytes(bytes(8192))
    return SharedMemoryRegions(str(tmp_path))


def test_a_region_is_found_in_its_file(regions: SharedMemoryRegions) -> None:
    regions.register("r", "//k", 4096, 4096)

    place = regions.find("r", 96, 4000, "OUT")

    assert isinstance(place.region, Region)
    assert (place.offset, place.size, place.label) == (4192, 4000, "OUT")
    assert os.fstat(place.region.fd).st_size == 8192
    assert regions.status("") == regions.status("r") == [RegionStatus("r", "//k", 4096, 4096)]


@pytest.mark.parametrize(
    ("key", "offset", "size", "error", "text"),
    [
        ("k", 0, 8193, InvalidArgument, "failed to register shared memory region 'r': invalid args"),
        ("k", 8192, 1, InvalidArgument, "failed to register shared memory region 'r': invalid args"),
        ("k", 0, 0, InvalidArgument,
         "failed to register shared memory region 'r': unable to process address spaceInvalid argument"),
        ("k", 64, 64, InvalidArgument,
         "failed to register shared memory region 'r': unable to process address spaceInvalid argument"),
        ("", 0, 1, Internal, "Unable to open shared memory region: ''"),
        ("//", 0, 1, InvalidArgument, "cannot register shared memory region 'r' - invalid shm key '//'"),
        ("/triton_python_backend_shm_region_1", 0, 1, InvalidArgument,
         "cannot register shared memory region 'r' with key '/triton_python_backend_shm_region_1' as the key contains "
         "the reserved prefix 'triton_python_backend_shm_region_'"),
        ("none", 0, 1, Internal, "Unable to open shared memory region: 'none'"),
        ("/sub/k", 0, 1, Internal, "Unable to open shared memory region: '/sub/k'"),
        ("../k", 0, 1, Internal, "Unable to open shared memory region: '../k'"),
        ("..", 0, 1, Internal, "Unable to open shared memory region: '..'"),
        ("sub", 0, 1, Internal, "Unable to open shared memory region: 'sub'"),
        ("link", 0, 1, Internal, "Unable to open shared memory region: 'link'"),
        ("pipe", 0, 1, Internal, "Unable to open shared memory region: 'pipe'"),
        ("k\0", 0, 1, Internal, "Unable to open shared memory region: 'k\0'"),
        ("k" * 300, 0, 1, Internal, f"Unable to open shared memory region: '{'k' * 300}'"),
    ],
)  # fmt: skip
def test_regions_that_cannot_be_registered(
    regions: SharedMemoryRegions,
    tmp_path: Path,
    key: str,
    offset: int,
    size: int,
    error: type[EdgeServeError],
    text: str,
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "k").write_bytes(bytes(64))
    (tmp_path / "link").symlink_to("k")
    os.mkfifo(tmp_path / "pipe")
    before = len(os.listdir("/proc/self/fd"))

    with pytest.raises(error) as refusal:
        regions.register("r", key, offset, size)

    assert refusal.value.message == text
    assert regions.status("") == []
    del refusal
    assert len(os.listdir("/proc/self/fd")) <= before  # tests before this one may leave some to be closed


@pytest.mark.parametrize(("offset", "size"), [(0, 1 << 44), ((1 << 44) - PAGE, PAGE), (1 << 44, 64), (2 << 44, 64)])
def test_a_region_whose_offsets_would_name_another_one_is_refused(offset: int, size: int) -> None:
    with tempfile.TemporaryDirectory(prefix="edge-serve-test-", dir="/dev/shm") as memory:
        file = Path(memory, "k")
        file.touch()
        os.truncate(file, (2 << 44) + PAGE)  # it is sparse: a client needs no memory for it
        regions = SharedMemoryRegions(memory)

        with pytest.raises(InvalidArgument) as refusal:
            regions.register("r", "k", offset, size)

        assert refusal.value.message == (
            f"failed to register shared memory region 'r': invalid args; it ends at byte {offset + size}, expected at "
            "most 17592186044415"
        )
        regions.register("r", "k", (1 << 44) - PAGE, PAGE - 1)
        assert regions.find("r", PAGE - 2, 1).offset == (1 << 44) - 2


def test_a_region_has_a_name(regions: SharedMemoryRegions) -> None:
    with pytest.raises(Internal, match="Unable to open shared memory region: ''"):
        regions.register("", "", 0, 0)
    with pytest.raises(InvalidArgument, match="'region name' is necessary to register system shared memory region"):
        regions.register("", "k", 0, 64)


def test_a_name_is_taken_once_and_may_be_taken_again(regions: SharedMemoryRegions) -> None:
    regions.register("r", "k", 0, 64)
    with pytest.raises(AlreadyExists, match="shared memory region 'r' already in manager"):
        regions.register("r", "none", 0, 64)
    regions.register("s", "k", 0, 64)  # Triton 2.51 cannot register the same object twice
    regions.unregister("r")
    regions.unregister("r")
    regions.register("r", "k", 4096, 64)
    regions.unregister("")
    with pytest.raises(NotFound, match="Unable to find system shared memory region: 's'"):
        regions.status("s")


def test_there_may_not_be_too_many(regions: SharedMemoryRegions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions_module, "MOST_REGIONS", 2)
    regions.register("a", "k", 0, 64)
    regions.register("b", "k", 0, 64)
    with pytest.raises(Unavailable, match="2 are registered, at most 2 can be; unregister"):
        regions.register("c", "k", 0, 64)


@pytest.mark.parametrize(
    ("offset", "size", "text"),
    [
        (64, 0, "Invalid offset for shared memory region: 'r'"),
        (2**64 - 1, 0, "Invalid offset for shared memory region: 'r'"),
        (0, 0, "Invalid offset + byte size for shared memory region: 'r'"),
        (0, 65, "Invalid offset + byte size for shared memory region: 'r'"),
        (60, 5, "Invalid offset + byte size for shared memory region: 'r'"),
        (1, 2**64 - 1, "Integer overflow detected: byte_size (18446744073709551615) + offset (1) exceeds maximum "
                       "value (18446744073709551615) for region 'r'"),
    ],
)  # fmt: skip
def test_invalid_parts(regions: SharedMemoryRegions, offset: int, size: int, text: str) -> None:
    regions.register("r", "k", 0, 64)
    with pytest.raises(InvalidArgument) as refusal:
        regions.find("r", offset, size)
    assert refusal.value.message == text


def test_a_file_stays_open_until_the_last_request_ended(regions: SharedMemoryRegions) -> None:
    regions.register("r", "k", 0, 64)
    place = regions.find("r", 0, 4)
    assert isinstance(place.region, Region)
    fd = place.region.fd
    request = InferRequest("m", inputs=[Shared("X", DataType.INT32, (1,), Unseen.buffer(4), -1, place.region, 0)])
    del place

    regions.unregister("r")
    with pytest.raises(NotFound, match="Unable to find shared memory region: 'r'"):
        regions.find("r", 0, 4)
    assert os.fstat(fd).st_size == 8192

    del request
    gc.collect()
    with pytest.raises(OSError):
        os.fstat(fd)


def test_names_are_looked_up_later(regions: SharedMemoryRegions) -> None:
    regions.register("r", "k", 4096, 64)
    unknown = NamedRegions()
    there, wanted = unknown.find("r", 4, 8), unknown.find("r", 16, 8, "Y")
    request = InferRequest("m", shared=True)
    request.inputs = [Shared("X", DataType.INT32, (2,), Unseen.buffer(there.size), -1, there.region, there.offset)]
    request.outputs = [RequestedOutput("Y", place=wanted), RequestedOutput("Z")]

    regions.resolve(request)

    (tensor,) = request.inputs
    assert isinstance(tensor, Shared)
    assert isinstance(tensor.region, Region)
    assert tensor.place == 4100
    assert request.outputs[0].place == regions.find("r", 16, 8, "Y")

    request.outputs[0].place = unknown.find("s", 0, 8)
    with pytest.raises(NotFound):
        regions.resolve(request)
