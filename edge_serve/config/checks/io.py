"""Checks of inputs, outputs, batch inputs and batch outputs (core src/model_config_utils.cc, ValidateModelIOConfig).

Names must be unique; Triton lets duplicates pass, and one of the two can then never be reached.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.errors import InvalidArgument

TENSORRT = "tensorrt_plan"
_NOT_A_DIMENSION = "must be integer >= 1, or -1 to indicate a variable-size dimension"
_MAX_ELEMENTS = 2**63 - 1


def check_inputs_and_outputs(config: pb.ModelConfig) -> None:
    """Check that each tensor is described completely and can have a shape.

    Raises:
        InvalidArgument: with Triton's text.
    """
    try:
        for tensor in config.input:
            _check_input(tensor, config)
        for output in config.output:
            _check_output(output, config)
        _check_unique("input", (tensor.name for tensor in config.input))
        _check_unique("output", (tensor.name for tensor in config.output))
        _check_batch_inputs(config)
        _check_batch_outputs(config)
    except InvalidArgument as error:
        raise InvalidArgument(f"{error.message} for {config.name}") from error


def _check_unique(side: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidArgument(f"model {side} '{name}' is specified more than once")
        seen.add(name)


def _check_input(tensor: pb.ModelInput, config: pb.ModelConfig) -> None:
    _check_shape(tensor, "model input", config.max_batch_size)
    if tensor.format != pb.ModelInput.FORMAT_NONE and len(tensor.dims) != 3:
        raise InvalidArgument("model input NHWC/NCHW require 3 dims")
    _check_tensorrt_only(tensor, "input", config.platform)


def _check_output(tensor: pb.ModelOutput, config: pb.ModelConfig) -> None:
    _check_shape(tensor, "model output", config.max_batch_size)
    _check_tensorrt_only(tensor, "output", config.platform)


def _check_tensorrt_only(tensor: pb.ModelInput | pb.ModelOutput, side: str, platform: str) -> None:
    if tensor.is_shape_tensor and platform != TENSORRT:
        raise InvalidArgument("shape tensors are only supported for TensorRT platform")
    if tensor.is_non_linear_format_io:
        if platform != TENSORRT:
            raise InvalidArgument("Non-linear IO format is only supported for the TensorRT platform")
        if len(tensor.dims) != 3:
            raise InvalidArgument(f"Non-linear IO format {side} requires 3 dims")


def _check_shape(tensor: pb.ModelInput | pb.ModelOutput, what: str, max_batch_size: int) -> None:
    if not tensor.name:
        raise InvalidArgument(f"{what} must specify 'name'")
    what = f"{what} '{tensor.name}'"
    if tensor.data_type not in pb.DataType.values() or not tensor.data_type:
        raise InvalidArgument(f"{what} must specify 'data_type'")
    if not tensor.dims:
        raise InvalidArgument(f"{what} must specify 'dims'")
    reshaped = tensor.HasField("reshape")
    if reshaped and not tensor.reshape.shape and max_batch_size == 0:
        raise InvalidArgument(
            f"{what} cannot have empty reshape for non-batching model as scalar tensors are not supported"
        )
    _check_dims(tensor.dims, f"{what} dimension")
    if reshaped:
        _check_dims(tensor.reshape.shape, f"{what} reshape dimensions")
        _check_reshape(tensor.dims, tensor.reshape.shape, what)


def _check_dims(dims: Sequence[int], what: str) -> None:
    if any(dim < 1 and dim != -1 for dim in dims):
        raise InvalidArgument(f"{what} {_NOT_A_DIMENSION}")
    # Triton's element count wraps around here
    if math.prod(dim for dim in dims if dim > 0) > _MAX_ELEMENTS:
        raise InvalidArgument(f"{what} product must be at most {_MAX_ELEMENTS}")


def _check_reshape(dims: Sequence[int], shape: Sequence[int], what: str) -> None:
    """Check that both have as many elements: the fixed dimensions between two variable ones have equal products."""
    have, want = _runs(dims), _runs(shape)
    if (len(have) == 1) != (len(want) == 1):
        raise InvalidArgument(f"{what} has different size for dims and reshape")
    if len(have) != len(want):
        raise InvalidArgument(f"{what} has different number of variable-size dimensions for dims and reshape")
    if have != want:
        raise InvalidArgument(f"{what} has different size for dims and reshape")


def _runs(dims: Sequence[int]) -> list[int]:
    """Return the products of the fixed dimensions before each variable dimension, and after the last one."""
    runs = [1]
    for dim in dims:
        if dim == -1:
            runs.append(1)
        else:
            runs[-1] *= dim
    return runs


def _check_kind(batch: pb.BatchInput | pb.BatchOutput, kinds: Any, name: str) -> None:
    if batch.kind not in kinds.values():
        raise InvalidArgument(f"unknown {name} '{batch.kind}'")
    if (count := len(batch.source_input)) != 1:
        raise InvalidArgument(f"{name} '{kinds.Name(batch.kind)}' expects 1 source input, got {count}")


def _check_batch_inputs(config: pb.ModelConfig) -> None:
    inputs = {tensor.name for tensor in config.input}
    for batch in config.batch_input:
        _check_kind(batch, pb.BatchInput.Kind, "batch input kind")
        if batch.data_type not in (pb.TYPE_INT32, pb.TYPE_FP32):
            raise InvalidArgument("batch input data type must be TYPE_INT32 or TYPE_FP32")
        _check_sources(batch.source_input, inputs)


def _check_batch_outputs(config: pb.ModelConfig) -> None:
    inputs = {tensor.name for tensor in config.input}
    outputs = {tensor.name for tensor in config.output}
    for batch in config.batch_output:
        _check_kind(batch, pb.BatchOutput.Kind, "batch output kind")
        _check_sources(batch.source_input, inputs)
        seen: set[str] = set()
        for target in batch.target_name:
            if target not in outputs:
                raise InvalidArgument(f"unknown target output name '{target}'")
            if target in seen:
                raise InvalidArgument(f"target output name '{target}' can only be specified once")
            seen.add(target)


def _check_sources(sources: Iterable[str], inputs: set[str]) -> None:
    for source in sources:
        if source not in inputs:
            raise InvalidArgument(f"unknown source input name '{source}'")
