"""The formats of model files: which file a model has, and which format a file seems to have. Without the library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_serve.backends.file_kinds import FileKinds, find_kind
from edge_serve.config.model.layout import advice_on_file
from edge_serve.errors import InvalidArgument, Unavailable, Unsupported, with_advice

#: bytes of a file that are enough to tell its format
_HEAD = 4096
#: bytes of a file of XGBoost that have its attributes, the names of features, and the parameters of its booster
_FACTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Format:
    """A format that Treelite reads.

    Attributes:
        model_type: its name in config.pbtxt.
        file: the name that Triton expects.
        words: for a message.
        loader: of the library.
    """

    model_type: str
    file: str
    words: str
    loader: str


XGBOOST_JSON = Format("xgboost_json", "xgboost.json", "XGBoost's JSON", "TreeliteLoadXGBoostModelJSON")
XGBOOST_UBJ = Format("xgboost_ubj", "xgboost.ubj", "XGBoost's UBJSON", "TreeliteLoadXGBoostModelUBJSON")
XGBOOST = Format("xgboost", "xgboost.model", "XGBoost's old binary format", "TreeliteLoadXGBoostModelLegacyBinary")
LIGHTGBM = Format("lightgbm", "model.txt", "LightGBM's text", "TreeliteLoadLightGBMModel")
CHECKPOINT = Format(
    "treelite_checkpoint", "checkpoint.tl", "a checkpoint of Treelite", "TreeliteDeserializeModelFromFile"
)
FORMATS = {one.model_type: one for one in (XGBOOST_JSON, XGBOOST_UBJ, XGBOOST, LIGHTGBM, CHECKPOINT)}
_BY_SUFFIX = {".json": XGBOOST_JSON, ".ubj": XGBOOST_UBJ, ".model": XGBOOST, ".txt": LIGHTGBM, ".tl": CHECKPOINT}

_CONVERT = "save it with treelite.sklearn.import_model(model).serialize('checkpoint.tl') (docs/trees.md)"
#: files of other frameworks; more than a byte of each, because XGBoost's old format begins with any
_FOREIGN: FileKinds = (
    (rb"\x80[\x02-\x05]", "a pickle", f"a pickle can run any code, so it is not read: {_CONVERT}"),
    (rb"\x08[\x01-\x1f][\x12\x1a\x22\x2a\x32\x3a\x42]", "an ONNX file", 'write backend: "onnxruntime"'),
    (rb"PK\x03\x04", "a ZIP archive, such as a file of PyTorch or Keras", 'write backend: "pytorch"'),
    (rb"\x89HDF", "an HDF5 file, such as one of Keras", "serve it with another backend"),
)

#: members in JSON and in UBJSON
_BEST_ROUND = re.compile(rb'best_iteration(?:"\s*:\s*"|SL.{8})([0-9]{1,9})', re.DOTALL)
_TREES_OF_ROUND = re.compile(rb'num_parallel_tree(?:"\s*:\s*"|SL.{8})([0-9]{1,9})', re.DOTALL)


def find_file(directory: Path, config: Mapping[str, Any], model_type: str) -> tuple[Path, Format]:
    """Return a model's file, and the format to read it in.

    Args:
        directory: of the version.
        model_type: of the configuration; "" = the name of the file tells.

    Raises:
        Unsupported: there is no such model_type (Triton's text).
        Unavailable: there is no file.
    """
    if model_type and model_type not in FORMATS:
        text = f"{model_type} not recognized as a valid serialization format."
        raise Unsupported(with_advice(text, f"Expected one of {', '.join(FORMATS)}"))
    path = directory / (config.get("default_model_filename") or "")
    wanted = FORMATS.get(model_type)
    if path.is_dir():
        there = [one for one in FORMATS.values() if (path / one.file).is_file()]
        chosen = wanted or (there[0] if there else XGBOOST_JSON)
        path /= chosen.file
    else:
        chosen = wanted or _BY_SUFFIX.get(path.suffix, XGBOOST_JSON)
    if not path.is_file():
        advice = advice_on_file(path.parent, path.name, str(config.get("name", "")))
        raise Unavailable(with_advice(f"unable to find '{path}' for model '{config.get('name', '')}'", advice))
    return path, chosen


def check_format(path: Path, wanted: Format) -> None:
    """Look at the first bytes of a file before the library parses it.

    Raises:
        InvalidArgument: it is empty, or has another format.
        Unavailable: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        text = f"'{path}' cannot be read: {error.strerror}; give the server's user the right to read it"
        raise Unavailable(text) from error
    if not head:
        raise InvalidArgument(f"'{path}' is empty, expected {wanted.words}: copy the file again")
    found = format_of(head)
    if found is wanted:
        return
    if found is not None:
        parameter = f'parameters {{ key: "model_type" value {{ string_value: "{found.model_type}" }} }}'
        raise InvalidArgument(f"'{path}' looks like {found.words}, expected {wanted.words}: write {parameter}")
    if kind := find_kind(head, _FOREIGN):
        words, advice = kind
        raise InvalidArgument(f"'{path}' is {words}, expected {wanted.words}: {advice}")
    if wanted is not XGBOOST:  # which begins with the numbers of its parameters
        raise InvalidArgument(
            f"'{path}' is not {wanted.words}: it begins with {head[:16]!r}; {_AGAIN[wanted.model_type]}"
        )


_AGAIN = {
    "xgboost_json": "save it with model.save_model('xgboost.json')",
    "xgboost_ubj": "save it with model.save_model('xgboost.ubj')",
    "lightgbm": "save it with booster.save_model('model.txt')",
    "treelite_checkpoint": "save it with Treelite's model.serialize('checkpoint.tl')",
}


def format_of(head: bytes) -> Format | None:
    """Return the format that the first bytes of a file belong to; None: none of those that say so."""
    text = head.lstrip(b" \t\r\n\xef\xbb\xbf")
    if head[:1] == b"{" and head[1:2] in b"LliIUS" and head[1:2]:
        return XGBOOST_UBJ
    if re.match(rb'\{\s*["}]', text):
        return XGBOOST_JSON
    if text.startswith((b"tree\n", b"tree\r\n")):
        return LIGHTGBM
    if head[:4] in (b"\x03\0\0\0", b"\x04\0\0\0"):  # the major version
        return CHECKPOINT
    if head.startswith((b"binf", b"\0\0\0\x3f")):  # a base score of 0.5
        return XGBOOST
    return None


def read_rounds(path: Path) -> tuple[int, int] | None:
    """Read what a file of XGBoost, JSON or UBJSON, tells about the rounds of its training.

    Returns:
        The best round, counted from 0, and the trees of a round for each class; None = it names no best round.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        attributes, _, booster = file.read(_FACTS).partition(b"gradient_booster")
    best, trees = _BEST_ROUND.search(attributes), _TREES_OF_ROUND.search(booster)
    return None if best is None or trees is None else (int(best[1]), max(1, int(trees[1])))


def reason(form: Format, text: str, allow_unknown_field: bool) -> str:
    """Return why the library cannot read a file, in one line.

    Args:
        text: its own; for XGBoost it tells where a parser stopped, and shows the bytes there.
        allow_unknown_field: the configuration has that already.
    """
    if form in (XGBOOST_JSON, XGBOOST_UBJ) and ("Handler error" in text or "sax_parse" in text):
        place = re.search(r"at offset \d+", text)
        newer = ', or, for a file of a newer XGBoost, set parameters { key: "xgboost_allow_unknown_field" value { '
        newer += 'string_value: "true" } }'
        return (
            f"it has a member that Treelite does not know{f' ({place[0]})' if place else ''}, or it is damaged; save a "
            f"model of trees (booster: gbtree or dart) again{'' if allow_unknown_field else newer}"
        )
    if "categorical encoder" in text:
        return (
            "it has the names of categories, which Treelite does not support; train the model on their numbers: "
            "column.cat.codes.where(column.notna()) of each such column, with feature_types 'c' (docs/trees.md)"
        )
    first = text.partition("\n")[0]
    return f"{first.rpartition('Check failed: ')[2]}; copy the file again, or save it anew"
