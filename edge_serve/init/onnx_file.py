"""A new model from an ONNX file: its inputs, outputs and batch dimension, as ONNX Runtime reads them in a worker."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

from edge_serve.backends.base import ModelSpec
from edge_serve.backends.onnxruntime.external import locations
from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.config.model.json_form import model_config_from_json, model_config_to_json
from edge_serve.errors import EdgeServeError, InvalidArgument
from edge_serve.init.config_text import config_text
from edge_serve.init.directory import ModelPlace
from edge_serve.workers.front.workers import Workers

BACKEND = "onnxruntime"
_FILE = "model.onnx"
#: rows of a batch, where the file lets a batch have any number
_BATCH = 8


def make(place: ModelPlace, file: Path) -> pb.ModelConfig:
    """Write the model. Return its configuration.

    Raises:
        InvalidArgument: the file is no ONNX model that can be served.
        OSError: it cannot be copied.
    """
    copy_file(file, place)
    config = asyncio.run(_described(place, file))
    batching = config.max_batch_size > 0
    if batching:
        config.max_batch_size = _BATCH
        batch = [
            "Every input and output of the file has a variable first dimension: the batch, of at most so many rows.",
            "dims are without it. If that dimension is no batch, write 0 here and put -1 in front of all dims.",
        ]
    else:
        batch = [
            "No batching: that needs a variable first dimension in every input and output of the file. To get it,",
            "export the file again with such a dimension (dynamic_axes or dynamic_shapes of torch.onnx.export).",
        ]
    place.write("config.pbtxt", config_text(config, f"Configuration by `edge-serve init` from {file.name!a}.", batch))
    return config


def copy_file(file: Path, place: ModelPlace) -> list[Path]:
    """Copy an ONNX file and the files of its weights into the version directory. Return the copies.

    Raises:
        InvalidArgument: a file is missing, or weights lie outside of the file's directory.
        OSError: they cannot be copied.
    """
    if not file.is_file():
        raise InvalidArgument(f"--onnx '{file}': {'not a file' if os.path.lexists(file) else 'there is no such file'}")
    copied = [place.version / _FILE]
    shutil.copyfile(file, copied[0])
    return copied + [_copy_weights(file, name, place) for name in sorted(map(os.fsdecode, locations(file)))]


def _copy_weights(file: Path, name: str, place: ModelPlace) -> Path:
    source, target = file.parent / name, place.version / name
    if not target.resolve().is_relative_to(place.version.resolve()):
        raise InvalidArgument(f"--onnx '{file}' keeps weights in '{name}', expected a path below the file's directory")
    if not source.is_file():
        raise InvalidArgument(f"--onnx '{file}' keeps its weights in '{name}': put that file beside it")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    return target


async def _described(place: ModelPlace, file: Path) -> pb.ModelConfig:
    bare = pb.ModelConfig(name=place.name, backend=BACKEND, platform="onnxruntime_onnx", default_model_filename=_FILE)
    workers = Workers()
    spec = ModelSpec(place.name, 1, place.staged, place.version, model_config_to_json(bare))
    try:
        return model_config_from_json(await workers.describe(spec, BACKEND, own_worker=True))
    except EdgeServeError as error:
        reason = error.message.replace(str(place.version / _FILE), str(file)).strip()
        raise InvalidArgument(f"--onnx '{file}' cannot be served: {reason}") from error
    finally:
        await workers.stop()
