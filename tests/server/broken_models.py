"""Models as people break them: each case makes one, and names the words that its message must have.

`says` holds the cause as it was found and the fix: both must be in the error of a load, in the log, in the index and in
`edge-serve check`. docs/troubleshooting.md is found by the same words.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx

from tests.backends.onnx_models import FLOAT, identity, node, save, zip_map

Make = Callable[[Path], object]

IO = 'input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }\noutput { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }\n'
ONNX = 'backend: "onnxruntime"\nmax_batch_size: 4\n'
PYTHON = 'backend: "python"\n' + IO
ENVIRONMENT = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }\n'
MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros(4, np.float32))]) for _ in requests]
"""


@dataclass(frozen=True, slots=True)
class Broken:
    """A model that does not load.

    Attributes:
        make: makes the model in its directory, which exists.
        says: texts of the message, as regular expressions.
    """

    name: str
    make: Make
    says: tuple[str, ...]


def onnx_with(config: str, dims: tuple[int | str, ...] = ("N", 4)) -> Make:
    """Y = X of FP32 under a configuration."""

    def make(directory: Path) -> None:
        identity(directory / "1/model.onnx", FLOAT, dims)
        if config:
            (directory / "config.pbtxt").write_text(config)

    return make


def python_with(code: str, config: str = PYTHON) -> Make:
    """A Python model."""

    def make(directory: Path) -> None:
        (directory / "1").mkdir()
        (directory / "1/model.py").write_text(code)
        (directory / "config.pbtxt").write_text(config)

    return make


def paths(texts: dict[str, str | bytes]) -> Make:
    """Files by their paths; those that end with a `/` are empty directories."""

    def make(directory: Path) -> None:
        for name, text in texts.items():
            path = directory / name
            if name.endswith("/"):
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode() if isinstance(text, str) else text)

    return make


def both(*makes: Make) -> Make:
    """One after the other."""

    def make(directory: Path) -> None:
        for one in makes:
            one(directory)

    return make


