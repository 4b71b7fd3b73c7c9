"""The kind of a model's file, from its first bytes and the names in its archive. Pure, without torch.

PyTorch has one container for all its files, a ZIP archive, so their endings say little: a checkpoint of `torch.save`
is often named model.pt, and holds no program.
"""

from __future__ import annotations

import contextlib
import json
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from pathlib import Path

from edge_serve.backends.file_kinds import COPY_AGAIN, FileKinds, find_kind, read_head
from edge_serve.errors import Internal


class FileKind(Enum):
    """The kind of a model's file. The values name it in log lines and errors."""

    SCRIPT = "TorchScript"
    EXPORTED = "an exported program"
    COMPILED = "an AOTInductor package"


_SAVE = 'torch.jit.script(model).save("model.pt"), or torch.export.save(torch.export.export(model, ...), "model.pt2")'

#: instructions in the words of AOTInductor -> in those of the kernel
_INSTRUCTIONS = {
    "AVX2": "avx2", "AVX512": "avx512f", "AVX512_VNNI": "avx512_vnni", "AVX512_BF16": "avx512_bf16",
    "AMX": "amx_tile", "AMX_FP16": "amx_fp16", "SVE256": "sve", "ASIMD": "asimd",
}  # fmt: skip

#: first bytes of a file that is no archive, the kind of the file, and the fix
_OTHERS: FileKinds = (
    (rb"\s*<(?:\?xml|net)", "an OpenVINO model", 'name it model.xml, beside its .bin, and write backend: "openvino"'),
    (rb"....PTMF", "a model for the mobile runtime", f"write it with {_SAVE}"),
    (rb"....TFL3", "a TensorFlow Lite model", 'name it model.tflite, and write backend: "openvino"'),
    (rb"\x89HDF", "an HDF5 file, as of Keras", 'write a SavedModel, and backend: "tensorflow"'),
    (rb"\x7fELF", "a shared library", "package it with torch._inductor.aoti_compile_and_package"),
    (rb"\x80[\x02-\x05]", "a pickle, as of torch.save", f"it holds weights without a program: write it with {_SAVE}"),
    (rb".{8}\{\"", "weights in safetensors format", f"they have no program: write it with {_SAVE}"),
    (rb"GGUF", "weights in GGUF format", "run the language model in a decoupled model.py (docs/generative.md)"),
    (rb"\x08[\x01-\x20](?:\x12|\x1a|\x22|\x2a|\x32|\x3a|\x42)", "an ONNX model",
     'name it model.onnx, and write backend: "onnxruntime"'),
    (rb"\s*[{\[]", "JSON text", f"write the model with {_SAVE}"),
)  # fmt: skip


def kind_of(path: Path, model: str) -> FileKind:
    """Return the kind of a model's file.

    Raises:
        Internal: it is no model of PyTorch, or a damaged one.
    """
    with _opened(path, model) as archive:
        names = [_inside(name) for name in archive.namelist()]
    return _kind_by_names(names, path, model)


@contextlib.contextmanager
def _opened(path: Path, model: str) -> Iterator[zipfile.ZipFile]:
    """Open a model's file as an archive.

    Raises:
        Internal: it is none, or is damaged at the members that are read inside the context.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except OSError as error:
        raise Internal(f"failed to load model '{model}': '{path}' cannot be read: {error.strerror}") from error
    except Exception as error:  # the module raises many kinds for damaged bytes
        raise Internal(f"failed to load model '{model}': {_on_content(path)}") from error


def _inside(name: str) -> str:
    """Return a name below the archive's one folder, where there is one."""
    return name.partition("/")[2] or name


