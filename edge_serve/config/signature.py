"""The signature of a loaded model: inputs, outputs, and the class labels of its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.config.model.layout import advice_on_label_file
from edge_serve.config.stages import MOST_LABEL_BYTES, read_file
from edge_serve.errors import Internal, Unsupported, with_advice
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.tensors import BY_NUMBER, DataType


def signature_of(
    config: pb.ModelConfig, model_name: str, version: int | str, labels: Mapping[str, tuple[str, ...]] | None = None
) -> Signature:
    """Return the signature of one version of a model.

    Args:
        config: completed and checked.
        labels: class labels by output, from `read_labels`.
    """
    labels = labels or {}
    inputs = {tensor.name: _spec(tensor) for tensor in config.input}
    return Signature(
        model_name=model_name,
        model_version=str(version),
        platform=config.platform or config.backend,
        max_batch_size=config.max_batch_size,
        inputs=inputs,
        outputs={tensor.name: _spec(tensor, labels.get(tensor.name, ())) for tensor in config.output},
        decoupled=config.model_transaction_policy.decoupled,
        has_sequence_batching=config.HasField("sequence_batching"),
        correlation_id_type=_correlation_id_type(config.sequence_batching),
        required=sum(not tensor.optional for tensor in inputs.values()),
    )


def read_labels(config: pb.ModelConfig, model_directory: Path) -> dict[str, tuple[str, ...]]:
    """Read the class labels of each output: one a line of `label_filename`.

    Raises:
        Unsupported: the file lies outside the model directory.
        EdgeServeError: it cannot be read.
    """
    root = model_directory.resolve()
    labels = {}
    for tensor in config.output:
        if not tensor.label_filename:
            continue
        file = tensor.label_filename.lstrip("/")  # Triton joins the two as text
        path = model_directory / file
        if not path.resolve().is_relative_to(root):
            where = f"for output '{tensor.name}' in model '{config.name}'"
            raise Unsupported(f"label file path '{path}' {where} is outside model directory")
        lines = _label_text(path, model_directory, config.name, file).split("\n")
        if not lines[-1]:
            lines.pop()
        labels[tensor.name] = tuple(line.removesuffix("\r") for line in lines)
    return labels


def _label_text(path: Path, model_directory: Path, name: str, file: str) -> str:
    try:
        return read_file(path, MOST_LABEL_BYTES).decode(errors="replace")
    except Internal as error:
        raise type(error)(with_advice(error.message, advice_on_label_file(model_directory, name, file))) from error


def _spec(tensor: pb.ModelInput | pb.ModelOutput, labels: tuple[str, ...] = ()) -> TensorSpec:
    return TensorSpec(
        name=tensor.name,
        datatype=BY_NUMBER[tensor.data_type],
        dims=tuple(tensor.dims),
        reshape=tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None,
        optional=isinstance(tensor, pb.ModelInput) and tensor.optional,
        allow_ragged_batch=isinstance(tensor, pb.ModelInput) and tensor.allow_ragged_batch,
        is_shape_tensor=tensor.is_shape_tensor,
        labels=labels,
    )


def _correlation_id_type(batching: pb.ModelSequenceBatching) -> DataType | None:
    """Return the type of the CORRID control tensor, if the model has one."""
    wanted = pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID
    controls = [control for tensor in batching.control_input for control in tensor.control if control.kind == wanted]
    return BY_NUMBER[controls[0].data_type] if controls else None
