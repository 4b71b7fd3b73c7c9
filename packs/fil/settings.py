"""The parameters of config.pbtxt, as plain values. Pure, without the library.

Names and texts: triton-inference-server/fil_backend src/shared_state.h, and rapidsai/rapids-triton
cpp/include/rapids_triton/model/shared_state.hpp.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edge_serve.backends.parameters import parameters_of
from edge_serve.errors import Internal, InvalidArgument

#: of a binary classifier: a greater score is class 1
DEFAULT_THRESHOLD = 0.5
#: parameters that have no effect on a CPU, or none in Triton any more
IGNORED = frozenset({
    "algo", "blocks_per_sm", "chunk_size", "layout", "storage_type", "threads_per_tree", "transfer_threshold",
    "use_experimental_optimizations",
})  # fmt: skip
#: parameters that Triton removed in 25.09, and their successors
_REMOVED = {
    "algo": "layout", "threads_per_tree": "chunk_size", "output_class": "is_classifier", "storage_type": "",
    "blocks_per_sm": "",
}  # fmt: skip
#: parameters that this backend reads; the last is the name that is_classifier had before Triton 25.09
_READ = (
    "model_type", "is_classifier", "predict_proba", "threshold", "xgboost_allow_unknown_field", "cpu_nthread",
    "output_class",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ForestSettings:
    """Settings of a model, from its configuration.

    Attributes:
        model_type: the format of its file; "" = the name of the file tells.
        is_classifier: None = the model tells.
        predict_proba: a classifier returns a score for each class, not the class.
        threads: of one instance; 0 = its share of the cores.
        notes: on parameters that are probably a mistake, and on those that Triton removed, in its words.
    """

    model_type: str = ""
    is_classifier: bool | None = None
    predict_proba: bool = False
    threshold: float = DEFAULT_THRESHOLD
    allow_unknown_field: bool = False
    threads: int = 0
    notes: tuple[str, ...] = field(default=())


def read_settings(config: Mapping[str, Any]) -> ForestSettings:
    """Return the settings in a configuration.

    Raises:
        InvalidArgument, Internal: a value is not what its parameter needs.
    """
    values = parameters_of(config)
    old = values.get("output_class")
    return ForestSettings(
        model_type=values.get("model_type", ""),
        # as Triton: the old name counts where it has a truth value
        is_classifier=old == "true" if old in ("true", "false") else _boolean(values, "is_classifier"),
        predict_proba=_boolean(values, "predict_proba") or False,
        threshold=_threshold(values),
        allow_unknown_field=_boolean(values, "xgboost_allow_unknown_field") or False,
        threads=max(_integer(values, "cpu_nthread", 0), 0),
        notes=(*_notes(values), *_notes_on_states(config)),
    )


def _boolean(values: Mapping[str, str], name: str) -> bool | None:
    text = values.get(name)
    if text not in (None, "true", "false"):
        raise Internal(f"Expected 'true' or 'false' for parameter '{name}', got: '{text}'")
    return None if text is None else text == "true"


def _threshold(values: Mapping[str, str]) -> float:
    text = values.get("threshold")
    try:
        return DEFAULT_THRESHOLD if text is None else float(text)
    except ValueError as error:
        raise InvalidArgument(f"Bad input for parameter threshold: '{text}', expected a number such as 0.5") from error


def _integer(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name)
    try:
        return default if text is None else int(text)
    except ValueError as error:
        raise InvalidArgument(f"Bad input for parameter {name}: '{text}', expected a whole number") from error


def _notes(values: Mapping[str, str]) -> list[str]:
    """Return a line for each parameter that was removed, or whose name is nearly a known one."""
    known = [*_READ, *sorted(IGNORED)]
    near = {name: difflib.get_close_matches(name, known, 1, 0.8) for name in values if name not in known}
    notes = [_on_removed(name) for name in _REMOVED if values.get(name)]
    if values.get("use_experimental_optimizations") == "true":
        notes.append("use_experimental_optimizations option is deprecated. It has no effect.")
    notes += [f"parameter '{name}' has no effect, did you mean '{close[0]}'?" for name, close in near.items() if close]
    return notes


def _on_removed(name: str) -> str:
    successor = f" Use `{_REMOVED[name]}` instead." if _REMOVED[name] else ""
    return f"The `{name}` parameter has been removed in 25.09 release.{successor}"


def _notes_on_states(config: Mapping[str, Any]) -> list[str]:
    """Return a line if the configuration has states. Triton's backend takes them, too, and ignores them."""
    states = (config.get("sequence_batching") or {}).get("state")
    return ["a forest keeps no state, so sequence_batching.state has no effect"] if states else []
