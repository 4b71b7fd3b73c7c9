"""The calls of OpenVINO. The only file of the pack that imports it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino.preprocess import PrePostProcessor

from edge_serve.errors import Internal, InvalidArgument, with_advice
from edge_serve.messages.tensors import Array

from .advice import advice_on
from .settings import OpenVinoSettings
from .signature import Dims, Port

Model = Any
CompiledModel = Any
Request = Any

#: data type of config.pbtxt -> the library's
_TYPES = {
    "TYPE_BOOL": ov.Type.boolean, "TYPE_STRING": ov.Type.string, "TYPE_FP16": ov.Type.f16, "TYPE_FP32": ov.Type.f32,
    "TYPE_FP64": ov.Type.f64, "TYPE_BF16": ov.Type.bf16, "TYPE_INT8": ov.Type.i8, "TYPE_INT16": ov.Type.i16,
    "TYPE_INT32": ov.Type.i32, "TYPE_INT64": ov.Type.i64, "TYPE_UINT8": ov.Type.u8, "TYPE_UINT16": ov.Type.u16,
    "TYPE_UINT32": ov.Type.u32, "TYPE_UINT64": ov.Type.u64,
}  # fmt: skip
_BF16 = _TYPES["TYPE_BF16"]
_STRING = _TYPES["TYPE_STRING"]
#: the library makes machine code for each model
_NO_CODE = (
    "the service may not make code that runs: write MemoryDenyWriteExecute=no into a drop-in of edge-serve.service "
    "(systemctl edit edge-serve), as the package edge-serve-backend-openvino does, and restart it"
)
#: an output does not fit into the memory that was made for the rows of the batch
_NO_PLACE = re.compile("set new shape|set the output tensor")
_OTHER_ROWS = (
    "an output has other rows than its batch: write max_batch_size: 0, or export the model with one row of each output "
    "for each row of the inputs"
)
#: size of an array of strings on its way into the library
_MOST_TEXT_BYTES = 256 << 20
#: a line of the library's text that says where in its source an error arose
_PLACE = re.compile(r"(?:Exception from|Check '.*' failed at|Error has occured|\[ .* \]|While validating node).*")


class OpenVino:
    """The library, for one model version.

    Args:
        name: of the model, for errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._core = ov.Core()
        # weights are copied: an overwritten file must not change or crash the model that serves
        self._core.set_property({"ENABLE_MMAP": "NO"})

    def read(self, path: Path, settings: OpenVinoSettings) -> Model:
        """Read a model.

        Raises:
            Internal: it cannot be read.
            InvalidArgument: the library of operators cannot be loaded.
        """
        if settings.extension:
            try:
                self._core.add_extension(settings.extension)
            except Exception as error:
                named = f"CPU_EXTENSION_PATH of model '{self._name}', '{settings.extension}'"
                raise InvalidArgument(f"{named}, cannot be loaded: {_text(error)}") from error
        try:
            return self._core.read_model(path)
        except Exception as error:
            text = f"OpenVINO {ov.get_version().partition('-')[0]} cannot read '{path}': {_text(error)}"
            raise Internal(with_advice(text, advice_on(str(error), path))) from error

    @staticmethod
    def add_outputs(model: Model, wanted: Sequence[str]) -> None:
        """Make tensors inside a model outputs of it, as TensorFlow fetches any by its name. Others are left out."""
        known = {name.removesuffix(":0") for port in model.outputs for name in port.get_names()}
        for name in wanted:
            for spelling in (name, f"{name}:0") if name.removesuffix(":0") not in known else ():
                with contextlib.suppress(RuntimeError):  # there is no such tensor: the check says which there are
                    model.add_outputs(spelling)
                    break

    def reshape(self, model: Model, dims: Sequence[Dims | None]) -> None:
        """Give the inputs of a model other dims, by position; None = its own.

        Raises:
            InvalidArgument: the model does not take them.
        """
        if not any(dims):
            return
        wanted = {
            port: ov.PartialShape(list(new)) if new is not None else port.get_partial_shape()
            for port, new in zip(model.inputs, dims, strict=True)
        }
        try:
            model.reshape(wanted)
        except Exception as error:
            shapes = ", ".join(str(list(new)) for new in dims if new is not None)
            text = f"model '{self._name}' cannot be reshaped to inputs {shapes}: {_text(error)}"
            advice = "write max_batch_size: 0 and the dims of the model, or export it with a variable first dimension"
            raise InvalidArgument(with_advice(text, advice)) from error

    def convert(self, model: Model, inputs: Sequence[str], outputs: Sequence[str]) -> Model:
        """Return the model with conversions from and to these data types, by position."""
        own = [type_name(port) for port in (*model.inputs, *model.outputs)]
        if own == [*inputs, *outputs]:
            return model
        steps = PrePostProcessor(model)
        for i, name in enumerate(inputs):
            if name != own[i]:
                steps.input(i).tensor().set_element_type(_TYPES[name])
        for i, name in enumerate(outputs, len(inputs)):
            if name != own[i]:
                steps.output(i - len(inputs)).tensor().set_element_type(_TYPES[name])
        return steps.build()

    def compile(self, model: Model, settings: OpenVinoSettings) -> CompiledModel:
        """Compile a model for its device.

        Raises:
            InvalidArgument: there is no such device, or it does not know a property.
            Internal: the device cannot run the model.
        """
        devices = self._core.available_devices
        known = {one.partition(".")[0] for one in devices} | {"AUTO", "MULTI", "HETERO", "BATCH"}
        if settings.device.partition(":")[0].partition(".")[0] not in known:
            raise InvalidArgument(
                f"TARGET_DEVICE of model '{self._name}' is '{settings.device}', and OpenVINO finds the devices "
                f"{', '.join(devices)} here: write one of them, or AUTO"
            )
        try:
            return self._core.compile_model(model, settings.device, dict(settings.properties))
        except Exception as error:
            text = f"OpenVINO cannot compile model '{self._name}' for {settings.device}: {_text(error)}"
            raise Internal(with_advice(text, _NO_CODE if "can't protect" in text else "")) from error