def _kind_by_names(names: list[str], path: Path, model: str) -> FileKind:
    if any(name.startswith(("data/aotinductor/", "aotinductor/")) for name in names):
        return FileKind.COMPILED
    if "serialized_exported_program.json" in names or any(re.match(r"models/.+\.json\Z", name) for name in names):
        _refuse_pickled(names, path, model)
        return FileKind.EXPORTED
    if "constants.pkl" in names or any(name.startswith("code/") for name in names):
        return FileKind.SCRIPT
    text = f"'{path}' is a ZIP archive, and no model of PyTorch: write it with {_SAVE}"
    if "data.pkl" in names:
        text = f"'{path}' is a checkpoint of torch.save, which holds weights without a program: write it with {_SAVE}"
    raise Internal(f"failed to load model '{model}': {text}")


def _refuse_pickled(names: list[str], path: Path, model: str) -> None:
    """Refuse an exported program with pickled objects: torch unpickles them, and a pickle can run any code."""
    found = [name for name in names if name.startswith("data/constants/opaque_obj_")]
    if found:
        raise Internal(
            f"failed to load model '{model}': '{path}' holds the pickled Python object {found[0]}, which could run any "
            "code: export the model without it"
        )


def check_whole(path: Path, model: str) -> None:
    """Read through a package. torch does not look at its checksums, and damaged machine code ends the worker.

    Raises:
        Internal: it is damaged.
    """
    with _opened(path, model) as archive:
        if (name := archive.testzip()) is not None:
            raise zipfile.BadZipFile(name)


def target_of(path: Path, model: str) -> dict[str, str]:
    """Return what an AOTInductor package was compiled for, as its metadata say. Raises Internal."""
    with _opened(path, model) as archive:
        for name in archive.namelist():
            if name.endswith("_metadata.json"):
                return {str(key): str(value) for key, value in json.loads(archive.read(name)).items()}
    return {}


def source_of(path: Path, model: str) -> str:
    """Return the C++ code of an AOTInductor package that calls the kernels and checks the inputs; "" = it lacks it.

    Raises:
        Internal: the package is damaged.
    """
    with _opened(path, model) as archive:
        names = [name for name in archive.namelist() if name.endswith(".wrapper.cpp")]
        return archive.read(names[0]).decode(errors="replace") if len(names) == 1 else ""


def check_target(target: Mapping[str, str], model: str, machine: str, instructions: Collection[str]) -> None:
    """Check that this machine can run a package, because an instruction that it lacks would kill the worker.

    Args:
        machine: its architecture.
        instructions: of its processor, as the kernel names them; empty = unknown.

    Raises:
        Internal: it cannot.
    """
    compiled_for = target.get("AOTI_MACHINE") or machine
    named = _INSTRUCTIONS.items() if instructions and target.get("AOTI_DEVICE_KEY") == "cpu" else ()
    wanted = {name for name, flag in named if flag not in instructions}
    missing = sorted(wanted.intersection(target.get("AOTI_CPU_ISA", "").upper().split()))
    if compiled_for != machine or missing:
        lacks = f", which has no {', '.join(missing)}" if missing else ""
        raise Internal(
            f"failed to load model '{model}': it was compiled for {compiled_for} with "
            f"{target.get('AOTI_CPU_ISA') or 'no special instructions'}, and this machine is {machine}{lacks}: compile "
            "it on such a machine"
        )


def instructions_here() -> frozenset[str]:
    """Return the instructions of this machine's processor, as the kernel names them; empty where it does not."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    match = re.search(r"^(?:flags|Features)\s*:(.*)", text, re.MULTILINE)
    return frozenset(match[1].split() if match else ())


def _on_content(path: Path) -> str:
    """Return what a file that is no archive is instead, and the fix."""
    head, size = read_head(path)
    if not size:
        return f"'{path}' is empty (0 bytes): {COPY_AGAIN}"
    if found := find_kind(head, _OTHERS):
        kind, fix = found
        return f"'{path}' is {kind}: {fix}"
    if head.startswith(b"PK"):
        return f"'{path}' ({size} bytes) is a damaged archive, or not all of one: {COPY_AGAIN}"
    return f"'{path}' ({size} bytes) is no model of PyTorch, or a damaged one: {COPY_AGAIN}"
