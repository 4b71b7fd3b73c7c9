"""Advice on configurations that are valid, but hardly meant."""

from __future__ import annotations

import pytest

from edge_serve.config.model.notes import notes_on
from edge_serve.config.model.text import parse_model_config

IO = 'input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }'


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ('backend: "python"', "no inputs and no outputs, so that no request fits: write input"),
        (IO + "dynamic_batching { }", "joins no requests while max_batch_size is 0: write max_batch_size: 8"),
        ('backend: "python"' + IO, ""),
        ('backend: "onnxruntime"', ""),
        (IO + "max_batch_size: 8 dynamic_batching { }", ""),
        (IO + "dynamic_batching { priority_levels: 2 }", ""),
        (IO + "dynamic_batching { default_queue_policy { max_queue_size: 1 } }", ""),
    ],
)
def test_notes(text: str, note: str) -> None:
    notes = notes_on(parse_model_config(text))
    assert len(notes) == bool(note)
    assert note in "".join(notes)