def moved(make_first: Make, source: str, target: str) -> Make:
    """A model of which a file was put elsewhere."""

    def make(directory: Path) -> None:
        make_first(directory)
        (directory / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(directory / source, directory / target)

    return make


def changed(change: Callable[[onnx.ModelProto], object]) -> Make:
    """Y = X, with something of the file changed."""

    def make(directory: Path) -> None:
        path = identity(directory / "1/model.onnx", FLOAT, ("N", 4))
        model = onnx.load(path)
        change(model)
        path.write_bytes(model.SerializeToString())

    return make


def without_its_weights(directory: Path) -> None:
    """A model of which only the first of two files was copied."""
    import numpy as np

    weights = {"W": np.ones((4, 4), np.float32)}
    path = save(directory / "1/model.onnx", [node("MatMul", ["X", "W"], ["Y"])], {"X": (FLOAT, ("N", 4))},
                {"Y": (FLOAT, ("N", 4))}, weights)  # fmt: skip
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    os.unlink(directory / "1/weights.bin")


def tensor(side: str, name: str, data_type: str = "TYPE_FP32", dims: str = "4", more: str = "") -> str:
    return f'{side} {{ name: "{name}" data_type: {data_type} dims: [ {dims} ] {more} }}\n'


def ensemble(steps: str, head: str = "") -> str:
    return f'platform: "ensemble"\n{head}{IO}ensemble_scheduling {{ {steps} }}\n'


def step(model: str, inputs: str = 'key: "X" value: "X"', outputs: str = 'key: "Y" value: "Y"') -> str:
    return f'step {{ model_name: "{model}" model_version: -1 input_map {{ {inputs} }} output_map {{ {outputs} }} }} '


NO_BACKEND = (
    r"Invalid model name: Could not determine backend .* Expected model name of the form 'model.<backend_name>'\. "
)
NO_VERSION = r"at least one version must be available under the version policy of model '\w+'; "

#: the newcomer's table
FIRST = (
    Broken(
        "type_float32",
        onnx_with(ONNX + tensor("input", "X", "TYPE_FLOAT32")),
        (r"config.pbtxt:3:\d+: unknown value 'TYPE_FLOAT32', did you mean 'TYPE_FP32'", "the line reads"),
    ),
    Broken(
        "max_batchsize",
        onnx_with("max_batchsize: 4\n"),
        ("unknown field 'max_batchsize'", "did you mean 'max_batch_size'"),
    ),
    Broken(
        "wrong_dtype",
        onnx_with(ONNX + IO.replace("FP32", "INT32", 1)),
        (
            "configuration expects datatype TYPE_INT32 for input 'X', model provides TYPE_FP32",
            "write data_type: TYPE_FP32",
        ),
    ),
    Broken(
        "wrong_name",
        onnx_with(ONNX + IO.replace('"X"', '"INPUT"')),
        ("unexpected inference input 'INPUT', allowed inputs are: X", 'write name: "X" in config.pbtxt'),
    ),
    Broken(
        "no_reshape",
        onnx_with(ONNX + tensor("input", "X", dims="1") + tensor("output", "Y", dims="1"), ("N",)),
        (r"the model expects 1 dimensions \(shape \[-1\]\) but", r"write reshape \{ shape: \[ \] \}"),
    ),
    Broken(
        "kind_gpu",
        onnx_with(ONNX + "instance_group { kind: KIND_GPU }\n"),
        ("has kind KIND_GPU but server does not support GPUs", "write kind: KIND_AUTO .* or kind: KIND_CPU"),
    ),
    Broken(
        "named_and_missing",
        paths({"1/iris.onnx": "x", "config.pbtxt": ONNX}),
        (
            "unable to find '.*/named_and_missing/1/model.onnx'",
            "holds iris.onnx; expected model.onnx",
            "mv named_and_missing/1/iris.onnx named_and_missing/1/model.onnx",
        ),
    ),
    Broken(
        "iris",
        moved(onnx_with(""), "1/model.onnx", "1/iris.onnx"),
        (
            NO_BACKEND,
            "iris/1/ holds iris.onnx; expected model.onnx or model.py",
            "mv iris/1/iris.onnx iris/1/model.onnx",
            'default_model_filename: "iris.onnx"',
        ),
    ),
    Broken(
        "flat",
        paths({"model.onnx": "x"}),
        (
            NO_BACKEND,
            "flat/ holds model.onnx and no version directory such as flat/1",
            "mkdir flat/1 && mv flat/model.onnx flat/1/model.onnx",
        ),
    ),
    Broken(
        "no_version",
        paths({"README.md": "x"}),
        (NO_BACKEND, "There is no version directory such as no_version/1", "mkdir no_version/1"),
    ),
    Broken(
        "word_as_version",
        paths({"latest/model.onnx": "x"}),
        (NO_BACKEND, "word_as_version/latest is no version directory", "mv word_as_version/latest word_as_version/"),
    ),
    Broken(
        "environment",
        paths({"pyvenv.cfg": "home = /usr/bin", "lib/python3/x.py": ""}),
        (NO_BACKEND, "environment/ is a virtual environment of Python", "keep it outside of the model repository"),
    ),
    Broken(
        "saved_model",
        paths({"1/model.savedmodel/saved_model.pb": "x", "1/model.savedmodel/variables/": ""}),
        ("backend 'tensorflow' .* not available", "edge-serve pack install openvino", "tf2onnx"),
    ),
    Broken("empty_version", paths({"1/": ""}), (NO_BACKEND, "empty_version/1/ is empty", "as model.onnx or model.py")),
    Broken(
        "named_without_version",
        paths({"config.pbtxt": ONNX}),
        (NO_VERSION, "no version directory such as named_without_version/1", "mkdir named_without_version/1"),
    ),
    Broken(
        "empty_ensemble",
        paths({"config.pbtxt": ensemble(step("good"))}),
        (NO_VERSION, "an ensemble needs a version directory too", "mkdir empty_ensemble/1"),
    ),
    Broken(
        "lfs",
        paths({"1/model.onnx": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"}),
        (r"Protobuf parsing failed", r"The file is \d+ bytes and is a Git LFS pointer", "git lfs pull"),
    ),
    Broken(
        "torch", paths({"1/model.pt": "PK\x03\x04"}), ("backend 'pytorch' .* not available", "export the model to ONNX")
    ),
    Broken("syntax", python_with("def f(:\n"), ("SyntaxError", r"model.py, line 1")),
    Broken(
        "no_module",
        python_with("import sklearn_x, sklearn\n".replace("sklearn_x, ", "")),
        ("No module named 'sklearn'", r"model.py\(1\)", "-m pip install scikit-learn", "EXECUTION_ENV_PATH"),
    ),
    Broken(
        "raises",
        python_with(
            "class TritonPythonModel:\n  def initialize(self, args): return 1 / 0\n  def execute(self, r): ..."
        ),
        ("ZeroDivisionError", r"model.py\(2\): initialize"),
    ),
    Broken(
        "relative_path",
        python_with(MODEL + "\n    def initialize(self, args):\n        open('labels.txt')\n"),
        (
            "No such file or directory: 'labels.txt'",
            "A relative path starts at the working directory",
            r"os.path.join\(pb_utils.get_model_dir\(\), 'labels.txt'\)",
        ),
    ),
    Broken(
        "sklearn",
        paths({"1/model.joblib": "", "config.pbtxt": 'backend: "sklearn"\n' + IO}),
        ("backend 'sklearn' .* is not available", "package skl2onnx", "or load it in a model.py"),
    ),
    Broken(
        "crashes_at_load",
        python_with(MODEL + "\n    def initialize(self, args):\n        __import__('ctypes').string_at(0)\n"),
        (r"was ended by SIGSEGV in initialize, .*/crashes_at_load/1/model.py line 11 while it loaded model",),
    ),
    Broken(
        "no_class",
        python_with("class TritonModel:\n  def execute(self, requests): ...\n"),
        ("has no attribute 'TritonPythonModel'", "defines TritonModel, expected class TritonPythonModel"),
    ),
    Broken(
        "zip_map",
        lambda directory: zip_map(directory / "1/model.onnx"),
        (
            "unsupported datatype for output 'output_probability'",
            "scikit-learn's ZipMap",
            r"options=\{'zipmap': False\}",
            "list only the other outputs in config.pbtxt",
        ),
    ),
)

#: ours
MORE = (
    Broken(
        "nested",
        moved(onnx_with(ONNX), "1", "nested/1"),
        (NO_VERSION, "nested/nested/ looks like the model itself", "mv -n nested/nested/"),
    ),
    Broken("v1", moved(onnx_with(""), "1", "v1"), (NO_BACKEND, "v1/v1 is no version directory", "mv v1/v1 v1/1")),
    Broken(
        "upper",
        moved(onnx_with(""), "1/model.onnx", "1/Model.onnx"),
        (NO_BACKEND, "holds Model.onnx", "mv upper/1/Model.onnx upper/1/model.onnx", "upper and lower case"),
    ),
    Broken("utf16", paths({"1/model.onnx": "", "config.pbtxt": ONNX.encode("utf-16")}), ("UTF-16", "iconv")),
    Broken(
        "backslash",
        onnx_with(ONNX + tensor("input", "X") + tensor("output", "Y", more=r'label_filename: "data\\labels.txt"')),
        ("failed to open text file for read", 'a path is written with /: label_filename: "data/labels.txt"'),
    ),
    Broken(
        "no_escape",
        onnx_with(ONNX + tensor("input", "X") + tensor("output", "Y", more=r'label_filename: "data\labels.txt"')),
        ("config.pbtxt:4", "in a string, which is no escape: write"),
    ),
    Broken(
        "quoted_enum",
        onnx_with(ONNX + tensor("input", "X", '"TYPE_FP32"')),
        ("config.pbtxt:3", "TYPE_FP32", "without quotes"),
    ),
    Broken("unquoted_text", onnx_with("backend: onnxruntime\n"), ("config.pbtxt:1", "quotes")),
    Broken("curly_quotes", onnx_with("backend: \u201connxruntime\u201d\n"), ("config.pbtxt:1", "straight quotes")),
    Broken(
        "json_config", onnx_with('{\n "backend": "onnxruntime",\n "max_batch_size": 4 }\n'), ("config.pbtxt:1", "JSON")
    ),
    Broken(
        "other_name",
        onnx_with('name: "iris"\n' + ONNX),
        ("unexpected directory name 'other_name' for model 'iris'", 'name: "iris"', "mv other_name iris"),
    ),
    Broken(
        "onnx_backend",
        onnx_with('backend: "onnx"\n'),
        ("unable to find backend library for backend 'onnx'", 'Did you mean backend: "onnxruntime"'),
    ),
    Broken(
        "batch_in_dims",
        onnx_with(ONNX + tensor("input", "X", dims="-1, 4") + tensor("output", "Y", dims="-1, 4")),
        ("the model expects 2 dimensions", r"dims must not have the batch dimension: write dims: \[ 4 \]"),
    ),
    Broken(
        "no_batch",
        onnx_with(ONNX + IO, (1, 4)),
        ("the first dimension must be -1", r"write max_batch_size: 0 and dims: \[ 1, 4 \]"),
    ),
    Broken(
        "no_batch_no_io",
        onnx_with(ONNX, (1, 4)),
        ("model does not support batching", r"X \[1,4\]", "write max_batch_size: 0"),
    ),
    Broken(
        "nhwc",
        onnx_with(ONNX + tensor("input", "X", dims="4, 4, 3") + tensor("output", "Y", dims="3, 4, 4"), ("N", 3, 4, 4)),
        ("the sizes stand in another order", r"write dims: \[ 3, 4, 4 \]"),
    ),
    Broken(
        "new_opset",
        changed(lambda model: setattr(model.opset_import[0], "version", 99)),
        ("opset", "upgrade", r"opset of at most \d+"),
    ),
    Broken(
        "new_ir",
        changed(lambda model: setattr(model, "ir_version", 99)),
        ("IR version", "upgrade", r"model.ir_version = \d+"),
    ),
    Broken("no_weights", without_its_weights, ("keeps its weights in a file of their own", "weights.bin")),
    Broken(
        "html",
        paths({"1/model.onnx": "<!DOCTYPE html><html>not found</html>"}),
        ("is a web page", "download the file itself"),
    ),
    Broken(
        "half",
        both(onnx_with(""), lambda d: (d / "1/model.onnx").write_bytes((d / "1/model.onnx").read_bytes()[:-9])),
        (r"The file is \d+ bytes and is no ONNX model, or not all of one", "copy or export it again"),
    ),
    Broken(
        "custom_op",
        changed(lambda model: setattr(model.graph.node[0], "op_type", "MyOp")),
        ("MyOp", "op_library_filename"),
    ),
    Broken(
        "no_labels",
        both(
            onnx_with(ONNX + tensor("input", "X") + tensor("output", "Y", more='label_filename: "labels.txt"')),
            paths({"1/labels.txt": "a"}),
        ),
        ("failed to open text file for read .*labels.txt", "1/labels.txt"),
    ),
    Broken(
        "no_env",
        python_with(
            MODEL,
            PYTHON + ENVIRONMENT % "$$TRITON_MODEL_DIRECTORY/env.tar.gz",
        ),
        ("EXECUTION_ENV_PATH", "does not exist; expected", "put it there, or remove the parameter"),
    ),
    Broken(
        "circle",
        both(paths({"1/": ""}), paths({"config.pbtxt": ensemble(step("circle"))})),
        ("circular dependency", "circle"),
    ),
    Broken(
        "no_member",
        paths({"1/": "", "config.pbtxt": ensemble(step("nowhere"))}),
        ("not available or ambiguous: nowhere", "put them into the repository"),
    ),
    Broken(
        "member_dtype",
        paths({"1/": "", "config.pbtxt": ensemble(step("good")).replace("FP32", "INT32", 1)}),
        ("inconsistent data type: TYPE_INT32", "TYPE_FP32"),
    ),
    Broken(
        "member_tensor",
        paths({"1/": "", "config.pbtxt": ensemble(step("good", 'key: "IN" value: "X"'))}),
        ("non-existing input IN in model good", "the inputs of good are X"),
    ),
)
