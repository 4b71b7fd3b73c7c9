"""Real inputs of a conversion, and what is refused."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.convert.samples import read_samples
from edge_serve.errors import InvalidArgument


def config(max_batch: int = 8, **dims: list[int]) -> pb.ModelConfig:
    inputs = [pb.ModelInput(name=name, data_type=pb.TYPE_FP32, dims=sizes) for name, sizes in dims.items()]
    return pb.ModelConfig(max_batch_size=max_batch, input=inputs)


def saved(folder: Path, **arrays: Any) -> Path:
    path = folder / "inputs.npz"
    np.savez(path, **arrays)
    return path


def test_first_axis_counts_samples(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    batched = read_samples(saved(tmp_path, x=values), config(x=[4]), 32)
    assert [one["x"].shape for one in batched] == [(1, 4)] * 3
    assert (batched[2]["x"] == values[2]).all()

    plain = read_samples(saved(tmp_path, x=values), config(0, x=[-1]), 2)
    assert [one["x"].shape for one in plain] == [(4,)] * 2


def test_files_above_2_gib_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("zipfile.ZIP64_LIMIT", 50)  # the form that such files have
        path = saved(tmp_path, x=np.zeros((2, 4), np.float32))
    assert len(read_samples(path, config(x=[4]), 32)) == 2


def test_array_of_the_inputs_rank_is_one_sample(tmp_path: Path) -> None:
    (only,) = read_samples(saved(tmp_path, x=np.zeros(4, np.float32)), config(x=[4]), 32)
    assert only["x"].shape == (1, 4)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"y": np.zeros((1, 4), np.float32)}, "has 'y', expected the model's inputs 'x'"),
        ({"x": np.zeros((2, 4))}, r"'x' is float64 [2, 4], expected FP32 ['N', 4]"),
        ({"x": np.zeros((2, 5), np.float32)}, r"'x' is float32 [2, 5], expected FP32 ['N', 4]"),
        ({"x": np.zeros((0, 4), np.float32)}, "expected one or more of each"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, arrays: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        read_samples(saved(tmp_path, **arrays), config(x=[4]), 32)
    assert text in error.value.message


def test_unequal_numbers_of_samples_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, x=np.zeros((2, 4), np.float32), y=np.zeros((3, 4), np.float32))
    with pytest.raises(InvalidArgument, match="'x' 2, 'y' 3"):
        read_samples(path, config(x=[4], y=[4]), 32)


@pytest.mark.parametrize("content", [b"", b"not a file of NumPy", b"\x80\x04pickle", b"PK\x03\x04"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "inputs.npz"
    path.write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"is no \.npz file; write one array for each input"):
        read_samples(path, config(x=[4]), 32)


def test_a_missing_file_a_single_array_and_pickles_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="No such file"):
        read_samples(tmp_path / "none.npz", config(x=[4]), 32)
    np.save(tmp_path / "one.npy", np.zeros(4))
    with pytest.raises(InvalidArgument, match="single array"):
        read_samples(tmp_path / "one.npy", config(x=[4]), 32)
    with pytest.raises(InvalidArgument, match=r"can be read \(it has Python objects\)"):
        read_samples(saved(tmp_path, x=np.array([{}], object)), config(x=[4]), 32)


def test_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(InvalidArgument, match="is not a file"):
        read_samples(tmp_path / "pipe.npz", config(x=[4]), 32)


def test_members_that_are_no_arrays_or_too_large_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, x=np.zeros((1, 4), np.float32))
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("notes.txt", "no array")
    with pytest.raises(InvalidArgument, match=r"has 'notes\.txt', which is no array"):
        read_samples(path, config(x=[4]), 32)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 58,)})
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as file:
        file.writestr("x.npy", header.getvalue())
    with pytest.raises(InvalidArgument, match=r"no \.npz file that can be read"):
        read_samples(tmp_path / "huge.npz", config(x=[4]), 32)
