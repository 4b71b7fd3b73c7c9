"""Golden tests that are written: the reader accepts each one, or none is written."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from edge_serve.convert.candidate import record
from edge_serve.convert.trial import Trial
from edge_serve.errors import InvalidArgument
from edge_serve.golden import reader, writer
from edge_serve.golden.reader import GoldenBudget, read_golden
from edge_serve.golden.writer import Recording, write_golden
from edge_serve.init.directory import ModelPlace
from edge_serve.messages.tensors import DataType, InferTensor


def recording(name: str, count: int = 16, strings: int = 1) -> Recording:
    output = InferTensor("Y", DataType.BYTES, (strings,), bytes(4 * strings))
    return Recording(name, {}, [InferTensor("X", DataType.INT8, (count,), bytes(count))], [[output]])


def names(model: Path) -> list[str]:
    """The samples of a model's golden test."""
    test = read_golden(model)
    assert test is not None
    return [sample.name for sample in test.samples]


LIMITS = [
    ({"MOST_BYTES": 40}, "60 bytes of tensors together, and the limit is 40"),
    ({"MOST_SAMPLES": 2}, "3 samples, and the limit is 2"),
    ({"MOST_STRINGS": 0}, "1 strings in a tensor, and the limit is 0"),
    ({"MOST_DOCUMENT_BYTES": 1500}, "bytes of golden.json, and the limit is 1500"),
]


@pytest.mark.parametrize(("limits", "text"), LIMITS)
def test_a_test_over_the_limits_of_the_reader_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Mapping[str, int], text: str
) -> None:
    for name, most in limits.items():
        monkeypatch.setattr(writer, name, most)
    with pytest.raises(InvalidArgument, match=text):
        write_golden(tmp_path, [recording(str(number)) for number in range(3)], GoldenBudget())
    assert not list(tmp_path.iterdir())


def test_a_test_that_does_not_fit_on_the_disk_leaves_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_golden(tmp_path, [recording("old")], GoldenBudget())

    def full(path: Path, blocks: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(writer, "write_durably", full)
    with pytest.raises(InvalidArgument, match="No space left on device; free some space"):
        write_golden(tmp_path, [recording("new")], GoldenBudget())
    assert os.listdir(tmp_path) == ["golden"]
    assert names(tmp_path) == ["old"]


def test_an_error_between_the_two_renames_takes_the_first_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_golden(tmp_path, [recording("old")], GoldenBudget())
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        if self.name == ".golden.new":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_golden(tmp_path, [recording("new")], GoldenBudget())
    assert os.listdir(tmp_path) == ["golden"]
    assert names(tmp_path) == ["old"]


@pytest.mark.parametrize("linked", [False, True])
def test_a_kill_between_the_two_renames_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    if linked:
        (tmp_path / "tests").mkdir()
        (model / "golden").symlink_to("../tests")
    write_golden(model, [recording("old")], GoldenBudget())
    target = (model / "golden").resolve()
    old = target.rename(target.with_name(f".{target.name}.old"))

    with pytest.raises(InvalidArgument, match=f"interrupted: rename {old.name} to {target.name}"):
        read_golden(model)
    monkeypatch.setattr(writer, "write_durably", lambda path, blocks: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_golden(model, [recording("new")], GoldenBudget())
    assert names(model) == ["old"]


def test_a_link_to_the_golden_test_stays_a_link(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (tmp_path / "tests").mkdir()
    (model / "golden").symlink_to("../tests")
    for name in ("first", "second", "third"):
        write_golden(model, [recording(name)], GoldenBudget())
        assert names(model) == [name]
    assert (model / "golden").is_symlink()
    assert os.listdir(model) == ["golden"]
    assert sorted(os.listdir(tmp_path)) == ["model", "tests"]


def test_all_recordings_that_fit_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recordings = [recording(f"sample-{number}", number, number + 1) for number in range(500)]
    monkeypatch.setattr(writer, "MOST_DOCUMENT_BYTES", 100_000)
    count, problem = writer.count_fitting(recordings)
    write_golden(tmp_path, recordings[:count], GoldenBudget())

    assert "bytes of golden.json" in problem
    size = (tmp_path / reader.DIRECTORY / reader.DOCUMENT).stat().st_size
    assert 95_000 < size <= 100_000
    test = read_golden(tmp_path)
    assert test is not None
    assert len(test.samples) == count


def test_a_conversion_records_as_many_samples_as_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = ModelPlace(tmp_path, "m", tmp_path)
    sample = {"X": np.zeros(10, np.float32)}
    trial = Trial([{"Y": np.zeros(5, np.float32)}] * 4, 1.0, 1.0)
    monkeypatch.setattr(writer, "MOST_BYTES", 150)

    recorded = record(place, [sample] * 4, trial, 0.1, 0.1)

    assert "to the first 2 of 4 samples (180 bytes of tensors together, and the limit is 150)" in recorded
    test = read_golden(tmp_path)
    assert test is not None
    assert len(test.samples) == 2
    monkeypatch.setattr(writer, "MOST_BYTES", 10)
    assert record(place, [sample] * 4, trial, 0.1, 0.1).startswith("without a golden test: the first sample does not")
