"""Ensembles: alone, and against their members."""

from __future__ import annotations

import pytest

from edge_serve.config.checks.ensemble import check_ensemble, check_ensemble_members
from edge_serve.config.model.model_config_pb2 import ModelConfig
from edge_serve.config.model.text import parse_model_config
from edge_serve.errors import InvalidArgument
from tests.texts import without_advice

Tensor = tuple[str, str, str]


def _tensors(side: str, tensors: tuple[Tensor, ...]) -> str:
    return " ".join(f'{side} {{ name: "{n}" data_type: TYPE_{t} dims: [ {d} ] }}' for n, t, d in tensors)


def _step(model: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
    maps = [("input_map", inputs), ("output_map", outputs)]
    body = " ".join(f'{field} {{ key: "{k}" value: "{v}" }}' for field, pairs in maps for k, v in pairs.items())
    return f'step {{ model_name: "{model}" model_version: -1 {body} }}'


X: Tensor = ("X", "INT32", "-1")
Y: Tensor = ("Y", "INT32", "-1")


def _ensemble(
    *steps: str, inputs: tuple[Tensor, ...] = (X,), outputs: tuple[Tensor, ...] = (Y,), more: str = ""
) -> ModelConfig:
    head = f'name: "e" platform: "ensemble" {_tensors("input", inputs)} {_tensors("output", outputs)}'
    return parse_model_config(f"{head} ensemble_scheduling {{ {' '.join(steps)} }} {more}")


def _member(inputs: tuple[Tensor, ...] = (("I", "INT32", "-1"),), more: str = "") -> ModelConfig:
    return parse_model_config(f"{_tensors('input', inputs)} {_tensors('output', (('O', 'INT32', '-1'),))} {more}")


ONE = _step("a", {"I": "X"}, {"O": "Y"})
TWO = (_step("a", {"I": "X"}, {"O": "t"}), _step("b", {"I": "t"}, {"O": "Y"}))


def test_good_ones_pass() -> None:
    check_ensemble(_ensemble(ONE))
    check_ensemble(_ensemble(*TWO))
    check_ensemble(_ensemble(*reversed(TWO)))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (_ensemble(), "must specify 'step' for ensemble 'e'"),
        (_ensemble("step {}"), "must specify 'model_name' in step 0 of ensemble 'e'"),
        (_ensemble(ONE, _step("b", {}, {"O": "Z"})), "must specify 'input_map' in step 1 of ensemble 'e'"),
        (_ensemble(_step("a", {"I": "X"}, {})), "must specify 'output_map' in step 0 of ensemble 'e'"),
        (_ensemble(ONE, more="instance_group {}"), "instance group should not be specified for ensemble 'e'"),
        (_ensemble(ONE, more="optimization {}"), "optimization should not be specified for ensemble 'e'"),
        (_ensemble(ONE, more="model_warmup {}"), "model_warmup can not be specified for ensemble 'e'"),
        (
            _ensemble(ONE, ONE),
            "ensemble tensor 'Y' can appear in an output map only once for ensemble 'e' step 1",
        ),
        (_ensemble(_step("a", {"I": "q"}, {"O": "Y"})), "ensemble input 'X' for ensemble e' is not used"),
        (_ensemble(_step("a", {"I": "X"}, {"O": "q"})), "ensemble output 'Y' for ensemble e' is not used"),
        (
            _ensemble(ONE, _step("b", {"I": "X"}, {"O": "q"})),
            "ensemble tensor 'q' is unused in ensemble 'e'",
        ),
        (
            _ensemble(_step("a", {"I": "X", "J": "q"}, {"O": "Y"})),
            "output 'Y' for ensemble 'e' is not written: at least one of its depending tensors, 'q', is not connected",
        ),
        (
            _ensemble(ONE, _step("a", {"I": "X", "J": "p"}, {"O": "q"}), _step("a", {"I": "q"}, {"O": "p"})),
            "ensemble tensor 'p' is unused in ensemble 'e'",
        ),
    ],
)
def test_alone(config: ModelConfig, said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_ensemble(config)

    assert without_advice(caught.value.message, said) == said


def test_platform_must_be_ensemble() -> None:
    config = _ensemble(ONE)
    config.platform = "onnxruntime_onnx"
    with pytest.raises(InvalidArgument, match="cannot be set for model 'e' whose platform is not ensemble"):
        check_ensemble(config)


def test_members_that_fit() -> None:
    assert not check_ensemble_members(_ensemble(*TWO), {"a": _member(), "b": _member()})


def test_optional_input_of_a_member_may_stay_unmapped() -> None:
    member = _member((("I", "INT32", "-1"), ("J", "INT32", "1")))
    member.input[1].optional = True

    assert not check_ensemble_members(_ensemble(ONE), {"a": member})


def test_non_batching_member_under_a_batching_ensemble() -> None:
    ensemble = _ensemble(ONE, inputs=(("X", "INT32", "3"),), more="max_batch_size: 4")

    assert not check_ensemble_members(ensemble, {"a": _member((("I", "INT32", "-1, 3"),))})


@pytest.mark.parametrize(
    ("ensemble", "member", "said"),
    [
        (
            _ensemble(_step("a", {"NOPE": "X"}, {"O": "Y"})),
            _member(),
            "in ensemble e, ensemble tensor X is mapping to non-existing input NOPE in model a",
        ),
        (
            _ensemble(_step("a", {"I": "X"}, {"NOPE": "Y"})),
            _member(),
            "in ensemble e, ensemble tensor Y is mapped from non-existing output NOPE in model a",
        ),
        (
            _ensemble(ONE),
            _member((("I", "INT32", "-1"), ("J", "INT32", "1"))),
            "in ensemble e, input J in model a is not mapped to any ensemble tensors",
        ),
        (
            _ensemble(ONE, inputs=(("X", "FP32", "-1"),)),
            _member(),
            "in ensemble e, ensemble tensor X: inconsistent data type: TYPE_FP32 is inferred from model e while "
            "TYPE_INT32 "
            "is inferred from model a",
        ),
        (
            parse_model_config(
                'name: "e" platform: "ensemble" input { name: "X" data_type: 99 dims: [ -1 ] } '
                f'output {{ name: "Y" data_type: TYPE_INT32 dims: [ -1 ] }} ensemble_scheduling {{ {ONE} }}'
            ),
            _member(),
            "in ensemble e, ensemble tensor X: inconsistent data type: 99 is inferred from model e while TYPE_INT32 is "
            "inferred from model a",
        ),
        (
            _ensemble(ONE, inputs=(("X", "INT32", "2, 2"),)),
            _member(),
            "in ensemble e, ensemble tensor X: inconsistent shape: [2,2] is inferred from model e while [-1] is "
            "inferred "
            "from model a",
        ),
        (
            _ensemble(ONE, more="max_batch_size: 8"),
            _member(more="max_batch_size: 4"),
            "ensemble e allows maximum batch size 8, but it contains model a which only allows maximum batch size to "
            "be 4",
        ),
    ],
)
def test_against_a_member(ensemble: ModelConfig, member: ModelConfig, said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_ensemble_members(ensemble, {"a": member})

    assert without_advice(caught.value.message, said) == said


def test_namespaces_tell_models_apart() -> None:
    ensemble = _ensemble(ONE)
    ensemble.ensemble_scheduling.step[0].model_namespace = "/repo"

    assert not check_ensemble_members(ensemble, {"/repo::a": _member()})


def test_decoupled_member_makes_the_ensemble_decoupled() -> None:
    decoupled = _member(more="model_transaction_policy { decoupled: true }")

    assert check_ensemble_members(_ensemble(*TWO), {"a": decoupled, "b": _member()})
    assert check_ensemble_members(_ensemble(*TWO), {"a": decoupled, "b": decoupled})


def test_replies_of_two_decoupled_members_do_not_mix() -> None:
    decoupled = _member(more="model_transaction_policy { decoupled: true }")
    both = _member((("I", "INT32", "-1"), ("J", "INT32", "-1")))
    steps = (
        _step("a", {"I": "X"}, {"O": "p"}),
        _step("b", {"I": "X"}, {"O": "q"}),
        _step("c", {"I": "p", "J": "q"}, {"O": "Y"}),
    )
    with pytest.raises(InvalidArgument) as caught:
        check_ensemble_members(_ensemble(*steps), {"a": decoupled, "b": decoupled, "c": both})

    assert caught.value.message == (
        "in ensemble e, step of model 'c' receives inputs originated from different decoupled models"
    )


def test_a_response_does_not_mix_replies_of_two_decoupled_members() -> None:
    decoupled = _member(more="model_transaction_policy { decoupled: true }")
    ensemble = _ensemble(_step("a", {"I": "X"}, {"O": "Y"}), _step("a", {"I": "X"}, {"O": "Z"}))
    more = ensemble.output.add()
    more.CopyFrom(ensemble.output[0])
    more.name = "Z"

    with pytest.raises(InvalidArgument) as caught:
        check_ensemble_members(ensemble, {"a": decoupled})

    assert caught.value.message == (
        "in ensemble e, step of model 'e' receives inputs originated from different decoupled models"
    )
    assert not check_ensemble_members(ensemble, {"a": _member()})
