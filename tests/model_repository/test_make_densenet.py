"""Reading PyTorch's weights and writing ONNX files without either library, on small examples."""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

# scripts of the model repository import each other by name, and are no package
sys.path.append(str(Path(__file__).parents[2] / "model_repository"))
make_densenet: Any = importlib.import_module("make_densenet")
onnx_file: Any = importlib.import_module("onnx_file")
torch_weights: Any = importlib.import_module("torch_weights")


class FloatStorage:
    """Numbers, saved apart from the pickle that names them."""

    def __init__(self, count: int) -> None:
        self.count = count


def _rebuild_tensor_v2(*_: Any) -> None:
    """Named in the pickle, never called."""


class Tensor:
    """Pickles as PyTorch's tensors do."""

    def __init__(self, storage: FloatStorage, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
        self.arguments: tuple[Any, ...] = (storage, offset, size, stride, False, OrderedDict())

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _rebuild_tensor_v2, self.arguments


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return ("storage", FloatStorage, "key", "cpu", value.count, None) if isinstance(value, FloatStorage) else None


def _saved(tensors: Any, values: Any) -> io.BytesIO:
    """A file as torch.save wrote it before PyTorch 1.6."""
    file = io.BytesIO()
    for value in (torch_weights._MAGIC, torch_weights._PROTOCOL, {"little_endian": True}, tensors, ["key"]):
        _Pickler(file, 2).dump(value)
    pickles = file.getvalue()
    for ours, theirs in (("FloatStorage", "torch"), ("_rebuild_tensor_v2", "torch._utils")):
        pickles = pickles.replace(f"c{__name__}\n{ours}\n".encode(), f"c{theirs}\n{ours}\n".encode())
    return io.BytesIO(pickles + len(values).to_bytes(8, "little") + values.tobytes())


def test_tensors_are_read_in_any_order_of_axes() -> None:
    values = np.arange(12, dtype="<f4")
    storage = FloatStorage(12)
    weights = {
        "a": Tensor(storage, 0, (2, 3), (3, 1)),
        "b": Tensor(storage, 6, (2, 3), (1, 2)),
        "c": Tensor(storage, 11, (), ()),
    }
    found = torch_weights.read_weights(_saved(OrderedDict(weights), values))

    assert {name: array.tolist() for name, array in found.items()} == {
        "a": [[0, 1, 2], [3, 4, 5]], "b": [[6, 8, 10], [7, 9, 11]], "c": 11,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("size", "stride", "offset"), [((13,), (1,), 0), ((2,), (12,), 0), ((2,), (-1,), 5), ((1,), (1,), 12)]
)
def test_a_tensor_beyond_its_storage_is_refused(size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> None:
    file = _saved({"a": Tensor(FloatStorage(12), offset, size, stride)}, np.arange(12, dtype="<f4"))
    with pytest.raises(ValueError, match=r"found a tensor .* numbers"):
        torch_weights.read_weights(file)


def test_a_pickle_that_calls_something_else_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "called",)

    file = _saved({"a": Evil()}, np.zeros(1, "<f4"))
    with pytest.raises(ValueError, match=r"found \S+, which is no weight"):
        torch_weights.read_weights(file)
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", pickle.dumps(7), b"\x80\x02K\x01.K\x02."])
def test_another_file_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"torch\.save"):
        torch_weights.read_weights(io.BytesIO(data))


def test_a_file_is_what_the_library_onnx_reads() -> None:
    graph = onnx_file.Graph("g")
    kernel = np.arange(18, dtype=np.float32).reshape(2, 1, 3, 3)
    out = graph.node("Conv", ["x", graph.weights("w", kernel)], "y", pads=(0, 0, 1, 1), group=1, strides=(2, 300))
    graph.node("LeakyRelu", [out], "z", alpha=0.25)
    model = onnx.load_from_string(graph.model({"x": (1, 1, 8, 8)}, {"z": (1, 2, 4, 1)}, 17))

    onnx.checker.check_model(model, full_check=True)
    conv, relu = model.graph.node
    found = {one.name: onnx.helper.get_attribute_value(one) for one in (*conv.attribute, *relu.attribute)}
    assert found == {"pads": [0, 0, 1, 1], "group": 1, "strides": [2, 300], "alpha": 0.25}
    assert (conv.op_type, list(conv.input), list(relu.output)) == ("Conv", ["x", "w"], ["z"])
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(model.graph.initializer[0]), kernel)
    assert (model.ir_version, model.opset_import[0].version) == (8, 17)


def test_batch_normalisation_is_folded_into_the_convolution_before_it() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    random = np.random.default_rng(0)
    shapes = {"c.weight": (4, 3, 3, 3), **{f"n.{part}": (4,) for part in ("weight", "bias", "running_mean")}}
    weights = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    weights["n.running_var"] = random.random(4).astype(np.float32) + 0.5
    network = make_densenet._Network(weights)
    out, size = network.convolution("x", 8, "c", "n", stride=2)
    network.graph.node("Identity", [out], "y")
    session = onnxruntime.InferenceSession(network.graph.model({"x": (1, 3, 8, 8)}, {"y": (1, 4, 4, 4)}, 17))
    x = random.normal(size=(1, 3, 8, 8)).astype(np.float32)
    (found,) = session.run(None, {"x": x})

    padded = np.pad(x[0], ((0, 0), (0, 1), (0, 1)))  # TensorFlow's: the odd row and column come last
    patches = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2]
    plain = np.einsum("chwij,ocij->ohw", patches, weights["c.weight"])
    scale = weights["n.weight"] / np.sqrt(weights["n.running_var"] + 1e-3)
    normal = (plain - weights["n.running_mean"][:, None, None]) * scale[:, None, None] + weights["n.bias"][
        :, None, None
    ]
    assert size == 4
    np.testing.assert_allclose(found[0], np.clip(normal, 0, 6), atol=1e-4)
