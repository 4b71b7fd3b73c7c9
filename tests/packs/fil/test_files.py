"""Files: which one a model has, and files that are damaged or of another kind. None ends the process of the tests."""

from __future__ import annotations

import contextlib
import random
import re
from pathlib import Path

import numpy as np
import pytest

from edge_serve.backends.base import InstanceSpec
from edge_serve.errors import EdgeServeError
from packs.fil.backend import FilBackend
from packs.fil.forest import load_forest
from packs.fil.formats import CHECKPOINT, FORMATS, XGBOOST_JSON, XGBOOST_UBJ, find_file
from packs.fil.library import load_treelite
from tests.packs.fil.libraries import need_models, need_treelite
from tests.packs.fil.scene import answer, case, make_model, opened, parameters, tensors

need_treelite()
MODELS = need_models()
#: case -> the text for the first half of its file
HALVES = {
    "xgboost_binary": "cannot be read as XGBoost's JSON: Provided JSON could not be parsed as XGBoost model.",
    "xgboost_ubj": "cannot be read as XGBoost's UBJSON: it has a member that Treelite does not know, or it is damaged",
    "lightgbm_binary": r"is damaged: \d+ of 60 trees, or without its end; copy the file again",
    "forest_class": r"is damaged: (tree \d+: )?it ends after \d+ bytes, where \d+ more than \d+ are announced; copy",
}
#: seeds of changes, for each kind of file
CHANGES = 25


def refusal(tmp_path: Path, name: str, content: bytes, **given: str) -> str:
    """Return why a file does not load."""
    file, *_ = case(MODELS / name)
    spec = make_model(tmp_path, file, parameters(**given))
    (spec.version_directory / file.name).write_bytes(content)
    with pytest.raises(EdgeServeError) as caught:
        opened(spec)
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("name", HALVES)
def test_half_a_file(name: str, tmp_path: Path) -> None:
    content = case(MODELS / name)[0].read_bytes()
    assert re.search(HALVES[name], refusal(tmp_path, name, content[: len(content) // 2]))


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("seed", range(CHANGES))
def test_changed_bytes_are_an_error_or_a_forest(name: str, seed: int, tmp_path: Path) -> None:
    file, _, inputs, _ = case(MODELS / name)
    content, luck = bytearray(file.read_bytes()), random.Random(seed)
    for _ in range(luck.choice([1, 3, 20])):
        place = luck.randrange(len(content) if seed % 2 else 2000)
        content[place] = luck.randrange(256)
    spec = make_model(tmp_path, file)
    (spec.version_directory / file.name).write_bytes(content)
    with contextlib.suppress(EdgeServeError):
        backend, (instance,) = opened(spec)
        (width,) = spec.config["input"][0]["dims"]
        answer(instance, np.resize(inputs[:20], (20, width)))
        backend.close()


def test_a_member_that_treelite_does_not_know(tmp_path: Path) -> None:
    file, given, inputs, _ = case(MODELS / "xgboost_binary")
    content = file.read_bytes().replace(b'"learner":{', b'"learner":{"new":[1,{"a":2}],', 1)
    assert "it has a member that Treelite does not know (at offset" in refusal(tmp_path, "xgboost_binary", content)
    spec = make_model(tmp_path, file, parameters(**given, xgboost_allow_unknown_field="true"))
    (spec.version_directory / file.name).write_bytes(content)
    _, (instance,) = opened(spec)
    assert answer(instance, inputs[:3]).shape == (3, 2)


def test_a_split_of_lightgbm_without_its_categories(tmp_path: Path) -> None:
    content = case(MODELS / "lightgbm_categorical")[0].read_bytes()
    changed = re.sub(rb"decision_type=(\d+) (\d+) 1 1 10", rb"decision_type=\1 \2 1 1 11", content, count=1)
    assert changed != content
    found = refusal(tmp_path, "lightgbm_categorical", changed)
    assert "is damaged: tree 0: a split has a set of categories that is not there" in found


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (b"", "is empty, expected XGBoost's JSON: copy the file again"),
        (b"\x80\x04\x95", "is a pickle, expected XGBoost's JSON: a pickle can run any code"),
        (b"\x08\x07\x12", 'is an ONNX file, expected XGBoost\'s JSON: write backend: "onnxruntime"'),
        (b"tree\nversion=v4\n", "looks like LightGBM's text, expected XGBoost's JSON: write parameters { key: "),
        (b"{L\0\0\0\0", 'looks like XGBoost\'s UBJSON.*string_value: "xgboost_ubj"'),
        (b"\x04\0\0\0\x08\0\0\0", "looks like a checkpoint of Treelite"),
        (b"<html>", r"is a web page, not the file itself, expected XGBoost's JSON: download the file itself"),
        (b'{"a": 1}', "it has a member that Treelite does not know"),
    ],
)
def test_files_of_another_kind(start: bytes, text: str, tmp_path: Path) -> None:
    assert re.search(text, refusal(tmp_path, "xgboost_binary", start))


def test_a_checkpoint_with_a_circle(tmp_path: Path) -> None:
    file, *_ = case(MODELS / "forest_class")
    content = file.read_bytes()
    forest = load_forest(load_treelite(), file, CHECKPOINT, False)
    at = content.index(forest.field("cleft", 0).tobytes())
    changed = content[:at] + b"\0\0\0\0" + content[at + 4 :]
    assert "is damaged: tree 0: its nodes make no tree" in refusal(tmp_path, "forest_class", changed)


def test_which_file(tmp_path: Path) -> None:
    with pytest.raises(EdgeServeError, match=r"unable to find '.*xgboost.json' for model 'm'"):
        find_file(tmp_path, {"name": "m"}, "")
    with pytest.raises(EdgeServeError, match=r"pmml not recognized as a valid serialization format\. Expected one of"):
        find_file(tmp_path, {}, "pmml")
    for form in (CHECKPOINT, XGBOOST_UBJ, XGBOOST_JSON):
        (tmp_path / form.file).touch()
        assert find_file(tmp_path, {}, "") == (tmp_path / form.file, form)
    assert find_file(tmp_path, {}, "treelite_checkpoint")[1] is CHECKPOINT
    (tmp_path / "my.bin").touch()
    for form in FORMATS.values():
        assert find_file(tmp_path, {"default_model_filename": "my.bin"}, form.model_type)[1] is form


@pytest.mark.parametrize("name", ["lightgbm_categorical", "lightgbm_zero_as_missing"])
def test_a_text_that_came_through_windows(name: str, tmp_path: Path) -> None:
    file, given, inputs, _ = case(MODELS / name)
    found = []
    for folder, content in (("a", file.read_bytes()), ("b", file.read_bytes().replace(b"\n", b"\r\n"))):
        spec = make_model(tmp_path / folder, file, parameters(**given))
        (spec.version_directory / file.name).write_bytes(content)
        found.append(answer(opened(spec)[1][0], inputs))
    np.testing.assert_array_equal(found[0], found[1])


def test_the_forest_of_a_load_that_fails_can_be_released(tmp_path: Path) -> None:
    file, given, *_ = case(MODELS / "forest_class")
    backend, spec = FilBackend(), make_model(tmp_path, file, tensors(13, 1) | parameters(**given))
    with pytest.raises(EdgeServeError, match="write dims"):
        backend.open(spec, [InstanceSpec("m_0")])
    backend.close()  # the worker does
    assert backend._forest is None
