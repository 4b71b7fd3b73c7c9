"""Advice on a model directory in which no model was found: names what lies there, and the command that puts it right.

An error has Triton's own sentence first, then this. Only names are read, never the content of a file. A model goes by
its name in the repository: its directory, where a link leads to it, may have another name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path, PurePath
from shlex import quote

from edge_serve.records import frozen

CONFIG_FILE = "config.pbtxt"

#: names of one directory in a message; more are counted
_MOST_NAMES = 5
#: entries of a directory that are looked at
_MOST_ENTRIES = 1000

_VERSION_LIKE = re.compile(r"(?:v|ver|version)?[-_. ]?0*(\d{1,18})(?:\.\d+)*\Z", re.IGNORECASE | re.ASCII)
_CONFIG_LIKE = re.compile(r"config\.(?:pbtxt?|prototxt|pbtxt\.txt|pb|txt)\Z", re.IGNORECASE)

#: a virtual environment has this file
_ENVIRONMENT_FILE = "pyvenv.cfg"
_ELSEWHERE = "keep it outside of the model repository, which is for models only"

_IN_PYTHON = 'or load it in {version}/model.py with backend: "python"'
#: ending of a file or directory -> its kind, and how to serve it
_OTHER_FORMATS: dict[tuple[str, ...], tuple[str, str]] = {
    ("saved_model.pb",): ("a TensorFlow SavedModel", "move it and its variables/ into {version}/model.savedmodel/"),
    (".savedmodel",): ("a TensorFlow SavedModel", "mv {path} {version}/model.savedmodel and remove the line backend"),
    (".graphdef", ".pb"): ("a TensorFlow graph", "if it is frozen: mv {path} {version}/model.graphdef"),
    (".tflite",): ("a TensorFlow Lite model", 'write backend: "openvino" default_model_filename: "{name}"'),
    (".xml", ".pdmodel"): ("a model of OpenVINO", 'write backend: "openvino" default_model_filename: "{name}"'),
    (".h5", ".keras"): (
        "a Keras model", "save it with model.export to {version}/model.savedmodel, or convert it with tf2onnx to "
        f"{{version}}/model.onnx, {_IN_PYTHON}",
    ),
    (".pt", ".pt2"): ("a PyTorch model", 'write backend: "pytorch" default_model_filename: "{name}"'),
    (".pth", ".ckpt"): (
        "a checkpoint of PyTorch", "export the network with torch.jit or torch.export to {version}/model.pt or "
        f"{{version}}/model.pt2, or with torch.onnx.export to {{version}}/model.onnx, {_IN_PYTHON}",
    ),
    (".pkl", ".pickle", ".joblib"): (
        "a pickled model", f"convert it with skl2onnx.to_onnx to {{version}}/model.onnx, {_IN_PYTHON}",
    ),
    (".engine", ".trt"): ("a TensorRT engine", "rename it to {version}/model.plan"),
    (".safetensors", ".gguf", ".npz"): ("weights without a model", "load them in {version}/model.py"),
    (".zip", ".tar", ".gz", ".tgz", ".xz"): ("an archive", "unpack it into {version}/"),
}  # fmt: skip
#: ending -> backend that loads it, and the file name that it expects
_SERVED = {
    ".onnx": ("onnxruntime", "model.onnx"), ".py": ("python", "model.py"), ".plan": ("tensorrt", "model.plan"),
    ".pt": ("pytorch", "model.pt"), ".pt2": ("pytorch", "model.pt2"), ".tflite": ("openvino", "model.tflite"),
    ".graphdef": ("tensorflow", "model.graphdef"), ".ubj": ("fil", "xgboost.ubj"), ".tl": ("fil", "checkpoint.tl"),
}  # fmt: skip


@frozen
class _Folder:
    """Names in a directory. Hidden ones are left out.

    Attributes:
        shown: the directory in a message, as seen from the repository.
    """

    path: Path
    shown: str
    files: Sequence[str]
    folders: Sequence[str]

    def __str__(self) -> str:
        """Return the names for a message."""
        names = sorted([*self.files, *(f"{name}/" for name in self.folders)])
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        return ", ".join(names[:_MOST_NAMES]) + more

    def ending(self, *endings: str) -> list[str]:
        """Return the files and directories whose names end so."""
        return [name for name in [*self.files, *self.folders] if name.lower().endswith(endings)]


def advice_on_backend(model: Path, name: str) -> str:
    """Return why no backend can be told from the files of a model, and what to do."""
    found = _read(model, name)
    versions = _versions(found)
    if not versions:
        return _advice_without_version(found)
    version = f"{name}/{versions[0]}"
    parts = [_advice_on_files(_read(model / versions[0], version)), advice_on_config(model, name)]
    return "; ".join(filter(None, parts))


def advice_on_versions(model: Path, name: str, *, ensemble: bool, policy: str) -> str:
    """Return why a model has no version to serve, and what to do.

    Args:
        policy: which versions the configuration asks for, as text.
    """
    found = _read(model, name)
    versions = _versions(found)
    if versions:
        return f"version_policy asks for {policy}, and {name}/ holds {', '.join(versions)}"
    if ensemble:
        path = quote(f"{name}/1")
        return (
            f"an ensemble needs a version directory too, which stays empty: mkdir {path} (git does not keep empty "
            f"directories: touch {path}/.gitkeep)"
        )
    return _advice_without_version(found)


def advice_on_file(directory: Path, expected: str, name: str) -> str:
    """Return what a version directory of the model `name` holds in place of the file `expected`, and what to do."""
    found = _read(directory, f"{name}/{directory.name}")
    return _advice_on_files(found, expected)


def advice_on_label_file(model: Path, name: str, file: str) -> str:
    """Return where a file of labels lies in place of where `label_filename` looks for it, and what to do."""
    inside = file.replace("\\", "/")
    if inside != file:
        return f'a path is written with /: label_filename: "{inside}"'
    found = _read(model, name)
    near = [other for other in found.files if other.lower() == inside.lower()]
    near += [f"{version}/{inside}" for version in _versions(found) if (model / version / inside).is_file()]
    if near:
        return f'write label_filename: "{near[0]}", or {_move(f"{name}/{near[0]}", f"{name}/{file}")}'
    return f"label_filename is looked for in the directory of the model: put the file at {name}/{file}"


def advice_on_config(model: Path, name: str) -> str:
    """Return which file looks like the configuration and is not read, and what to do; "" = there is none."""
    found = _read(model, name)
    if CONFIG_FILE in found.files:
        return ""
    near = [file for file in found.files if _CONFIG_LIKE.match(file)]
    inside = [f"{version}/{CONFIG_FILE}" for version in _versions(found) if (model / version / CONFIG_FILE).is_file()]
    for file in [*near, *inside]:
        path = f"{name}/{file}"
        return f"{path} is not read, expected {name}/{CONFIG_FILE}: {_move(path, f'{name}/{CONFIG_FILE}')}"
    return ""


def advice_on_repository(root: Path) -> str:
    """Return why a repository has no models: it may look like a model or a version. Return what was expected, too."""
    found = _read(root, root.name)
    parent = root.absolute().parent
    if CONFIG_FILE in found.files or _versions(found):
        return f"'{root}' looks like a model: give its parent, --model-repository={quote(str(parent))}"
    if found.ending(*_SERVED) and root.name.isdigit():
        return f"'{root}' looks like a version of a model: give --model-repository={quote(str(parent.parent))}"
    if found.ending(*_SERVED):
        return f"'{root}' holds {found}, expected a directory for each model, such as {root}/m/1/model.onnx"
    return f"'{root}' has no model directory, expected such as {root}/m/1/model.onnx"


def advice_on_repository_file(file: Path) -> str:
    """Return the command that makes a repository from a file that was given as one; "" = none does."""
    if file.suffix.lower() != ".onnx":
        return ""
    command = f"edge-serve init {quote(file.stem)} --onnx {quote(str(file))} --model-repository models"
    return f"make a repository from it: {command}"


def refusal_of(error: OSError, model: Path) -> str:
    """Return why the system does not let a model be read, and the command that gives a right that is missing.

    Args:
        model: its directory.
    """
    text = error.strerror or str(error)
    if not isinstance(error, PermissionError):
        return text
    return f"{text}; give the server's user the right to read it: chmod -R o+rX {quote(os.path.abspath(model))}"


def _advice_without_version(found: _Folder) -> str:
    model, name = found.path, found.shown
    if name.isdigit() and found.ending(*_SERVED):
        root = model.absolute().parent
        return (
            f"'{name}' is named like a version, and '{root}' looks like a model: give its parent, "
            f"--model-repository={quote(str(root.parent))}"
        )
    if _ENVIRONMENT_FILE in found.files:
        return f"{name}/ is a virtual environment of Python, not a model: {_ELSEWHERE}"
    if inner := [folder for folder in found.folders if is_model(model / folder)]:
        return _advice_on_inner(found, inner)
    if misnamed := _misnamed_versions(found):
        return misnamed[0]
    files = found.ending(*_SERVED)
    folders = [folder for folder in found.folders if _read(model / folder, "").ending(*_SERVED)]
    if len(folders) == 1 and not files:
        move = _move(f"{name}/{folders[0]}", f"{name}/1")
        return f"{name}/{folders[0]} is no version directory: its name must be a number: {move}"
    if not folders and (file := _models_file(files)):
        move = _move(f"{name}/{file}", f"{name}/1/{_expected_name(file)}")
        return f"{name}/ holds {file} and no version directory such as {name}/1: mkdir {quote(f'{name}/1')} && {move}"
    made = (
        f"there is no version directory such as {name}/1: mkdir {quote(f'{name}/1')} and put the model's file there, "
        "as model.onnx or model.py (git does not keep empty directories)"
    )
    return made if CONFIG_FILE in found.files else f"{made}; if {name}/ is no model, {_ELSEWHERE}"


def advice_on_ignored(model: Path, name: str) -> list[str]:
    """Return the directories beside the versions of a model that look like versions and are not read."""
    found = _read(model, name)
    return _misnamed_versions(found) if _versions(found) else []


def _misnamed_versions(found: _Folder) -> list[str]:
    texts = []
    for folder in found.folders:
        if not _is_version(folder) and (like := _VERSION_LIKE.match(folder)):
            path = f"{found.shown}/{folder}"
            move = "" if like[1] in found.folders else f": {_move(path, f'{found.shown}/{like[1]}')}"
            texts.append(f"{path} is no version directory: its name must be a number without zeros before it{move}")
    return texts


def _advice_on_inner(found: _Folder, inner: Sequence[str]) -> str:
    """Return the advice on a directory that holds models, `inner`: it may be a repository that was given as a model."""
    name = found.shown
    path = quote(f"{name}/{inner[0]}")
    move = f"mv -n {path}/* {quote(name)}/ && rmdir {path}"
    if CONFIG_FILE in found.files and len(inner) == 1:
        return f"{name}/{inner[0]}/ looks like the model itself: {move}"
    if CONFIG_FILE in found.files:
        folders = ", ".join(f"{folder}/" for folder in inner[:_MOST_NAMES])
        return f"{name}/ holds {folders}, expected version directories such as {name}/1: move those of one: {move}"
    advice = f"'{found.path}' looks like a model repository: give --model-repository={quote(str(found.path))}"
    return advice if len(inner) > 1 else f"{advice}; if {name}/{inner[0]} is the model '{name}' itself: {move}"


def _models_file(files: Sequence[str]) -> str:
    """Return the one of `files` that is a model's file; "" = any of several may be."""
    named = [file for file in files if file == _expected_name(file)] or files
    return named[0] if len(named) == 1 else ""


