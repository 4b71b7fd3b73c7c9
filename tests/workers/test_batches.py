"""EXECUTE and REPLY frames: everything comes out as it went in, and nothing wrong gets through."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edge_serve.backends.base import Reply
from edge_serve.errors import BY_TRITON_CODE, EdgeServeError, Internal, NotFound, Unavailable
from edge_serve.messages.infer import NULL_SEQUENCE_SLOT, InferRequest, Parameter, RequestedOutput
from edge_serve.messages.tensors import INLINE_BYTES, DataType, InferTensor, join_bytes, zero_tensor
from edge_serve.workers.child.batch import Batch, decode_execute
from edge_serve.workers.child.memory.output_room import OutputRoom
from edge_serve.workers.front.frames.batch import decode_answers, encode_execute
from edge_serve.workers.memory.arena import Arena, Budget
from edge_serve.workers.wire.frames import HEADER_SIZE, REPLY_HEAD, FrameError, parse_header
from edge_serve.workers.wire.layout import TensorLayout
from tests.workers.harness import config, reply_frame

LAYOUT = TensorLayout(config())
NOWHERE = memoryview(b"")


def there(*requests: InferRequest, layout: TensorLayout = LAYOUT, arena: memoryview = NOWHERE) -> Batch:
    """The batch as the worker sees it."""
    sent = encode_execute(layout, 5, requests, 4096, 8192)
    assert parse_header(sent)[0] == len(sent) - HEADER_SIZE
    return decode_execute(layout, bytearray(sent), arena, set())


def refuse(batch_id: int, nbytes: int, unused: bool) -> tuple[int, int, int]:
    raise Unavailable(f"no room for {nbytes}")


def written(
    replies: Sequence[Reply], wanted: Sequence[Sequence[str] | None] | None = None, room: OutputRoom | None = None
) -> bytes:
    """A REPLY frame."""
    return reply_frame(LAYOUT, 5, replies, room or OutputRoom(NOWHERE, 0, 0, refuse), wanted=wanted)


def back(sent: bytes, slot: Any = None) -> list[Reply]:
    """The replies as the front end sees them."""
    _, _, count, _ = parse_header(sent)
    *_, meta = REPLY_HEAD.unpack_from(sent, HEADER_SIZE)
    return decode_answers(LAYOUT, sent, HEADER_SIZE + REPLY_HEAD.size, meta, count, slot)[0]


def tensor(name: str, values: Any, datatype: DataType = DataType.INT32) -> InferTensor:
    """A tensor of `values`."""
    array = np.asarray(values, dtype=datatype.numpy)
    return InferTensor(name, datatype, array.shape, array.tobytes())


def of_type(datatype: DataType) -> InferTensor:
    """Three elements that start anywhere."""
    if datatype is DataType.BYTES:
        return InferTensor("INPUT1", datatype, (1, 3), join_bytes(["", "ä", b"\x00\xff"]))
    return tensor("INPUT1", [[0, 1, 1]], datatype)


@pytest.mark.parametrize("datatype", DataType)
def test_every_type_arrives_aligned(datatype: DataType) -> None:
    odd = tensor("INPUT0", [[1, 2, 3]], DataType.UINT8)
    found = there(InferRequest("echo", inputs=[odd, of_type(datatype)])).requests[0].inputs[1]
    assert (found.datatype, found.shape, bytes(found.data)) == (datatype, (1, 3), bytes(of_type(datatype).data))
    if datatype is not DataType.BYTES:
        assert found.array().flags.aligned
        assert found.array().flags.writeable


def test_all_fields_arrive() -> None:
    sent = InferRequest(
        "echo", id="ünique", inputs=[tensor("INPUT0", [[1]])], outputs=[RequestedOutput("OUTPUT1")],
        parameters={"text": "x", "number": -3, "flag": True, "ratio": 0.5}, correlation_id="session-1", flags=3,
        priority=2**64 - 1, timeout_us=2**63, deadline_ns=12345,
    )  # fmt: skip
    batch = there(InferRequest("echo"), sent)
    found = batch.requests[1]
    assert (found.id, found.parameters, found.correlation_id, found.flags, found.priority, found.timeout_us) == (
        "ünique", sent.parameters, "session-1", 3, 2**64 - 1, 2**63,
    )  # fmt: skip
    assert list(found.requested_outputs) == ["OUTPUT1"]
    assert (batch.id, batch.deadlines, batch.wanted) == (5, [0, 12345], [None, ("OUTPUT1",)])
    assert (batch.slot_offset, batch.slot_capacity) == (4096, 8192)
    assert tuple(batch.requests[0].requested_outputs) == ("OUTPUT0", "OUTPUT1")


def test_null_requests_only_fill_rows() -> None:
    """All have the inputs of one, they ask for no output (as in 2.51), and none travels."""
    zeros = zero_tensor("INPUT0", DataType.INT32, (1, 1))
    null = InferRequest("echo", inputs=[zeros], sequence_slot=NULL_SEQUENCE_SLOT)
    real = InferRequest("echo", inputs=[tensor("INPUT0", [[7]])], sequence_slot=2)
    batch = there(null, null, real, null)

    arrays = [one.inputs[0].array() for one in batch.requests]
    arrays[0] += 5
    assert [one.item() for one in arrays] == [5, 0, 7, 0]
    assert [one.sequence_slot for one in batch.requests] == [-1, -1, 2, -1]
    assert [list(one.requested_outputs) for one in batch.requests] == [[], [], ["OUTPUT0", "OUTPUT1"], []]
    replies = [Reply([tensor("OUTPUT0", [[value]])]) for value in (1, 2, 3, 4)]
    assert [len(one.outputs) for one in back(written(replies, batch.wanted))] == [0, 0, 1, 0]


def test_an_output_that_the_configuration_lacks_may_be_asked_for() -> None:
    sent = InferRequest("echo", outputs=[RequestedOutput("OUTPUT0"), RequestedOutput("hidden")])
    assert list(there(sent).requests[0].requested_outputs) == ["OUTPUT0", "hidden"]


def test_inputs_come_in_the_order_of_the_configuration() -> None:
    sent = InferRequest("echo", inputs=[tensor("INPUT1", [[1]]), tensor("INPUT0", [[0]])])
    assert [one.name for one in there(sent).requests[0].inputs] == ["INPUT0", "INPUT1"]


def test_inputs_of_a_python_model_stay_in_the_order_of_each_client() -> None:
    layout = TensorLayout(config(), sorts_inputs=False)
    one = InferRequest("echo", inputs=[tensor("INPUT1", [[1]]), tensor("INPUT0", [[0]])])
    other = InferRequest("echo", inputs=[tensor("INPUT0", [[0]]), tensor("INPUT1", [[1]])])
    found = there(one, other, layout=layout).requests
    assert [[(each.name, each.array().item()) for each in request.inputs] for request in found] == [
        [("INPUT1", 1), ("INPUT0", 0)],
        [("INPUT0", 0), ("INPUT1", 1)],
    ]


def test_many_outputs_are_listed_by_name() -> None:
    names = [f"O{i}" for i in range(100)]
    layout = TensorLayout({"output": [{"name": name, "data_type": "TYPE_INT32", "dims": [1]} for name in names]})
    sent = InferRequest("echo", outputs=[RequestedOutput("O3"), RequestedOutput("O99")])
    assert list(there(sent, layout=layout).requests[0].requested_outputs) == ["O3", "O99"]
    assert list(there(InferRequest("echo"), layout=layout).requests[0].requested_outputs) == names


@pytest.mark.parametrize(("offset", "is_view"), [(64, True), (4, True), (5, False)])
def test_unaligned_tensors_of_the_arena_are_copied(offset: int, is_view: bool) -> None:
    arena = Arena("m", Budget(1 << 20), 1 << 20)
    values = np.arange(4, dtype=np.int32)
    arena.view[offset : offset + 16] = values.tobytes()
    sent = InferTensor("INPUT0", DataType.INT32, (1, 4), arena.view[offset : offset + 16], offset)
    found = there(InferRequest("echo", inputs=[sent]), arena=arena.view).requests[0].inputs[0]
    assert found.array().tolist() == [values.tolist()]
    assert found.array().flags.aligned
    found.array()[0, 0] = 9
    assert (arena.view[offset] == 9) is is_view
    del found
    arena.close()


def test_replies_arrive() -> None:
    outputs = [tensor("OUTPUT1", [[1.5, 2]], DataType.FP32), of_type(DataType.BYTES)]
    outputs[1].name = "not configured"
    found = back(written([Reply(outputs, parameters={"n": 1}), Reply(), Reply(error=NotFound("höre"))]))
    assert [(one.name, one.shape, bytes(one.data)) for one in found[0].outputs] == [
        (one.name, one.shape, one.data) for one in outputs
    ]
    assert found[0].parameters == {"n": 1}
    assert found[1] == Reply()
    assert isinstance(found[2].error, NotFound)
    assert found[2].error.message == "höre"


def test_outputs_stay_in_the_order_of_the_model() -> None:
    names = ["new", "OUTPUT1", "OUTPUT0", "other"]
    found = back(written([Reply([tensor(name, [[i]]) for i, name in enumerate(names)])]))
    assert [(one.name, one.array().item()) for one in found[0].outputs] == list(zip(names, range(4), strict=True))


def test_equal_requests_are_distinguished_by_their_position() -> None:
    sent = [InferRequest("echo", inputs=[tensor("INPUT0", [[i]]), tensor("INPUT1", [[-i]])]) for i in range(700)]
    found = there(*sent)
    assert [[one.array().item() for one in request.inputs] for request in found.requests] == [
        [i, -i] for i in range(700)
    ]


@pytest.mark.parametrize("cls", BY_TRITON_CODE.values())
def test_every_error_keeps_its_class(cls: type[EdgeServeError]) -> None:
    assert type(back(written([Reply(error=cls("text"))]))[0].error) is cls


def test_outputs_not_asked_for_are_dropped() -> None:
    outputs = [tensor("OUTPUT0", [[1]]), tensor("OUTPUT1", [[2]])]
    found = back(written([Reply(outputs), Reply(outputs)], [("OUTPUT1",), None]))
    assert [[one.name for one in reply.outputs] for reply in found] == [["OUTPUT1"], ["OUTPUT0", "OUTPUT1"]]


def test_large_outputs_go_into_the_slot_and_small_ones_ride_along() -> None:
    arena = Arena("m", Budget(1 << 20), 1 << 20)
    slot = arena.allocate(256 * 1024)
    large = [Reply([tensor("OUTPUT0", np.full((1, INLINE_BYTES // 4 + 1), i))]) for i in (1, 2)]
    small = Reply([tensor("OUTPUT0", [[7]])])
    sent = written([large[0], small, large[1]], room=OutputRoom(arena.view, slot.offset, slot.capacity, refuse))
    assert len(sent) < 1000
    found = back(sent, slot)
    assert [reply.outputs[0].array()[0, -1] for reply in found] == [1, 7, 2]
    assert [reply.outputs[0].offset % 64 for reply in found] == [0, 63, 0], "-1 is not in the arena"
    arena.close()


def test_a_malformed_tensor_is_refused_by_the_worker() -> None:
    with pytest.raises(Internal, match="has 4 bytes, which is not INT32"):
        written([Reply([InferTensor("OUTPUT0", DataType.INT32, (1, 2), b"1234")])])


def test_an_output_outside_its_slot_is_refused() -> None:
    arena = Arena("m", Budget(1 << 20), 1 << 20)
    slot, larger = arena.allocate(2 * INLINE_BYTES), arena.allocate(4 * INLINE_BYTES)
    room = OutputRoom(arena.view, larger.offset, larger.capacity, refuse)
    sent = written([Reply([tensor("OUTPUT0", np.zeros((1, INLINE_BYTES)))])], room=room)
    with pytest.raises(FrameError, match="outside its slot"):
        back(sent, slot)
    with pytest.raises(FrameError, match="outside its slot"):
        back(sent, None)
    arena.close()


def test_no_mutation_gets_through_but_frame_errors() -> None:
    """Whatever a worker writes ends as replies whose tensors are consistent, or as FrameError."""
    choose = random.Random(1)
    whole = written([Reply([tensor("OUTPUT0", [[1, 2]]), of_type(DataType.BYTES)], parameters={"a": 1}),
                     Reply(error=NotFound("x")), Reply([tensor("OUTPUT1", [[3]])])])  # fmt: skip
    refused = 0
    for _ in range(3000):
        broken = bytearray(whole)
        for _ in range(choose.randint(1, 4)):
            broken[choose.randrange(HEADER_SIZE, len(broken))] = choose.randrange(256)
        cut = bytes(
            broken[: choose.choice([len(broken), choose.randrange(HEADER_SIZE + REPLY_HEAD.size, len(broken))])]
        )
        try:
            replies = back(cut)
        except FrameError:
            refused += 1
            continue
        for output in (output for reply in replies for output in reply.outputs):
            assert output.datatype is DataType.BYTES or output.array().shape == output.shape
    assert 500 < refused < 3000


@pytest.mark.parametrize("parameters", [{}, {"p": 1}])
@pytest.mark.parametrize("personal", [True, False])
def test_whether_an_answer_is_personal_arrives(parameters: dict[str, Parameter], personal: bool) -> None:
    (reply,) = back(written([Reply([tensor("OUTPUT0", [1])], parameters=parameters, personal=personal)]))

    assert (reply.personal, reply.parameters) == (personal, parameters)
