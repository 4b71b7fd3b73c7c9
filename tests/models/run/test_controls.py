"""Control tensors, slots, and null requests of the sequence batcher."""

from __future__ import annotations

from google.protobuf import text_format

from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.messages.infer import NULL_SEQUENCE_SLOT, SEQUENCE_END, SEQUENCE_START, InferRequest
from edge_serve.messages.tensors import ZEROS, DataType, InferTensor
from edge_serve.models.run.controls import Controls
from edge_serve.scheduling.core import Entry, Run

CONFIG = """max_batch_size: 4 sequence_batching {
  control_input { name: "S" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } }
  control_input { name: "E" control { kind: CONTROL_SEQUENCE_END int32_false_true: [5, 6] } }
  control_input { name: "R" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [false, true] } }
  control_input { name: "I" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
}"""


def controls() -> Controls:
    return Controls(text_format.Parse(CONFIG, pb.ModelConfig()))


def entry(flags: int, correlation_id: int) -> Entry:
    inputs = [InferTensor("X", DataType.INT32, (1, 2), b"\1" * 8)]
    return Entry(InferRequest("m", inputs=inputs, flags=flags, correlation_id=correlation_id), 1, None, 0)


def values(request: InferRequest) -> dict[str, list[object]]:
    return {tensor.name: tensor.array().reshape(-1).tolist() for tensor in request.inputs if tensor.offset != ZEROS}


def test_a_request_gets_its_controls_and_its_slot() -> None:
    first, last = entry(SEQUENCE_START, 7), entry(SEQUENCE_END, 8)
    made = controls().requests(Run(0, [first, last], [0, 1], rows=2))
    assert [request.sequence_slot for request in made] == [0, 1]
    assert [{name: one[name] for name in "SERI"} for one in map(values, made)] == [
        {"S": [1.0], "E": [5], "R": [True], "I": [7]},
        {"S": [0.0], "E": [6], "R": [True], "I": [8]},
    ]


def test_empty_slots_below_the_last_one_get_null_requests() -> None:
    real = entry(0, 7)
    made = controls().requests(Run(0, [real], [2], rows=3))
    assert [request is real.request for request in made] == [False, False, True]
    assert made[0].sequence_slot == NULL_SEQUENCE_SLOT
    x = made[0].inputs[0]
    assert (x.name, x.datatype, x.shape, x.offset, len(x.data)) == ("X", DataType.INT32, (1, 2), ZEROS, 8)
    assert values(made[0]) == {"S": [0.0], "E": [5], "R": [False], "I": [0]}


def test_a_request_that_runs_again_loses_its_controls() -> None:
    of, one = controls(), entry(SEQUENCE_START, 7)
    of.requests(Run(0, [one], [0]))
    of.remove(one.request)
    assert [tensor.name for tensor in one.request.inputs] == ["X"]
