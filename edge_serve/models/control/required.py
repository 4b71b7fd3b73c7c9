"""Required models (`--required-model`): which of them do not serve, and why."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping

from edge_serve.models.control.records import ModelSummary


def absent(required: Iterable[str], found: Collection[str]) -> dict[str, str]:
    """The required models that are not in the repository, where `found` lies, and a name that may be meant."""
    reasons = {}
    for name in sorted(set(required).difference(found)):
        close = difflib.get_close_matches(name, found, n=1)
        reasons[name] = "not in the repository" + (f", did you mean '{close[0]}'?" if close else "")
    return reasons


def lacking(
    required: Iterable[str], standings: Iterable[ModelSummary], others: Mapping[str, str]
) -> list[ModelSummary]:
    """The required models that are not ready.

    Args:
        standings: of the models that were asked for.
        others: model -> why it has no standing.
    """
    known: dict[str, ModelSummary] = {}
    for one in sorted(standings, key=lambda one: one.word == "ready"):
        known.setdefault(one.name, one)  # of several models of one name the one that is not ready
    found = [
        known.get(name) or ModelSummary(name, "absent", others.get(name, "not loaded")) for name in sorted(required)
    ]
    return [one for one in found if one.word != "ready"]
