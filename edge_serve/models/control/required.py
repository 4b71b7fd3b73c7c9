"""Required models (`--required-model`): which of them do not serve, and why."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping

from edge_serve.models.control.records import ModelSummary


def absent(required: Iterable[str], found: Collection[str]) -> dict[str, str]:
    """Return the required models that are not in the repository (`found`), each with the most similar name."""
    reasons = {}
    for name in sorted(set(required).difference(found)):
        close = difflib.get_close_matches(name, found, n=1)
        reasons[name] = "not in the repository" + (f", did you mean '{close[0]}'?" if close else "")
    return reasons


def unready_required(
    required: Iterable[str], summaries: Iterable[ModelSummary], others: Mapping[str, str]
) -> list[ModelSummary]:
    """Return the required models that are not ready.

    Args:
        summaries: of the models that were asked for.
        others: model without a record -> why it was not loaded.
    """
    known: dict[str, ModelSummary] = {}
    for one in sorted(summaries, key=lambda one: one.word == "ready"):
        known.setdefault(one.name, one)  # if several models have one name, take the one that is not ready
    found = [
        known.get(name) or ModelSummary(name, "absent", others.get(name, "not loaded")) for name in sorted(required)
    ]
    return [one for one in found if one.word != "ready"]