def ports(found: Sequence[Any], side: str, *, is_tensorflow: bool = False) -> list[Port]:
    """Return the inputs or the outputs of a model.

    Args:
        is_tensorflow: `x` is the name of `x:0`, as in Triton's TensorFlow backend; elsewhere it is another one.
    """
    return [_port(port, f"{side}_{i}", is_tensorflow) for i, port in enumerate(found)]


def _port(port: Any, unnamed: str, is_tensorflow: bool) -> Port:
    # the first by the alphabet is the library's choice (get_any_name), and Triton's; the shortest is TensorFlow's own
    names = sorted(port.get_names(), key=lambda name: (len(name) if is_tensorflow else 0, name))
    short = [name[:-2] for name in names if name.endswith(":0") and name[:-2] not in names]
    names = [*short, *names] if is_tensorflow else [*names, *short]
    shape = port.get_partial_shape()
    dims = None if shape.rank.is_dynamic else tuple(_dim(one) for one in shape)
    layout = ov.layout_helpers.get_layout(port) if hasattr(ov, "layout_helpers") else ov.Layout()
    has_batch = ov.layout_helpers.has_batch(layout) and ov.layout_helpers.batch_idx(layout) == 0
    return Port(tuple(names) or (unnamed,), type_name(port), dims, str(port.get_element_type()), has_batch)


def _dim(one: Any) -> int:
    return -1 if one.is_dynamic else int(one.get_length())


def type_name(port: Any) -> str:
    """Return the data type of a tensor in the words of config.pbtxt; "" = it has none there."""
    found = port.get_element_type()
    return next((name for name, one in _TYPES.items() if one == found), "")


def tensor_over(array: Array, data_type: str) -> Any:
    """Return a tensor over the memory of an array, which must live as long. Strings are copied."""
    if data_type == "TYPE_STRING":
        return _text_tensor(array)
    if data_type == "TYPE_BF16":
        return ov.Tensor(array, ov.Shape(array.shape), _BF16)
    return ov.Tensor(array, shared_memory=True)


def _text_tensor(array: Array) -> Any:
    """Return a tensor with strings. The library takes them in an array whose elements all have the longest's size.

    Raises:
        InvalidArgument: that array would be too large, or an element ends in a zero byte, which the library cuts off.
    """
    tensor = ov.Tensor(_STRING, ov.Shape(array.shape))
    if not array.size:
        return tensor
    texts = array.ravel().tolist()
    if any(text.endswith(b"\0") for text in texts):
        raise InvalidArgument("a string ends in a zero byte, which OpenVINO's interface for Python would cut off")
    longest = max(map(len, texts))
    if longest * array.size > _MOST_TEXT_BYTES:
        raise InvalidArgument(
            f"{array.size} strings of up to {longest} bytes need {longest * array.size} bytes in one array, which may "
            f"have {_MOST_TEXT_BYTES}: send long strings in requests of their own"
        )
    tensor.bytes_data = array.astype(np.bytes_)
    return tensor


def array_of(tensor: Any, data_type: str) -> Array:
    """Return the values of a tensor: a view, or a copy of strings."""
    if data_type == "TYPE_STRING":
        # of a tensor without elements, `bytes_data` has a random type, or ends the process
        return np.asarray(tensor.bytes_data, dtype=object) if tensor.size else np.empty(tuple(tensor.shape), object)
    array: Array = tensor.data
    return array.view(np.uint16) if data_type == "TYPE_BF16" else array


def run(request: Request, inputs: Sequence[Any], outputs: Mapping[int, Any]) -> None:
    """Run a request with inputs by position; its outputs are valid until its next run.

    Args:
        outputs: tensors that the library writes to, by position.

    Raises:
        InvalidArgument: the model does not take inputs of these shapes, or fails otherwise.
    """
    try:
        # outputs first: one that is an input of the model is the same port to the library, which takes the tensor that
        # is set last for the input
        for i, tensor in outputs.items():
            request.set_output_tensor(i, tensor)
        for i, tensor in enumerate(inputs):
            request.set_input_tensor(i, tensor)
        request.start_async()
        request.wait()
    except Exception as error:
        text = f"OpenVINO failed to run the model: {_text(error)}"
        raise InvalidArgument(with_advice(text, _OTHER_ROWS if _NO_PLACE.search(text) else "")) from error


def _text(error: Exception) -> str:
    """Return the part of the library's text that says what is wrong, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not _PLACE.fullmatch(line)]
    return " ".join(told or lines) or type(error).__name__
