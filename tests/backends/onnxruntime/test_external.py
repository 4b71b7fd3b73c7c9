"""Which files an ONNX model may keep its weights in; ONNX Runtime before 1.24 reads any."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

from edge_serve.backends.onnxruntime.external import check_external_data, locations
from edge_serve.errors import Internal


def external(location: str, name: str = "w") -> onnx.TensorProto:
    """A tensor whose bytes lie in another file."""
    tensor = numpy_helper.from_array(np.ones(4, np.float32), name)
    set_external_data(tensor, location=location)
    tensor.ClearField("raw_data")
    return tensor


def saved(path: Path, *nodes: onnx.NodeProto, weights: onnx.TensorProto | None = None) -> Path:
    """Write a model whose first node adds `weights`, if there are some."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y"))
    if weights is not None:
        nodes = (helper.make_node("Add", ["x", "w"], ["y"]), *nodes)
    graph = helper.make_graph(nodes, "g", [x], [y], [weights] if weights is not None else [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("location", ["w.bin", "data/w.bin", "../w.bin", "data/../w.bin", "..w.bin"])
def test_files_of_the_model_s_own(tmp_path: Path, location: str) -> None:
    path = saved(tmp_path / "det/17/model.onnx", weights=external(location))
    assert locations(path) == {location.encode()}
    check_external_data(path, tmp_path / "det")
    inside = saved(tmp_path / "det/18/model.onnx", weights=external(f"{tmp_path}/det/18/w.bin"))
    check_external_data(inside, tmp_path / "det")


@pytest.mark.fault("U5")
@pytest.mark.parametrize(
    "location", ["../../w", "/etc/hostname", "data/../../../w", "./" * 100 + "../../w", "../../det2/w"]
)
def test_files_outside_of_the_model(tmp_path: Path, location: str) -> None:
    path = saved(tmp_path / "det/17/model.onnx", weights=external(location))
    with pytest.raises(Internal, match="which is outside of its directory: export it again with all its files in one"):
        check_external_data(path, tmp_path / "det")


def test_tensors_are_found_wherever_they_may_be(tmp_path: Path) -> None:
    branch = helper.make_graph([], "b", [], [], [external("b")])
    constant = helper.make_node("Constant", [], ["c"], value=external("c"))
    deep = helper.make_graph([constant], "d", [], [])
    sparse = helper.make_sparse_tensor(external("s"), numpy_helper.from_array(np.zeros(4, np.int64), "i"), [9])
    nodes = [
        helper.make_node("If", ["x"], ["z"], then_branch=branch, else_branch=deep),
        helper.make_node("Constant", [], ["v"], sparse_value=sparse),
        helper.make_node("Any", [], ["u"], domain="d", tensors=[external("t1"), external("t2")], graphs=[branch]),
    ]
    path = saved(tmp_path / "model.onnx", *nodes, weights=external("w"))
    model = onnx.load(path, load_external_data=False)
    node = helper.make_node("Constant", [], ["f"], value=external("f"))
    model.functions.append(helper.make_function("d", "F", [], ["f"], [node], [helper.make_opsetid("", 13)]))
    path.write_bytes(model.SerializeToString())
    assert locations(path) == {b"w", b"b", b"c", b"s", b"t1", b"t2", b"f"}


def field(number: int, content: bytes) -> bytes:
    """A field with a length that is longer than it need be."""
    return bytes([number << 3 | 2, len(content) | 0x80, 0]) + content


def test_other_ways_to_write_the_same_message(tmp_path: Path) -> None:
    entry = field(2, b"../../w") + field(1, b"location")
    graph = field(5, b"\x1b\x0a\x01x\x1c" + bytes([13 << 3 | 2, len(entry)]) + entry)  # behind a group
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x07" + b"\x35abcd" + b"\x39abcdefgh" + field(7, graph))
    assert locations(path) == {b"../../w"}


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, b"\x3a\xff\xff\xff\x7f", b"\x3a\x05ab", b"{}", b"\x38"])
def test_other_files_are_ignored(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    check_external_data(path, tmp_path)
    check_external_data(tmp_path / "none", tmp_path)


@pytest.mark.slow
def test_a_load_refuses_such_a_model(tmp_path: Path) -> None:
    for name, location in (("good", "w.bin"), ("leaves", "../../../../secret"), ("version", "../w.bin")):
        saved(tmp_path / "releases" / name / "17/17/model.onnx", weights=external(location))
        (tmp_path / "models").mkdir(exist_ok=True)
        (tmp_path / "models" / name).symlink_to(f"../releases/{name}/17")
    for file in ("secret", "releases/good/17/17/w.bin", "releases/version/17/w.bin"):
        (tmp_path / file).write_bytes(np.ones(4, np.float32).tobytes())
    command = [sys.executable, "-m", "edge_serve", "check", str(tmp_path / "models"), "--json"]
    models = json.loads(subprocess.run(command, capture_output=True, timeout=50).stdout)["models"]
    errors = {model["name"]: model["error"] for model in models}
    assert errors["good"] == ""
    assert "the model keeps weights in '../../../../secret', which is outside of its directory" in errors["leaves"]
    assert not errors["version"] or "put them into version/17/" in errors["version"]  # by the library's version
