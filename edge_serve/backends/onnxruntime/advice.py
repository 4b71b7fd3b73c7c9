"""Advice on an ONNX file that does not load: its cause, from the library's text or the file's first bytes, and a fix.

Worker's side: the standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from shlex import quote

#: bytes of a file that tell its kind
_HEAD_BYTES = 512

#: stands for the model's name in advice
_MODEL = "<model>"
_UPGRADE = "upgrade the library: pip install --upgrade onnxruntime"
_COPY_AGAIN = "copy or export it again, and compare its size with the original's"


def advice_on(text: str, path: Path, version: str, name: str) -> str:
    """Return what to do about an error of the library; "" = the text says it all.

    Args:
        text: of the error.
        path: the model's file.
        version: of the library.
        name: of the model.
    """
    for pattern, advise in _BY_TEXT:
        if match := pattern.search(text):
            return advise(match, path, version).replace(_MODEL, quote(name))
    return ""


def _on_content(match: re.Match[str], path: Path, version: str) -> str:
    """The file is no ONNX model: name its kind."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return ""
    start = f"the file is {size} bytes"
    if not size:
        return f"the file is empty (0 bytes): {_COPY_AGAIN}"
    for mark, kind, fix in _KINDS:
        if re.match(mark, head, re.IGNORECASE | re.DOTALL):
            return f"{start} and is {kind}: {fix}"
    return f"{start} and is no ONNX model, or not all of one: {_COPY_AGAIN}"


#: first bytes, the kind of the file, and the fix
_KINDS: tuple[tuple[bytes, str, str], ...] = (
    (rb"version https://git-lfs", "a Git LFS pointer, not the model", "git lfs pull"),
    (rb"(?:\.\./)*\.?/?(?:\.git/)?annex/objects", "a git-annex pointer, not the model", "git annex get ."),
    (rb"\s*<(?:!doctype|html|head|\?xml)", "a web page, not the model", "download the file itself (its \"raw\" link)"),
    (rb"PK\x03\x04", "a ZIP archive (torch.save writes one, too)",
     "unpack it, or export the PyTorch model with torch.onnx.export"),
    (rb"\x1f\x8b", "compressed by gzip", "gunzip it"),
    (rb"....TFL3", "a TensorFlow Lite model", "python -m tf2onnx.convert --tflite FILE --output model.onnx"),
    (rb"\x89HDF", "an HDF5 file, as of Keras", "convert the Keras model with tf2onnx"),
    (rb"....ORTM", "a model in ORT format", "name it model.ort, and write default_model_filename: \"model.ort\""),
    (rb"\x80[\x02-\x05]", "a Python pickle", "convert the model with skl2onnx.to_onnx or torch.onnx.export"),
    (rb"\s*[{\[]", "JSON text", "export the model to ONNX"),
)  # fmt: skip


def _on_format(match: re.Match[str], path: Path, version: str) -> str:
    newest = match[1]
    return (
        f"the file is of a newer ONNX format than onnxruntime {version} reads: {_UPGRADE}; or write it with "
        f"model.ir_version = {newest} (onnx.load, onnx.save)"
    )


def _on_opset(match: re.Match[str], path: Path, version: str) -> str:
    return (
        f"the model needs newer operators than onnxruntime {version} has: {_UPGRADE}; or export it with an opset of at "
        f"most {match[2]} (opset_version={match[2]}, target_opset={match[2]})"
    )


def _on_external_data(match: re.Match[str], path: Path, version: str) -> str:
    name = Path(match[1]).name
    return (
        f"the model keeps its weights in a file of their own, which is not beside {path.name}: put '{name}' into "
        f"{_MODEL}/{path.parent.name}/ under the name that it was exported with"
    )


def _on_escape(match: re.Match[str], path: Path, version: str) -> str:
    return (
        "the model keeps weights in a file that is not below its version directory, or an absolute path leads to it: "
        f"export it again with all its files in one directory, and put them into {_MODEL}/{path.parent.name}/"
    )


def _on_operator(match: re.Match[str], path: Path, version: str) -> str:
    return (
        f"onnxruntime {version} has no operator {match[1]}: name the library that has it in config.pbtxt, "
        'model_operations { op_library_filename: "PATH" }, or export the model without it'
    )


def _on_implementation(match: re.Match[str], path: Path, version: str) -> str:
    return (
        f"onnxruntime {version} has {match[1]} for other data types only: export the model with FP32 for this "
        f"operator, or {_UPGRADE}"
    )


def _on_zipmap(match: re.Match[str], path: Path, version: str) -> str:
    return (
        "the last step makes dictionaries (scikit-learn's ZipMap), and of FP32 only: export with "
        "options={'zipmap': False}, which gives a tensor"
    )


def _on_locale(match: re.Match[str], path: Path, version: str) -> str:
    language, _, encoding = match[1].partition(".")
    return (
        f"the model lowers text by the rules of the locale {match[1]}, which this machine lacks: export the model with "
        "the locale C.UTF-8 (skl2onnx: options={'tfidfvectorizer__locale': 'C.UTF-8'}), or install it: "
        f"apt-get install locales && localedef -i {language} -f {encoding or 'UTF-8'} {match[1]}"
    )


_BY_TEXT: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], Path, str], str]], ...] = (
    (re.compile(r"Unsupported model IR version: \d+, max supported IR version: (\d+)"), _on_format),
    (re.compile(r"support for domain (\S+) is till opset (\d+)"), _on_opset),
    (re.compile(r"External data path escapes|Absolute paths? not allowed for external data"), _on_escape),
    (re.compile(r"External data path does not exist: \"([^\"]+)\""), _on_external_data),
    (
        re.compile(r"(?:file[_ ]size|open file)\b.*?[\[\"]([^\]\"]+)[\]\"]"),
        _on_external_data,
    ),  # ONNX Runtime before 1.20
    (re.compile(r"(\S+?)(?:\(-?\d+\))? is not a registered function/op"), _on_operator),
    (re.compile(r"No Op registered for (\S+) with domain_version"), _on_operator),
    (re.compile(r"Could not find an implementation for (\w+)"), _on_implementation),
    (re.compile(r"of operator \(ZipMap\)"), _on_zipmap),
    (re.compile(r"Failed to construct locale with name:(\w+(?:\.[\w-]+?)?)(?=locale::|:|$)"), _on_locale),
    (re.compile(r"Protobuf parsing failed|ModelProto does not have a graph|No graph was found"), _on_content),
)
