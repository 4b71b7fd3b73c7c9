"""The kind of a file, from its content."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from edge_serve.errors import Internal
from packs.pytorch.archive import FileKind, check_target, instructions_here, kind_of, source_of, target_of

ONNX = bytes.fromhex("080a12076578706f72746572")


def archive(path: Path, *names: str, folder: str = "model") -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for name in names:
            made.writestr(f"{folder}/{name}" if folder else name, b"x")
    return path


@pytest.mark.parametrize(
    ("kind", "names", "folder"),
    [
        (FileKind.SCRIPT, ("data.pkl", "code/__torch__.py", "constants.pkl", "version"), "model"),
        (FileKind.SCRIPT, ("data.pkl", "constants.pkl"), "anything"),
        (FileKind.EXPORTED, ("archive_format", "models/model.json", "data/weights/weight_0"), "model"),
        (FileKind.EXPORTED, ("serialized_exported_program.json", "version"), ""),  # of torch 2.7 and older
        (FileKind.COMPILED, ("archive_format", "data/aotinductor/model/x.so"), "model"),
        (FileKind.COMPILED, ("data/aotinductor/model/x.so", "models/model.json"), "model"),
    ],
)
def test_archives_are_told_apart_by_their_names(
    tmp_path: Path, kind: FileKind, names: tuple[str, ...], folder: str
) -> None:
    assert kind_of(archive(tmp_path / "model.pt", *names, folder=folder), "m") is kind


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", r"is empty \(0 bytes\): copy or export it again"),
        (ONNX, r'is an ONNX model: name it model.onnx, and write backend: "onnxruntime"'),
        (b"\x80\x02}q\x00.", r"is a pickle, as of torch.save: it holds weights without a program"),
        (b"\x20\0\0\0PTMF", "is a model for the mobile runtime"),
        (b"\x20\0\0\0TFL3", 'write backend: "openvino"'),
        (b"\x89HDF\r\n", "HDF5"),
        (b"\x7fELF\x02", "a shared library: package it with torch._inductor.aoti_compile_and_package"),
        (b'\x40\0\0\0\0\0\0\0{"weight"', "safetensors"),
        (b"<!DOCTYPE html><html>", "a web page"),
        (b'<?xml version="1.0"?><net name="x">', "an OpenVINO model"),
        (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
        (b"\x1f\x8b\x08", "gunzip it"),
        (b"PK\x03\x04" + bytes(40), r"\(44 bytes\) is a damaged archive, or not all of one: copy"),
        (b"\xff\xfe noise", "is no model of PyTorch, or a damaged one"),
    ],
)
def test_other_files_are_named_with_the_fix(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(content)

    with pytest.raises(Internal, match=r"^failed to load model 'm': '.*/model\.pt' .*" + text):
        kind_of(path, "m")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (("data.pkl", "data/0", "version"), "is a checkpoint of torch.save, which holds weights without a program"),
        (("readme.txt",), "is a ZIP archive, and no model of PyTorch"),
        (("models/model.json", "data/constants/opaque_obj_0"), "holds the pickled Python object data/constants/opaque"),
    ],
)
def test_archives_without_a_program_are_refused(tmp_path: Path, names: tuple[str, ...], text: str) -> None:
    with pytest.raises(Internal, match=text):
        kind_of(archive(tmp_path / "model.pt", *names), "m")


def test_half_an_archive_is_damaged(tmp_path: Path) -> None:
    whole = archive(tmp_path / "whole.pt", "data.pkl", "code/x.py").read_bytes()
    half = tmp_path / "model.pt"
    half.write_bytes(whole[: len(whole) // 2])

    with pytest.raises(Internal, match="is a damaged archive, or not all of one"):
        kind_of(half, "m")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(Internal, match=r"cannot be read: Is a directory"):
        kind_of(tmp_path, "m")


TARGET = {"AOTI_DEVICE_KEY": "cpu", "AOTI_MACHINE": "x86_64", "AOTI_CPU_ISA": "AVX512 AVX512_VNNI"}


def test_a_package_says_what_it_was_compiled_for(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("model/data/aotinductor/model/x.wrapper_metadata.json", json.dumps(TARGET))
    assert target_of(path, "m") == TARGET
    assert target_of(archive(tmp_path / "bare.pt2", "data/aotinductor/model/x.so"), "m") == {}


@pytest.mark.parametrize("read", [target_of, source_of])
def test_damage_inside_a_package_is_named(tmp_path: Path, read: Callable[[Path, str], object]) -> None:
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w") as made:
        for name in ("x.wrapper.cpp", "x_metadata.json"):
            made.writestr(f"m/data/aotinductor/model/{name}", b"{}")
    path.write_bytes(path.read_bytes().replace(b"{}", b"{ "))
    assert kind_of(path, "m") is FileKind.COMPILED
    with pytest.raises(Internal, match=r"'m': '.*' \(.* bytes\) is a damaged archive, or not all of one: copy"):
        read(path, "m")


def test_an_archive_of_a_later_format_is_named(tmp_path: Path) -> None:
    path = archive(tmp_path / "model.pt", "constants.pkl")
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 6] = 99  # the version of ZIP that reading needs
    path.write_bytes(content)
    with pytest.raises(Internal, match="is a damaged archive, or not all of one"):
        kind_of(path, "m")


@pytest.mark.parametrize(
    ("target", "machine", "instructions", "text"),
    [
        (
            TARGET,
            "x86_64",
            {"avx2"},
            "x86_64 with AVX512 AVX512_VNNI, and this machine is x86_64, which has no AVX512, ",
        ),
        (TARGET, "x86_64", {"avx2", "avx512f"}, "which has no AVX512_VNNI: compile it on such a machine"),
        (TARGET, "aarch64", {"asimd"}, "compiled for x86_64 with AVX512 AVX512_VNNI, and this machine is aarch64"),
    ],
)
def test_a_package_for_another_processor_is_refused_before_it_runs(
    target: dict[str, str], machine: str, instructions: set[str], text: str
) -> None:
    with pytest.raises(Internal, match=f"^failed to load model 'm': it was compiled for .*{text}|{text}"):
        check_target(target, "m", machine, instructions)


def test_a_package_for_this_processor_passes() -> None:
    check_target(TARGET, "m", "x86_64", {"avx2", "avx512f", "avx512_vnni"})
    check_target(TARGET, "m", "x86_64", set())  # the kernel does not say
    check_target({}, "m", "aarch64", {"asimd"})  # of an older torch
    check_target({**TARGET, "AOTI_DEVICE_KEY": "cuda"}, "m", "x86_64", {"avx2"})
    assert instructions_here()
