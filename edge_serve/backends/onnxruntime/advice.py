"""Advice on an ONNX file that does not load: its cause, from the library's text or the file's first bytes, and a fix.

Worker's side: the standard library only.
"""

from __future__ import annotations

import re
from pathlib import Path
from shlex import quote

from edge_serve.backends.file_kinds import COPY_AGAIN, WEB_PAGE, FileKinds, find_kind, read_head

_UPGRADE = "upgrade the library: pip install --upgrade onnxruntime"

#: first bytes, the kind of the file, and the fix
_KINDS: FileKinds = (
    (rb"\s*<\?xml", *WEB_PAGE),  # as of an error
    (rb"PK\x03\x04", "a ZIP archive (torch.save writes one, too)",
     "unpack it, or export the PyTorch model with torch.onnx.export"),
    (rb"....TFL3", "a TensorFlow Lite model", "python -m tf2onnx.convert --tflite FILE --output model.onnx"),
    (rb"\x89HDF", "an HDF5 file, as of Keras", "convert the Keras model with tf2onnx"),
    (rb"....ORTM", "a model in ORT format", "name it model.ort, and write default_model_filename: \"model.ort\""),
    (rb"\x80[\x02-\x05]", "a Python pickle", "convert the model with skl2onnx.to_onnx or torch.onnx.export"),
    (rb"\s*[{\[]", "JSON text", "export the model to ONNX"),
)  # fmt: skip

_EXTERNAL_DATA = (
    "the model keeps its weights in a file of their own, which is not beside {file}: put '{base}' into {directory}/ "
    "under the name that it was exported with"
)
_OPERATOR = (
    "onnxruntime {version} has no operator {found}: name the library that has it in config.pbtxt, "
    'model_operations {{ op_library_filename: "PATH" }}, or export the model without it'
)
#: the library's text, and the advice: {found} is the group of the pattern, {base} the last part of that as a path
_BY_TEXT = (
    (
        r"Unsupported model IR version: \d+, max supported IR version: (\d+)",
        f"the file is of a newer ONNX format than onnxruntime {{version}} reads: {_UPGRADE}; or write it with "
        "model.ir_version = {found} (onnx.load, onnx.save)",
    ),
    (
        r"support for domain \S+ is till opset (\d+)",
        f"the model needs newer operators than onnxruntime {{version}} has: {_UPGRADE}; or export it with an opset of "
        "at most {found} (opset_version={found}, target_opset={found})",
    ),
    (
        r"External data path escapes|Absolute paths? not allowed for external data",
        "the model keeps weights in a file that is not below its version directory, or an absolute path leads to it: "
        "export it again with all its files in one directory, and put them into {directory}/",
    ),
    (r"External data path does not exist: \"([^\"]+)\"", _EXTERNAL_DATA),
    (r"(?:file[_ ]size|open file)\b.*?[\[\"]([^\]\"]+)[\]\"]", _EXTERNAL_DATA),  # ONNX Runtime before 1.20
    (r"(\S+?)(?:\(-?\d+\))? is not a registered function/op", _OPERATOR),
    (r"No Op registered for (\S+) with domain_version", _OPERATOR),
    (
        r"Could not find an implementation for (\w+)",
        "onnxruntime {version} has {found} for other data types only: export the model with FP32 for this operator, or "
        + _UPGRADE,
    ),
    (
        r"of operator \(ZipMap\)",
        "the last step makes dictionaries (scikit-learn's ZipMap), and of FP32 only: export with "
        "options={{'zipmap': False}}, which gives a tensor",
    ),
    (
        r"Failed to construct locale with name:(\w+(?:\.[\w-]+?)?)(?=locale::|:|$)",
        "the model lowers text by the rules of the locale {found}, which this machine lacks: export the model with the "
        "locale C.UTF-8 (skl2onnx: options={{'tfidfvectorizer__locale': 'C.UTF-8'}}), or install it: apt-get install "
        "locales && localedef -i {language} -f {encoding} {found}",
    ),
)
_NO_MODEL = re.compile(r"Protobuf parsing failed|ModelProto does not have a graph|No graph was found")


def advice_on(text: str, path: Path, version: str, name: str) -> str:
    """Return what to do about an error of the library; "" = the text says it all.

    Args:
        text: of the error.
        path: the model's file.
        version: of the library.
        name: of the model.
    """
    for pattern, advice in _BY_TEXT:
        if match := re.search(pattern, text):
            found = "".join(match.groups())
            language, _, encoding = found.partition(".")
            return advice.format(
                found=found,
                base=Path(found).name,
                language=language,
                encoding=encoding or "UTF-8",
                version=version,
                file=path.name,
                directory=f"{quote(name)}/{path.parent.name}",
            )
    return _on_content(path) if _NO_MODEL.search(text) else ""


def _on_content(path: Path) -> str:
    """Return what a file that is no ONNX model is instead, and the fix."""
    try:
        head, size = read_head(path)
    except OSError:
        return ""
    if not size:
        return f"the file is empty (0 bytes): {COPY_AGAIN}"
    if found := find_kind(head, _KINDS):
        kind, fix = found
        return f"the file is {size} bytes and is {kind}: {fix}"
    return f"the file is {size} bytes and is no ONNX model, or not all of one: {COPY_AGAIN}"
