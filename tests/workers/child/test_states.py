"""workers/child/states.py: the first states of sequences."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_serve.backends.base import ModelSpec
from edge_serve.errors import InvalidArgument
from edge_serve.workers.child.states import states_of


def _spec(model: Path, data_file: str) -> ModelSpec:
    initial = {"data_type": "TYPE_INT32", "dims": ["1"], "name": "z", "data_file": data_file}
    state = {"input_name": "I", "output_name": "O", "data_type": "TYPE_INT32", "dims": [1], "initial_state": [initial]}
    config = {"name": "m", "max_batch_size": 0, "sequence_batching": {"state": [state]}}
    return ModelSpec("m", 1, model, model / "1", config)


@pytest.mark.parametrize("name", ["file", "/file", "../data/file"])
def test_a_data_file_may_lie_anywhere_in_the_directory_of_the_model(tmp_path: Path, name: str) -> None:
    for folder in ("initial_state", "data"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_bytes(folder[:4].encode())
    (state,) = states_of(_spec(tmp_path, name))

    assert bytes(state.first.data) == (b"data" if "data" in name else b"init")


@pytest.mark.parametrize("name", ["../../secret", "/../../secret", "link"])
def test_a_data_file_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(4))
    (tmp_path / "m" / "initial_state").mkdir(parents=True)
    (tmp_path / "m" / "initial_state" / "link").symlink_to(tmp_path / "secret")

    with pytest.raises(InvalidArgument, match="is outside the directory of the model"):
        states_of(_spec(tmp_path / "m", name))