def _expected_name(file: str) -> str:
    return _SERVED[PurePath(file).suffix.lower()][1]


def is_model(directory: Path) -> bool:
    """Return whether a directory of a repository looks like a model: it has a configuration or a version."""
    found = _read(directory, "")
    return CONFIG_FILE in found.files or bool(_versions(found))


def _advice_on_files(found: _Folder, expected: str = "") -> str:
    """Say what a version directory holds, and how to serve it.

    Args:
        expected: the only file name that will do; "" = that of any backend.
    """
    names = expected or "model.onnx or model.py"
    if not found.files and not found.folders:
        return f"{found.shown}/ is empty: put the model's file there, as {names}"
    if expected in found.files:  # and yet the caller does not find it
        return f"{found.shown}/{expected} is a link whose target does not exist: copy the file itself there"
    holds = f"{found.shown}/ holds {found}; expected {names}"
    endings = [PurePath(expected).suffix] if expected else list(_SERVED)
    near = [name for name in found.files if PurePath(name).suffix.lower() in endings]
    if len(near) == 1:
        return f"{holds}: {_rename(found.shown, near[0], expected)}"
    if near:
        return f"{holds}: rename one of them, or name it in config.pbtxt: {_named(near[0])}"
    if other := _other_format(found):
        return f"{holds}: {other}"
    for folder in found.folders:
        if _read(found.path / folder, "").ending(*endings):
            inner = quote(f"{found.shown}/{folder}")
            return f"{holds}: mv {inner}/* {quote(found.shown)}/ && rmdir {inner}"
    if not expected:
        return f"{holds}, or backend and default_model_filename in config.pbtxt"
    return f"{holds}, or default_model_filename in config.pbtxt"


