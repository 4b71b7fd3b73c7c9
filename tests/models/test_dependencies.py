"""Ensembles against what is known of their members."""

from __future__ import annotations

import pytest

from edge_serve.config.text import parse_model_config as parse
from edge_serve.models.dependencies import LoadFailure, Member, check_members

ENSEMBLE = """name: "e" platform: "ensemble"
    input { name: "X" data_type: TYPE_INT32 dims: 1 } output { name: "Y" data_type: TYPE_INT32 dims: 1 }
    ensemble_scheduling { step { model_name: "a" model_version: -1
        input_map { key: "I" value: "X" } output_map { key: "O" value: "Y" } } }"""
MEMBER = """name: "a" model_transaction_policy { decoupled: true }
    input { name: "I" data_type: TYPE_INT32 dims: 1 } output { name: "O" data_type: TYPE_INT32 dims: 1 }"""


def check(ensemble: str) -> bool:
    member = Member(parse(MEMBER), [1])
    return check_members(parse(ensemble), lambda _: member)


def test_an_ensemble_that_a_member_makes_decoupled_has_no_response_cache() -> None:
    assert check(ENSEMBLE)
    with pytest.raises(LoadFailure) as refused:
        check(ENSEMBLE + "response_cache { enable: true }")

    assert "Response Cache does not currently support model e with 'decoupled'" in refused.value.reason
