"""Ensembles whose tensors lie in a client's shared memory: places reach the members that write and read them."""

from __future__ import annotations

from typing import cast

import pytest

from edge_serve.messages.infer import InferRequest, RequestedOutput
from edge_serve.messages.shared_memory import Place
from edge_serve.messages.tensors import DataType, InferTensor, Shared, Unseen
from tests.models.ensemble.test_ensemble import CHAIN, DIAMOND, Job, Scene, int32, step
from tests.models.ensemble.test_stream import BOTH, respond, streaming

#: the input is an output too
THROUGH = step("p", {"A": "X"}, {"C": "Y"})


def region(name: str) -> object:
    """Something that is named in messages of tests."""
    return f"region {name}"


def there(name: str, size: int = 8) -> Shared:
    return Shared(name, DataType.INT32, (size // 4,), Unseen.buffer(size), -1, region("in"), 16)


def stored(name: str, size: int = 8) -> InferTensor:
    """As a worker's reply tells of it."""
    return InferTensor(name, DataType.INT32, (size // 4,), Unseen.buffer(size))


def send(scene: Scene, *inputs: InferTensor, **places: int | None) -> Job:
    """Outputs by name, and their offsets in the region `out`; None = in the reply."""
    outputs = [
        RequestedOutput(name, place=None if offset is None else Place(region("out"), offset, 64, name))
        for name, offset in places.items()
    ]
    request = InferRequest("e", inputs=list(inputs), outputs=outputs, shared=True)
    return cast(Job, scene.runner.submit(request, 1, None, scene.answers.append))


def test_the_last_member_writes_and_the_first_one_reads() -> None:
    scene = Scene(CHAIN)
    send(scene, there("X"), Y=32)

    first = scene.job("p").request
    assert first.inputs == [Shared("A", DataType.INT32, (2,), first.inputs[0].data, -1, region("in"), 16)]
    assert ([output.place for output in first.outputs], first.shared) == ([None], True)
    scene.job("p").answer(int32("C", 3, 4))

    last = scene.job("q").request
    assert (last.inputs, last.shared) == ([int32("A", 3, 4)], True)
    assert [(output.name, output.place) for output in last.outputs] == [("C", Place(region("out"), 32, 64, "Y"))]
    scene.job("q").answer(stored("C"))

    (output,) = scene.answer.outputs
    assert (output.name, len(output.data)) == ("Y", 8)
    with pytest.raises(TypeError):
        bytes(output.data)


def test_members_between_know_nothing_of_it() -> None:
    scene = Scene(CHAIN)
    send(scene, int32("X", 1), Y=32)
    assert not scene.job("p").request.shared


def test_a_step_reads_what_another_wrote_for_the_client() -> None:
    scene = Scene(DIAMOND, ["Y", "T"])
    send(scene, int32("X", 1, 2), Y=None, T=32)
    assert not scene.job("q").request.shared
    scene.job("p").answer(stored("C"))
    scene.job("q").answer(int32("C", 5, 6))

    asked = scene.job("r").request
    assert asked.shared
    assert asked.inputs == [
        Shared("A", DataType.INT32, (2,), asked.inputs[0].data, -1, region("out"), 32),
        int32("B", 5, 6),
    ]


@pytest.mark.parametrize(("shared_input", "place"), [(True, None), (False, 32)])
def test_an_input_that_is_an_output_too_cannot_be_in_shared_memory(shared_input: bool, place: int | None) -> None:
    scene = Scene(THROUGH, ["Y", "X"])
    send(scene, there("X") if shared_input else int32("X", 1), Y=None, X=place)
    assert "hands its input 'X' on as an output, which shared memory cannot be used for" in scene.error.message
    assert scene.calls() == [0, 0, 0]

    scene.answers.clear()
    send(scene, there("X"), Y=32)
    assert scene.calls() == [1, 0, 0]


def test_each_chain_of_a_decoupled_ensemble_writes_to_the_same_place() -> None:
    scene = streaming(CHAIN)
    send(scene, there("X"), Y=32)
    assert scene.job("p").request.shared
    for _ in range(2):
        respond(scene.job("p"), int32("C", 1, 2))
        assert scene.job("q").request.outputs[0].place == Place(region("out"), 32, 64, "Y")
        scene.job("q").answer(stored("C"))
    assert [len(answer.outputs[0].data) for answer in scene.answers] == [8, 8]


def test_an_output_that_later_steps_read_cannot_be_in_shared_memory() -> None:
    scene = streaming(BOTH, ["Y", "Z2"])
    send(scene, int32("X", 1), Y=32, Z2=None)
    assert "read its output 'Y', which cannot be in shared memory" in scene.error.message
    scene.answers.clear()
    send(scene, int32("X", 1), Y=None, Z2=32)
    assert scene.calls() == [1, 0, 0]