def _rename(version: str, name: str, expected: str) -> str:
    target = expected or _expected_name(name)
    move = _move(f"{version}/{name}", f"{version}/{target}")
    if name.lower() == target.lower():
        return f"{move} (upper and lower case differ)"
    return f"{move}, or write in config.pbtxt: {_named(name)}"


def _named(name: str) -> str:
    backend = _SERVED.get(PurePath(name).suffix.lower(), ("",))[0]
    return f'backend: "{backend}" default_model_filename: "{name}"'


def _other_format(found: _Folder) -> str:
    for endings, (kind, way) in _OTHER_FORMATS.items():
        for name in found.ending(*endings):
            path = found.shown if name == "saved_model.pb" else f"{found.shown}/{name}"
            return f"{name} is {kind}: {way.format(path=quote(path), version=quote(found.shown), name=name)}"
    return ""


def _move(source: str, target: str) -> str:
    return f"mv {quote(source)} {quote(target)}"


def _versions(found: _Folder) -> list[str]:
    return sorted((name for name in found.folders if _is_version(name)), key=int)


def _is_version(name: str) -> bool:
    return name.isascii() and name.isdigit() and (name == "0" or not name.startswith("0"))


def _read(directory: Path, shown: str) -> _Folder:
    """Return the names in `directory`; none when it cannot be read."""
    try:
        with os.scandir(directory) as entries:
            shown_ones = islice((entry for entry in entries if not entry.name.startswith(".")), _MOST_ENTRIES)
            pairs = [(entry.name, entry.is_dir()) for entry in shown_ones]
    except OSError:
        pairs = []
    files = sorted(name for name, is_folder in pairs if not is_folder)
    return _Folder(directory, shown, files, sorted(name for name, is_folder in pairs if is_folder))
