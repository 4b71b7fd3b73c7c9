"""Any configuration survives text and JSON; any bytes are a configuration or an ordinary error."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st

from edge_serve.config.checks.checks import check_model_config
from edge_serve.config.model.json_form import model_config_from_json, model_config_to_json
from edge_serve.config.model.model_config_pb2 import DESCRIPTOR, ModelConfig
from edge_serve.config.model.normalise import normalise
from edge_serve.config.model.text import parse_model_config
from edge_serve.config.stages import merge_completed, settle_instances
from edge_serve.errors import EdgeServeError
from tests.examples import examples

F = FieldDescriptor
_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    F.TYPE_STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    F.TYPE_BOOL: st.booleans(),
    F.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    F.TYPE_UINT32: st.integers(0, 2**32 - 1),
    F.TYPE_INT64: st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 5),
    F.TYPE_UINT64: st.integers(0, 2**64 - 1),
    # protobuf's reader refuses the largest floats as it prints them itself, rounded
    F.TYPE_FLOAT: st.floats(-(2.0**127), 2.0**127, width=32),
    F.TYPE_DOUBLE: st.floats(allow_nan=False, allow_infinity=False) | st.just("Infinity"),
}


@functools.cache
def _value(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        kind = field.message_type
        if kind.GetOptions().map_entry:
            key, value = kind.fields_by_name["key"], kind.fields_by_name["value"]
            return st.dictionaries(_one(key).map(str), _one(value), max_size=2)
    return st.lists(_one(field), max_size=3) if field.is_repeated else _one(field)


def _one(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        return documents(field.message_type)
    if field.enum_type is not None:
        return st.sampled_from([value.name for value in field.enum_type.values])
    return _SCALARS[field.type]


@functools.cache
def documents(message: Descriptor) -> st.SearchStrategy[dict[str, Any]]:
    """JSON objects that describe a `message`; at most one field of each oneof."""

    @st.composite
    def draw_document(draw: st.DrawFn) -> dict[str, Any]:
        names = draw(st.lists(st.sampled_from([f.name for f in message.fields]), max_size=4, unique=True))
        chosen: dict[str, Any] = {}
        oneofs: set[str] = set()
        for name in names:
            field = message.fields_by_name[name]
            if field.containing_oneof and field.containing_oneof.name in oneofs:
                continue
            oneofs.update([field.containing_oneof.name] if field.containing_oneof else [])
            chosen[name] = draw(_value(field))
        return chosen

    return draw_document() if message.fields else st.just({})


CONFIGS = documents(DESCRIPTOR.message_types_by_name["ModelConfig"]).map(model_config_from_json)


@examples(60, 300, CONFIGS)
def test_text_and_json_keep_everything(config: ModelConfig) -> None:
    assert parse_model_config(text_format.MessageToString(config, as_utf8=True)) == config
    document = model_config_to_json(config)
    assert model_config_from_json(document) == config
    assert model_config_to_json(model_config_from_json(document)) == document


@examples(60, 300, CONFIGS)
def test_any_configuration_is_accepted_or_refused_in_words(config: ModelConfig) -> None:
    with contextlib.suppress(EdgeServeError):
        normal = normalise(config, "m", ["model.py"])
        assert normalise(normal, "m") == normal
        check_model_config(normal)
        done = merge_completed(settle_instances(normal), model_config_to_json(normal))
        assert merge_completed(done, None) == done


_WORDS = [field.name for field in DESCRIPTOR.message_types_by_name["ModelConfig"].fields]
_TOKENS = [*_WORDS, "dims", "key", "value", "TYPE_INT32", "-1", "0x", "07", "1e9", '"', "'", "\\", "{", "}", "[", "]"]
_TOKENS += ["<", ">", ":", ";", ",", "#", "\n", " ", "-", "nan", "true", '"a"', "\\u00", "\\U0010ffff", "\\400", "é"]
BYTES = st.binary(max_size=40) | st.lists(st.sampled_from(_TOKENS), max_size=12).map(lambda t: " ".join(t).encode())
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*_WORDS, "name"]), inner, max_size=3),
    max_leaves=8,
)


@examples(400, 3000, BYTES)
def test_any_bytes_are_a_configuration_or_an_ordinary_error(raw: bytes) -> None:
    for read in (parse_model_config, model_config_from_json):
        with contextlib.suppress(EdgeServeError):
            read(raw)


@examples(60, 300, DOCUMENTS)
def test_any_json_is_a_configuration_or_an_ordinary_error(document: Any) -> None:
    with contextlib.suppress(EdgeServeError):
        model_config_from_json(document if isinstance(document, dict) else {"input": document})
