"""Advice on a file that OpenVINO cannot read: its cause, by the library's text or the file's first bytes, and a fix."""

from __future__ import annotations

import re
from pathlib import Path

from edge_serve.backends.file_kinds import COPY_AGAIN, FileKinds, find_kind, read_head

#: what a file of this name holds; then it is damaged, or what it describes is not known
_EXPECTED = {".onnx": "an ONNX model, by its first bytes", ".tflite": "a TensorFlow Lite model", ".xml": "XML"}
#: the library's text, and the advice
_BY_TEXT = (
    (r"[Ww]eights.*(?:cannot be found|empty|not found)|bin file", "put the file of weights, {stem}.bin, beside {file}"),
    (r"pdiparams|[Pp]arams", "put the file of weights, {stem}.pdiparams, beside {file}"),
    (
        r"does not support the following|[Nn]o conversion rule|not supported operations|Cannot create .* layer",
        "export the model without these operators, or name a library that has them in the parameter CPU_EXTENSION_PATH",
    ),
)  # fmt: skip
#: first bytes, the kind of the file, and the fix
_KINDS: FileKinds = (
    (rb"PK\x03\x04", "a ZIP archive, as PyTorch writes", 'name it model.pt or model.pt2, and write backend: "pytorch"'),
    (rb"....TFL3", "a TensorFlow Lite model", "name it model.tflite"),
    (rb"\x89HDF", "an HDF5 file, as of Keras", "save it as a SavedModel (model.export), or convert it with tf2onnx"),
    (rb"\x80[\x02-\x05]", "a Python pickle", "export the model to a format of its framework"),
    (rb"\s*<\?xml", "XML", "export the model again (ovc, or openvino.save_model), with its .bin"),
    (rb"\s*[{\[]", "JSON text", "export the model to OpenVINO's format, or to ONNX"),
    (rb"\x08[\x01-\x0f]", "an ONNX model, by its first bytes", "name it model.onnx, with backend: \"openvino\""),
)  # fmt: skip


def advice_on(text: str, path: Path) -> str:
    """Return what to do about a model that was not read; "" = the text says it all.

    Args:
        text: of the library.
        path: of the model's file or directory.
    """
    for pattern, advice in _BY_TEXT:
        if re.search(pattern, text) and not _content(path):
            return advice.format(stem=path.stem, file=path.name)
    return _content(path)


def _content(path: Path) -> str:
    """Return what a file is that has the wrong name or is damaged; "" = it may be what its name says."""
    if path.is_dir():
        is_saved = (path / "saved_model.pb").is_file()
        return "" if is_saved else f"the directory holds no saved_model.pb: {COPY_AGAIN}"
    try:
        head, size = read_head(path)
    except OSError:
        return ""
    if not size:
        return f"the file is empty (0 bytes): {COPY_AGAIN}"
    kind, fix = find_kind(head, _KINDS) or ("", "")
    return "" if kind in ("", _EXPECTED.get(path.suffix)) else f"the file is {size} bytes and is {kind}: {fix}"
