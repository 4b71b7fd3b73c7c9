"""Jobs of the codec: malformed answers are found, and memory is released once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import pytest

from edge_serve.errors import Cancelled, InvalidArgument, Unavailable
from edge_serve.messages.infer import InferRequest, InferResponse
from edge_serve.messages.signature import Signature, TensorSpec
from edge_serve.messages.tensors import DataType, InferTensor
from edge_serve.workers.codec.job import Body, CodecJob, DecodeJob, Encoded, EncodeJob, LeasePair, Refused
from edge_serve.workers.codec.messages import pack_request, pack_response, pack_tensor
from edge_serve.workers.memory.arena import Arena, Budget, Slot
from edge_serve.workers.wire.frames import FrameError

SIGNATURE = Signature(
    "m", "1", "python", 0,
    {"X": TensorSpec("X", DataType.INT32, (-1,))}, {"Y": TensorSpec("Y", DataType.INT32, (-1,))}, required=1,
)  # fmt: skip

Job = TypeVar("Job", bound=CodecJob)


class Scene:
    def __init__(self) -> None:
        self.budget = Budget(1 << 20)
        self.arena = Arena("m", self.budget)
        self.told: list[Any] = []
        self.slot: Slot = self.arena.allocate(64)

    def decoding(self) -> DecodeJob:
        body = Body(SIGNATURE, "1", self.arena, self.slot.view[:40], self.slot, None, False, 1000)
        return self._queued(DecodeJob(body, self.told.append))

    def encoding(self) -> EncodeJob:
        tensor = InferTensor("Y", DataType.INT32, (2,), self.slot.view[:8], self.slot.offset)
        response = InferResponse("m", "1", outputs=[tensor], lease=self.slot)
        value = pack_response(response, InferRequest("m"), SIGNATURE, "identity", True)
        return self._queued(EncodeJob(value, self.slot, self.told.append))

    def _queued(self, job: Job) -> Job:
        job.arena = self.arena
        job.on_cancel = lambda: None
        return job

    def answer(self, offset: int, size: int = 8) -> dict[str, Any]:
        request = InferRequest("m", id="r")
        return {"request": pack_request(request, [["X", DataType.INT32.value, [2], offset, size]])}


@pytest.fixture
def here() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.arena.close()


def test_a_request_whose_tensors_lie_in_the_jobs_memory(here: Scene) -> None:
    here.slot.view[8:16] = bytes(range(8))
    job = here.decoding()
    job.close(job.outcome(here.answer(here.slot.offset + 8)))

    (request,) = here.told
    assert (request.id, request.lease, request.validated) == ("r", here.slot, SIGNATURE)
    assert bytes(request.inputs[0].data) == bytes(range(8))
    assert here.budget.used > 0


@pytest.mark.parametrize(("at", "size"), [(-8, 8), (1 << 20, 8), (0, 1 << 20), (60, 8000), (0, -8)])
def test_an_answer_with_memory_outside_the_job_is_malformed(here: Scene, at: int, size: int) -> None:
    job = here.decoding()

    with pytest.raises(FrameError, match="do not belong to the job"):
        job.outcome(here.answer(here.slot.offset + at, size))

    assert here.told == []
    job.fail(Unavailable("ended"))  # as the process's end does
    assert here.budget.used == 0


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"request": 7},
        {"request": {}},
        {"request": {"inputs": [["X"]]}},
        {"error": "text", "request": []},
    ],
)
def test_malformed_requests(here: Scene, answer: dict[str, Any]) -> None:
    with pytest.raises(FrameError):
        here.decoding().outcome(answer)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"pieces": 7, "length": None},
        {"pieces": [[1]], "length": None},
        {"pieces": [[0, 1 << 20]], "length": None},
        {"pieces": []},
    ],
)
def test_malformed_replies(here: Scene, answer: dict[str, Any]) -> None:
    with pytest.raises(FrameError):
        here.encoding().outcome(answer)


def test_a_reply_without_memory_for_its_text_is_malformed(here: Scene) -> None:
    with pytest.raises(FrameError, match="without any text"):
        here.encoding().outcome({"pieces": [[here.slot.offset, 8]], "length": None})


def test_a_refusal_keeps_its_class_and_releases_all_memory(here: Scene) -> None:
    job = here.decoding()
    job.granted = here.arena.allocate(100)
    job.close(job.outcome({"error": {"code": 3, "text": "no"}, "before": True}))

    (refused,) = here.told
    assert isinstance(refused, Refused)
    assert (type(refused.error), refused.error.message, refused.before) == (InvalidArgument, "no", True)
    assert here.budget.used == 0


def test_a_cancelled_job_ignores_its_answer(here: Scene) -> None:
    job = here.decoding()
    job.cancel()
    job.close(job.outcome(here.answer(here.slot.offset)))

    assert [type(refused.error) for refused in here.told] == [Cancelled]
    assert here.budget.used == 0


def test_an_answer_for_a_model_that_was_unloaded_is_refused(here: Scene) -> None:
    job = here.decoding()
    here.arena.close()

    outcome = job.outcome(here.answer(here.slot.offset))

    assert isinstance(outcome, Refused)
    assert outcome.error.message == "the model was unloaded"


def test_a_reply_in_two_leases_releases_both_together(here: Scene) -> None:
    job = here.encoding()
    granted = job.granted = here.arena.allocate(100)
    job.close(job.outcome({"pieces": [[granted.offset, 10], [here.slot.offset, 8]], "length": 10}))

    (encoded,) = here.told
    assert isinstance(encoded, Encoded)
    assert isinstance(encoded.lease, LeasePair)
    assert [len(buffer) for buffer in encoded.buffers] == [10, 8]
    assert encoded.length == 10
    assert here.budget.used > 0
    encoded.lease.release()
    assert here.budget.used == 0


def test_a_body_outside_the_arena_is_sent_with_the_job(here: Scene) -> None:
    body = Body(SIGNATURE, "1", None, b"loose bytes", None, None, False, 1000)
    job = DecodeJob(body, here.told.append)
    job.arena = here.arena
    parts = job.parts(7)

    assert parts[1:] == [b"loose bytes"]
    here.slot.release()


def test_a_body_in_the_arena_is_sent_as_its_offset(here: Scene) -> None:
    (part,) = here.decoding().parts(7)

    assert f'"at": [{here.slot.offset}, 40]'.encode() in bytes(part)


def test_empty_tensors_need_no_memory(here: Scene) -> None:
    tensor = InferTensor("X", DataType.INT32, (0,), b"", -1)

    assert pack_tensor(tensor, 4096) == ["X", DataType.INT32.value, (0,), 4096, 0]
    request = here.decoding().outcome(
        {"request": pack_request(InferRequest("m"), [["X", DataType.INT32.value, [0], -1, 0]])}
    )
    assert (request.inputs[0].data, request.inputs[0].offset) == (b"", -1)
