"""Checks that a configuration and an engine agree, for one instance.

Texts and their order: tensorrt_backend src/instance_state.cc (ValidateIO, InitIOBindingBuffers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edge_serve.backends.tensorrt.bindings import Binding, BindingRole, input_bindings, output_bindings
from edge_serve.backends.tensorrt.complete import check_allowed, unsupported_type
from edge_serve.backends.tensorrt.engine import DATA_TYPES, EngineInfo, TensorInfo
from edge_serve.backends.tensorrt.profiles import Choice, largest_shape
from edge_serve.errors import Internal, InvalidArgument, NotFound, Unsupported, with_advice
from edge_serve.messages.tensors import same_shape, shape_text
from edge_serve.records import frozen

Json = Mapping[str, Any]

_SHAPE_TYPES = ("TYPE_INT32", "TYPE_INT64")


def check_tensorrt(config: Json, engine: EngineInfo, choices: Sequence[Choice], instance: str) -> None:
    """Check that a configuration names every tensor of an engine, with its type, shape, and marks.

    Args:
        choices: the profiles of the instance.
        instance: its name, for messages.

    Raises:
        InvalidArgument, NotFound, Internal: it does not, with Triton's text.
        Unsupported: the engine pads a tensor.
    """
    _Check(config, engine, choices, instance).run()


@frozen
class _Check:
    """A check of one configuration against one engine, for one instance."""

    config: Json
    engine: EngineInfo
    choices: Sequence[Choice]
    instance: str

    @property
    def model(self) -> str:
        return str(self.config.get("name", ""))

    @property
    def max_batch_size(self) -> int:
        return int(self.config.get("max_batch_size", 0))

    def run(self) -> None:
        """Check everything, in Triton's order."""
        self._check_entries()
        seen: set[str] = set()
        for binding in [*input_bindings(self.config), *output_bindings(self.config)]:
            tensor = self.engine.tensor(binding.name)
            if tensor is None:
                raise NotFound(f"{binding.side} '{binding.name}' not found for {self.instance}")
            if tensor.is_input != binding.is_input:
                an = "an input" if binding.is_input else "an output"
                raise InvalidArgument(
                    f"{binding.side} '{binding.name}' is expected to be {an} in model for {self.instance}"
                )
            if tensor.is_shape and binding.role is not BindingRole.REQUEST:
                continue  # its values have no source, which the last check reports
            if binding.name in seen:
                if binding.role is BindingRole.STATE:
                    continue  # an input or output may be a state too
                raise InvalidArgument(
                    f"{binding.side} '{binding.name}'  has already appeared as an input or output for {self.instance}"
                )
            seen.add(binding.name)
            self._check_binding(binding, tensor)
        self._check_none_left(seen)

    def _check_entries(self) -> None:
        """Check the names, types, and marks in the lists of inputs and outputs."""
        inputs, outputs = (self.config.get(side) or () for side in ("input", "output"))
        if len(self.engine.inputs) < len(inputs):
            raise InvalidArgument(
                f"unable to load model '{self.model}', configuration expects {len(inputs)} inputs, model provides at "
                f"most {len(self.engine.inputs)}; the engine's inputs are "
                f"{', '.join(tensor.name for tensor in self.engine.inputs)}"
            )
        found = [("input", entry, check_allowed(entry, "input", self.engine)) for entry in inputs]
        found += [("output", entry, check_allowed(entry, "output", self.engine)) for entry in outputs]
        for side, entry, tensor in found:
            if entry.get("data_type") not in DATA_TYPES.values():
                raise unsupported_type(str(entry.get("data_type")), side, tensor, self.config)
            self._check_marks(side, entry, tensor)

    def _check_marks(self, side: str, entry: Json, tensor: TensorInfo) -> None:
        shape, non_linear = entry.get("is_shape_tensor", False), entry.get("is_non_linear_format_io", False)
        where = f"{side} '{tensor.name}' for model '{self.model}'"
        if tensor.is_shape and not shape:
            text = f"{where} is a shape tensor but the model configuration doesn't mark it as a shape tensor."
            raise Internal(with_advice(text, "write is_shape_tensor: true for it"))
        if shape and not tensor.is_shape:
            raise Internal(f"{where} is incorrectly marked as a shape tensor in the model configuration.")
        if not tensor.is_linear and not non_linear:
            raise Internal(
                f"{where} uses a non-linear IO format, but 'is_non_linear_format_io' is incorrectly set to false in "
                f"the model configuration. Write is_non_linear_format_io: true for it; its format is {tensor.format}"
            )
        if non_linear and tensor.is_linear:
            raise Internal(
                f"{where} uses a linear IO format, but 'is_non_linear_format_io' is incorrectly set to true in the "
                "model configuration."
            )

    def _check_binding(self, binding: Binding, tensor: TensorInfo) -> None:
        if tensor.is_shape:
            self._check_shape_tensor(binding, tensor)
            return
        self._check_type(binding, tensor)
        if not tensor.is_linear and tensor.vectorized_dim == -1:
            raise InvalidArgument(
                f"unexpected vectorized dim is -1 for non-linear tensor '{binding.name}' for {self.instance}"
            )
        if not tensor.is_linear and binding.ragged:
            wrong = Internal if binding.is_input else InvalidArgument
            raise wrong(f"unexpected allow-ragged for non-linear {binding.side} '{binding.name}' for {self.instance}")
        if tensor.padding:
            raise Unsupported(
                f"{binding.side} '{binding.name}' for model '{self.model}' has format {tensor.format}, which rounds "
                f"{tensor.padding}, and the server does not pad tensors: build the engine with linear inputs and "
                "outputs (trtexec: --inputIOFormats, --outputIOFormats)"
            )
        if binding.is_input:
            self._check_input_dims(binding, tensor)
        elif not binding.ragged:
            self._check_dims(binding, tensor)

    def _check_type(self, binding: Binding, tensor: TensorInfo) -> None:
        if binding.data_type == tensor.data_type:
            return
        text = (
            f"unexpected datatype {tensor.data_type or 'TYPE_<invalid>'} for inference {binding.side} "
            f"'{binding.name}', expecting {binding.data_type} for {self.instance}"
        )
        advice = f"write data_type: {tensor.data_type}" if binding.role is BindingRole.REQUEST else ""
        if not tensor.data_type:
            advice = f"the engine has it as {tensor.kind}, which cannot be served: build it with another type there"
        raise InvalidArgument(with_advice(text, advice))

    def _check_input_dims(self, binding: Binding, tensor: TensorInfo) -> None:
        if binding.ragged:
            if len(tensor.shape) != 1 or tensor.shape[0] != next(iter(binding.dims), 0):
                raise InvalidArgument(
                    f"model '{self.model}', tensor '{binding.name}': for the model to support ragged input, the engine "
                    f"shape is: {shape_text(tensor.shape)} while the model config shape is: {shape_text(binding.dims)}"
                )
        elif binding.role is BindingRole.CONTROL and tensor.is_dynamic:
            self._check_control(binding, tensor)
        else:
            self._check_dims(binding, tensor)
        for choice in self.choices:
            span = choice.profile.shapes.get(binding.name)
            if span is not None:
                full = binding.full_dims(self.max_batch_size)
                largest_shape(span, full, self.max_batch_size, binding.name, self.model)

    def _check_control(self, binding: Binding, tensor: TensorInfo) -> None:
        """Check that a control of variable shape is one number for each request."""
        first = -1 if self.max_batch_size else 1
        if tensor.shape[0] != first:
            text = f"expects the first dimension to be {first} but the model specified {tensor.shape[0]}"
        elif any(dim != 1 for dim in tensor.shape[1:]):
            text = (
                "expects all dimensions (conditionally first) to be 1 but the model specified shape "
                f"{shape_text(tensor.shape)}"
            )
        else:
            return
        raise InvalidArgument(
            f"unexpected shape {shape_text(tensor.shape)} for control input '{binding.name}' for model {self.model}: "
            f"{text}"
        )

    def _check_dims(self, binding: Binding, tensor: TensorInfo) -> None:
        """Compare shapes; -1 on either side fits any size."""
        where = f"model '{self.model}', tensor '{binding.name}'"
        shape = tensor.shape
        if self.max_batch_size and not shape:
            raise InvalidArgument(
                f"{where}: for the model to support batching the shape should have at least 1 dimension; but shape "
                f"expected by the model is {shape_text(shape)}; write max_batch_size: 0"
            )
        full = (-1, *binding.dims) if self.max_batch_size else binding.dims
        if same_shape(shape, full):
            return
        text = (
            f"{where}: the model expects {len(shape)} dimensions (shape {shape_text(shape)}) but the model "
            f"configuration specifies {len(full)} dimensions"
        )
        if self.max_batch_size:
            text += (
                " (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making "
                f"complete shape {shape_text(full)})"
            )
        else:
            text += f" (shape {shape_text(full)})"
        wanted = shape[1:] if self.max_batch_size else shape
        fix = f"dims: [ {', '.join(map(str, wanted))} ]" if wanted else "dims: [ 1 ] and reshape { shape: [ ] }"
        raise InvalidArgument(with_advice(text, f"write {fix}" if binding.role is BindingRole.REQUEST else ""))

    def _check_shape_tensor(self, binding: Binding, tensor: TensorInfo) -> None:
        if binding.is_input:
            self._check_shape_input_type(binding, tensor)
        else:
            self._check_shape_output_type(binding, tensor)
        shape, dims = tensor.shape, binding.dims
        if len(shape) > 1:
            raise Internal(
                f"unable to load model '{self.instance}', shape binding '{binding.name}' can only be 0-d or 1-D "
                f"tensor, got {shape_text(shape)}"
            )
        values = [dim + 1 for dim in dims] if self.max_batch_size else list(dims)  # the batch is a value too
        if len(dims) != len(shape) or list(shape) != values or -1 in dims:
            raise Internal(
                f"unable to load model '{self.instance}', binding '{binding.name}' shape expected by framework "
                f"{shape_text(shape)} doesn't match model configuration shape {shape_text(dims)}"
            )

    def _check_shape_input_type(self, binding: Binding, tensor: TensorInfo) -> None:
        if binding.data_type not in _SHAPE_TYPES:
            raise InvalidArgument(
                f"unexpected datatype {binding.data_type} in model configuration for shape input '{binding.name}', "
                f"expecting TYPE_INT32 or TYPE_INT64 for {self.instance}"
            )
        if binding.data_type != tensor.data_type:
            raise InvalidArgument(
                f"unexpected datatype {tensor.data_type or 'TYPE_<invalid>'} in engine for shape input "
                f"'{binding.name}', expecting {binding.data_type} for {self.instance}"
            )

    def _check_shape_output_type(self, binding: Binding, tensor: TensorInfo) -> None:
        if binding.ragged:
            raise InvalidArgument(f"batch output '{binding.name}' can not be shape binding")
        expected = tensor.data_type if tensor.data_type in _SHAPE_TYPES else "TYPE_INT64"  # TensorRT 8.6: INT32
        if binding.data_type != expected:
            raise InvalidArgument(
                f"unexpected datatype '{binding.data_type} in model configuration for shape output '{binding.name}', "
                f"expecting {expected} for {self.instance}"
            )
        self._check_type(binding, tensor)

    def _check_none_left(self, seen: set[str]) -> None:
        for tensor in self.engine.tensors:
            if tensor.name not in seen:
                side = "input" if tensor.is_input else "output"
                raise InvalidArgument(f"expected configuration for {side} '{tensor.name}' for {self.instance}")
