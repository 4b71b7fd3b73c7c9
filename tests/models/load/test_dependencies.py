"""Ensembles against what is known of their members."""

from __future__ import annotations

import pytest

from edge_serve.config.model.text import parse_model_config as parse
from edge_serve.errors import Internal
from edge_serve.models.load.dependencies import LoadFailure, MemberFacts, check_members

ENSEMBLE = """name: "e" platform: "ensemble"
    input { name: "X" data_type: TYPE_INT32 dims: 1 } output { name: "Y" data_type: TYPE_INT32 dims: 1 }
    ensemble_scheduling { step { model_name: "a" model_version: -1
        input_map { key: "I" value: "X" } output_map { key: "O" value: "Y" } } }"""
MEMBER = """name: "a" model_transaction_policy { decoupled: true }
    input { name: "I" data_type: TYPE_INT32 dims: 1 } output { name: "O" data_type: TYPE_INT32 dims: 1 }"""


def check(ensemble: str) -> bool:
    member = MemberFacts(parse(MEMBER), [1])
    return check_members(parse(ensemble), lambda _: member)


def test_the_error_of_an_unknown_member_suggests_a_name() -> None:
    def unknown(failure: Internal | None) -> str:
        with pytest.raises(LoadFailure) as refused:
            check_members(parse(ENSEMBLE), lambda _: MemberFacts(failure=failure, known=False))
        return refused.value.reason.partition("not available or ambiguous: ")[2]

    said = "a; put them into the repository, or correct model_name in its steps"
    assert unknown(None) == said
    assert unknown(Internal("no directory 'a' in models")) == said
    assert unknown(Internal("no directory 'a' in models, did you mean 'ab'?")) == f"{said}, did you mean 'ab'?"


def test_an_ensemble_that_a_member_makes_decoupled_has_no_response_cache() -> None:
    assert check(ENSEMBLE)
    with pytest.raises(LoadFailure) as refused:
        check(ENSEMBLE + "response_cache { enable: true }")

    assert "Response Cache does not currently support model e with 'decoupled'" in refused.value.reason
