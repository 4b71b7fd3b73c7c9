"""Loads with their own configuration and files."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from edge_serve.errors import Internal, InvalidArgument
from edge_serve.models.repository.override import Override


def test_no_parameters_are_no_override() -> None:
    assert Override.parse("m", {}) is None


def test_files_become_a_directory_that_is_removed_with_its_last_user() -> None:
    override = Override.parse("m", {"config": "{}", "file:1/model.py": b"x = 1", "file:labels.txt": b"a\n"})
    assert override is not None

    kept = override.directory("m")

    assert kept is not None
    root = Path(kept.name)
    assert (root / "m" / "1" / "model.py").read_bytes() == b"x = 1"
    assert (root / "m" / "labels.txt").read_bytes() == b"a\n"
    assert kept.acquire() is kept
    asyncio.run(kept.release())
    assert root.exists()
    asyncio.run(kept.release())
    assert not root.exists()


def test_files_need_a_configuration() -> None:
    with pytest.raises(Internal, match="failed to load 'm', failed to poll from model repository"):
        Override.parse("m", {"file:1/model.py": b""})


@pytest.mark.parametrize("path", ["../x", "/../x", "1/../../x", "1/..", "", "/", "a\x00b", "caf\udce9"])
def test_files_stay_inside_the_model(path: str) -> None:
    with pytest.raises(Internal, match=r"failed to poll .*must stay inside the model directory"):
        Override.parse("m", {"config": "{}", f"file:{path}": b""})


def test_a_leading_slash_means_the_directory_of_the_model() -> None:
    override = Override.parse("m", {"config": "{}", "file:/1/model.py": b"x"})

    assert override is not None
    assert dict(override.files) == {"1/model.py": b"x"}


def test_a_path_may_go_up_inside_of_the_model() -> None:
    override = Override.parse("m", {"config": "{}", "file:1/../2/./model.py": b"x"})

    assert override is not None
    assert dict(override.files) == {"2/model.py": b"x"}


def test_unknown_parameters_are_named() -> None:
    with pytest.raises(InvalidArgument, match="unrecognized load parameter 'speed'"):
        Override.parse("m", {"speed": "fast"})


def test_files_lie_in_few_levels_of_directories() -> None:
    """Thousands of levels could be made, and not be removed again: that takes a stack frame for each."""
    with pytest.raises(InvalidArgument, match="found 65 levels of directories, expected at most 64"):
        Override.parse("m", {"config": "{}", f"file:{'d/' * 64}x": b""})
    assert Override.parse("m", {"config": "{}", f"file:{'d/' * 63}x": b""}) is not None
