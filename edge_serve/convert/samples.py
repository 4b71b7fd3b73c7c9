"""Real inputs, from a file that `numpy.savez` wrote: an array for each input, with the samples along the first axis."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.errors import InvalidArgument
from edge_serve.messages.tensors import BY_CONFIG_NAME, Array

#: how a user writes the file
HOW = "write one array for each input with numpy.savez('inputs.npz', x=array), samples along the first axis"
#: the first bytes of an .npy file
_ARRAY = b"\x93NUMPY"

Sample = dict[str, Array]


def read_samples(path: Path, config: pb.ModelConfig, most: int) -> list[Sample]:
    """Return the requests for a model: `most` at most, each with one row where the model has batches.

    Raises:
        InvalidArgument: the file cannot be read, or its arrays do not fit the model's inputs.
    """
    arrays = _read(path)
    wanted = {spec.name: spec for spec in config.input}
    if arrays.keys() != wanted.keys():
        raise InvalidArgument(
            f"--inputs '{path}' has {_names(arrays)}, expected the model's inputs {_names(wanted)}; {HOW}"
        )
    batching = config.max_batch_size > 0
    rows = {name: _rows(path, arrays[name], spec) for name, spec in wanted.items()}
    counts = {name: len(array) for name, array in rows.items()}
    if len(set(counts.values())) > 1 or not min(counts.values(), default=0):
        found = ", ".join(f"'{name}' {count}" for name, count in counts.items())
        raise InvalidArgument(f"--inputs '{path}' has samples of {found or 'nothing'}, expected one or more of each")
    count = min(most, *counts.values())
    return [{name: array[i : i + 1] if batching else array[i] for name, array in rows.items()} for i in range(count)]


def _read(path: Path) -> dict[str, Array]:
    if path.exists() and not path.is_file():
        raise InvalidArgument(f"--inputs '{path}' is not a file; {HOW}")
    try:
        with path.open("rb") as stream:
            if stream.read(len(_ARRAY)) == _ARRAY:
                raise InvalidArgument(f"--inputs '{path}' is a single array, expected an .npz file; {HOW}")
            if not zipfile.is_zipfile(stream):  # numpy would take it for a pickle, and advise to load that
                raise InvalidArgument(f"--inputs '{path}' is no .npz file; {HOW}")
            stream.seek(0)  # is_zipfile moves it, and numpy looks at the first bytes
            file = np.load(stream, allow_pickle=False)
            arrays = {name: file[name] for name in file.files}
    except OSError as error:
        raise InvalidArgument(f"--inputs '{path}': {error.strerror or error}") from error
    except (ValueError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        reason = "it has Python objects" if "allow_pickle" in str(error) else error
        raise InvalidArgument(f"--inputs '{path}' is no .npz file that can be read ({reason}); {HOW}") from error
    if others := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
        raise InvalidArgument(f"--inputs '{path}' has '{others[0]}', which is no array; {HOW}")
    return arrays


def _rows(path: Path, array: Array, spec: pb.ModelInput) -> Array:
    """Return the samples of one input along the first axis: an array of the input's rank is a single sample."""
    datatype, dims = BY_CONFIG_NAME[pb.DataType.Name(spec.data_type)], tuple(spec.dims)
    rows = array[None] if array.ndim == len(dims) else array
    fits = len(rows.shape) == len(dims) + 1 and all(
        dim in (-1, size) for dim, size in zip(dims, rows.shape[1:], strict=True)
    )
    if not fits or datatype.numpy is None or rows.dtype != datatype.numpy:
        raise InvalidArgument(
            f"--inputs '{path}': '{spec.name}' is {array.dtype} {list(array.shape)}, expected {datatype.name} "
            f"{['N', *dims]}; {HOW}"
        )
    return np.ascontiguousarray(rows)


def _names(named: Mapping[str, Any] | Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in named) or "no array"
